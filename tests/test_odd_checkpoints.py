"""Checkpoints that hold no whole model: the sentence names the file, and what in it."""

from argparse import Namespace

import pytest
import torch
from conftest import PLUGIN, TRAIN, fairseq
from fairseq import checkpoint_utils
from saved_state import make_state

from fairseq_ext import safe_loading
from fairseq_ext.cli import main
from fairseq_ext.errors import UsageError
from fairseq_ext.patches.checkpoints import explain_loading

SIZES = {"encoder_layers": 2, "encoder_embed_dim": 8, "encoder_attention_heads": 2}
HEADS = "cfg.model.encoder_attention_heads is"

# The changes of a whole checkpoint, by path of the entry, and what the sentence says of them.
ODD = {
    "cfg None": ({"cfg": None}, "its settings, cfg, are None instead of entries by name"),
    "cfg a list": ({"cfg": [1]}, "its settings, cfg, are a list instead of entries"),
    "cfg empty": ({"cfg": {}}, "cfg.model is None instead of entries by name"),
    "cfg keys": ({"cfg": {1: 2}}, "cfg has an entry named 1, and names are text"),
    "args a list": ({"args": ["x"]}, "args is a list instead of a Namespace"),
    "args empty": ({"args": Namespace()}, "arch in its args is None instead of a name"),
    "model None": ({"model": None}, "model is None instead of parameters by name"),
    "model empty": ({"model": {}}, "model is an empty dict instead of parameters by name"),
    "model a tensor": ({"model": torch.ones(2)}, "model is a Tensor instead of parameters"),
    "model keys": ({"model": {3: torch.ones(1)}}, "model has an entry named 3, and names are text"),
    "model values": ({"model": {"w": "x"}}, "the parameter w is 'x'"),
    "no model": ({"cfg.model": None}, "cfg.model is None instead of entries by name"),
    "no task": ({"cfg.task": None}, "cfg.task is None instead of entries by name"),
    "task a word": ({"cfg.task": "x"}, "cfg.task is 'x' instead of entries by name"),
    "no name": ({"cfg.model._name": None}, "cfg.model has nothing as its _name"),
    "a name": ({"cfg.model._name": [1]}, "cfg.model has a list as its _name"),
    "a task's name": ({"cfg.task._name": 7}, "cfg.task has 7 as its _name"),
    "old": ({"optimizer_history": [{}]}, None),
    "a word": ({"cfg.model.encoder_embed_dim": "abc"}, "encoder_embed_dim is 'abc' instead of a"),
    "no heads": ({"cfg.model.encoder_attention_heads": 0}, f"{HEADS} 0 instead of a number from 1"),
    "layers": ({"cfg.model.encoder_layers": -1}, "encoder_layers is -1 instead of a number from 0"),
    "half a layer": ({"cfg.model.encoder_layers": 1.5}, "encoder_layers is 1.5 instead"),
    "history": ({"optimizer_history": 3}, "optimizer_history is 3 instead of a list of records"),
    "no history": ({"optimizer_history": []}, "optimizer_history is an empty list instead"),
    "records": ({"optimizer_history": [None]}, "optimizer_history is a list instead of a list"),
    "extra": ({"extra_state": "x"}, "extra_state is 'x' instead of entries by name"),
    "iterator": ({"extra_state": {"train_iterator": 1}}, "train_iterator is 1 instead of entries"),
    "task state": ({"task_state": [2]}, "task_state is a list instead of entries by name"),
}


def change(state: dict, changes: dict) -> dict:
    for path, value in changes.items():
        *parts, last = path.split(".")
        place = state
        for part in parts:
            place = place[part]
        place[last] = value
    return state


def save_odd(path, name: str) -> str:
    torch.save(change(make_state(SIZES), ODD[name][0]), path)
    return str(path)


def read_by_fairseq(path) -> dict:
    return checkpoint_utils.load_checkpoint_to_cpu(str(path))


@pytest.mark.parametrize("read", [safe_loading.read_checkpoint, read_by_fairseq])
@pytest.mark.parametrize("name", ODD)
def test_every_reading_refuses_them(name, read, tmp_path):
    """By our verbs, and by fairseq."""
    path, said = tmp_path / "odd.pt", ODD[name][1]
    save_odd(path, name)
    if said is None:  # what fairseq alone needs
        said = "KeyError 'best_loss'"
        if read is not read_by_fairseq:
            assert read(path)["model"]
            return
    with pytest.raises(UsageError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path} is no whole checkpoint: ")
    assert said in str(caught.value) and "\n" not in str(caught.value)


VERBS = {
    "average": "average {path} --output {out}",
    "prune": "prune {path} {out}",
    "predict": "predict {path} --input {path}",
    "map": "map {path} --out {out}.png",
    "heads": "heads {path} --out {out}",
    "columns": "columns {path} --out {out}",
    "analyse": "analyse {path} --out {out}",
    "weights": "weights {path} --out {out}.png",
    "export-hf": "export-hf {path} {out}",
    "export-fairseq": "export-fairseq {path} {out}",
    "export-vectors": "export-vectors {path} --words {path} --out {out}",
}


@pytest.mark.parametrize("name", ["cfg a list", "model None", "a word", "cfg keys"])
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_refuses_them(verb, name, tmp_path):
    path = save_odd(tmp_path / "odd.pt", name)
    line = VERBS[verb].format(path=path, out=tmp_path / "out").split()
    with pytest.raises(UsageError, match=f"^{path} is no whole checkpoint: ") as caught:
        main(line)
    assert ODD[name][1] in str(caught.value)
    assert [*tmp_path.iterdir()] == [tmp_path / "odd.pt"]


FLAGS = ["--restore-file", "--finetune-from-model"]


@pytest.mark.parametrize("flag", FLAGS)
def test_a_training_refuses_to_begin_from_one(flag, data_bin, tmp_path):
    path = save_odd(tmp_path / "odd.pt", "cfg a list")
    line = [data_bin, *TRAIN, "--arch", "transformer_una_tiny", "--max-update", 1, flag, path]
    done = fairseq("train", *line, "--save-dir", tmp_path / "run", check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert f"error: {path} is no whole checkpoint: its settings" in done.stderr


UNKNOWN = {
    "an architecture": (
        {"cfg.model._name": "nope"},
        "the architecture is 'nope', which nothing has registered; give a",
    ),
    "a task": ({"cfg.task._name": "nope"}, "there is no --task nope; give the --user-dir"),
    "a setting": ({"cfg.model.dropout": "x"}, "dropout"),
    "heads": ({"cfg.model.encoder_attention_heads": 3}, "3"),
    "a width": ({"cfg.model.encoder_embed_dim": 12}, "to match --decoder-embed-dim"),
    "a size": ({"cfg.model.encoder_ffn_embed_dim": 12}, "does not fit the model that its options"),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_settings_that_make_no_model_name_the_file(case, hybrid_run, data_bin, tmp_path):
    """In fairseq's own loading of models, and in a verb."""
    changes, said = UNKNOWN[case]
    state = torch.load(hybrid_run / "checkpoint_last.pt", weights_only=False)
    torch.save(change(state, changes), tmp_path / "odd.pt")
    with pytest.raises(UsageError) as caught:
        checkpoint_utils.load_model_ensemble_and_task(
            [str(tmp_path / "odd.pt")], {"data": str(data_bin)}
        )
    for part in (str(tmp_path / "odd.pt"), said):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match=r"odd.pt"):
        main(["heads", str(tmp_path / "odd.pt"), "--out", str(tmp_path / "out")])


def test_a_translator_and_text_in_one_language(hybrid_run, encoder_data):
    line = [encoder_data, "--user-dir", PLUGIN, "--path", hybrid_run / "checkpoint_last.pt"]
    done = fairseq("generate", *line, "--cpu", check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    said = f"error: {encoder_data} has no text in two languages, such as train.de-en.de.idx"
    assert said in done.stderr


def test_data_that_was_moved_is_asked_for():
    gone = FileNotFoundError(2, "No such file or directory", "data-bin/gone")
    said = str(explain_loading(gone, "run/x.pt"))
    assert said.startswith("run/x.pt needs files of its data that are not there (")
    assert "data-bin/gone" in said and said.endswith("where they are now, as DATA or --data")
