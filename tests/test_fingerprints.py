"""Models that read another text than they were trained on, or whose parameters are not finite."""

import shutil
from types import SimpleNamespace

import pytest
import torch
from cases import slow_but_first
from conftest import PLUGIN, fairseq
from fairseq.data import Dictionary

from fairseq_ext import cli, permissions
from fairseq_ext.data import fingerprints
from fairseq_ext.data.fingerprints import FINGERPRINTS
from fairseq_ext.errors import UsageError
from fairseq_ext.safe_loading import load_checkpoint

SHAPE = "--share-decoder-input-output-embed --arch transformer_hna_tiny --save-dir".split()
READ = "-s de -t en --cpu --num-workers 0 --max-tokens 100".split()
FLAGS = f"--user-dir {PLUGIN} {' '.join(READ)} --optimizer adam --lr 1e-3".split()


@pytest.fixture(scope="module")
def checkpoint(letters, tmp_path_factory):
    """A model of letters, and a tokeniser beside its data."""
    folder = tmp_path_factory.mktemp("model")
    (letters / "bpe.codes").write_text("#version: 0.2\na b\n")
    args = [*FLAGS, *SHAPE, folder, "--max-update", 1, "--no-epoch-checkpoints"]
    done = fairseq("train", letters, *args)
    (folder / "train.log").write_text(done.stdout + done.stderr)
    (letters / "bpe.codes").unlink()  # other tests have none
    return folder / "checkpoint_last.pt"


@pytest.fixture
def swapped(letters, tmp_path):
    """The same data with two entries of the source's dictionary swapped."""
    folder = shutil.copytree(letters, tmp_path / "swapped")
    lines = (folder / "dict.de.txt").read_text().split("\n")
    (folder / "dict.de.txt").write_text("\n".join([lines[1], lines[0], *lines[2:]]))
    return folder


@pytest.fixture
def retokenised(letters, tmp_path):
    folder = shutil.copytree(letters, tmp_path / "retokenised")
    (folder / "bpe.codes").write_text("#version: 0.2\nc d\n")
    return folder


COMMANDS = {
    "generate": "{read} --gen-subset valid",
    "interactive": "{read} --input {folder}/lines",
    "validate": "{read} --task translation",
    "train": "{train} --restore-file {checkpoint}",
    "train too": "{train} --finetune-from-model {checkpoint}",
    "map": "{checkpoint} --data {data} --sentence a --out {folder}/map.png",
    "analyse": "{verb} --split valid",
    "columns": "{verb} --split valid",
    "heads": "{verb} --split valid",
    "align": "{verb} --source {folder}/lines --target {folder}/lines --gold {folder}/gold",
    "weights": "{verb}",
}
"""Each command that reads data with a model, and its arguments."""


def run(name, folder, data, checkpoint, *more):
    """Run a command of `COMMANDS`; return what it printed, or raise UsageError."""
    (folder / "lines").write_text("a b\n")
    (folder / "gold").write_text("1-1 2-2\n")
    read = f"{data} --user-dir {PLUGIN} {' '.join(READ)} --path {checkpoint}"
    train = " ".join(map(str, [data, *FLAGS, *SHAPE, folder / "new", "--max-update", 1]))
    verb = f"{checkpoint} --data {data} --out {folder / 'out'}"
    places = {"read": read, "train": train, "verb": verb, "folder": folder, "data": data}
    args = [*COMMANDS[name].format(**places, checkpoint=checkpoint).split(), *more]
    if name in cli.VERBS:
        cli.main([name, *args])
        return ""
    done = fairseq(name.split()[0], *args, check=False)
    if done.returncode:
        raise UsageError(done.stderr.strip().rpartition("\n")[2])
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", slow_but_first(COMMANDS))
def test_another_dictionary_is_refused(name, swapped, checkpoint, tmp_path, monkeypatch):
    says = r"another source dictionary: its symbol 4 is 'a', and here 'b'; .*--other-dictionary"
    with pytest.raises(UsageError, match=says):
        run(name, tmp_path, swapped, checkpoint)
    monkeypatch.setenv("FAIRSEQ_EXT_OTHER_DICTIONARY", "")  # and as it was after the test
    run(name, tmp_path, swapped, checkpoint, "--other-dictionary")


@pytest.mark.parametrize("name", ["generate", "train", "map"])
def test_another_tokeniser_is_refused(name, retokenised, checkpoint, tmp_path):
    with pytest.raises(UsageError, match=r"split by another bpe\.codes than the one in .*retoken"):
        run(name, tmp_path, retokenised, checkpoint)


@pytest.mark.parametrize("name", slow_but_first(["generate", "train"]))
def test_an_older_checkpoint_is_read_with_a_note(name, swapped, checkpoint, tmp_path):
    state = load_checkpoint(str(checkpoint))
    del state["extra_state"][FINGERPRINTS], state["extra_state"]["early_stop"]
    torch.save(state, tmp_path / "old.pt")
    said = run(name, tmp_path, swapped, tmp_path / "old.pt")
    assert said.count("old.pt does not say which dictionary it was trained with") == 1


def test_a_checkpoint_says_what_it_was_trained_on(letters, checkpoint):
    saved = load_checkpoint(str(checkpoint))["extra_state"][FINGERPRINTS]
    assert saved["source"] == ["<s>", "<pad>", "</s>", "<unk>", *"abcdefgh", *saved["source"][12:]]
    assert "target" not in saved  # it is the same
    assert len(saved["tokeniser"]["bpe.codes"]) == 64


def test_a_task_without_a_folder_of_data_has_no_tokeniser():
    words = Dictionary()
    task = SimpleNamespace(source_dictionary=words, target_dictionary=words)
    assert fingerprints.take_fingerprints(task) == {"source": words.symbols, "tokeniser": {}}


@pytest.mark.parametrize(
    ("theirs", "ours", "says"),
    [
        (["a", "b"], ["a", "c"], "symbol 1 is 'b', and here 'c'"),
        (["a", "b"], ["a"], "symbol 1 is 'b', and here missing"),
        (["a"], ["a", "b"], "symbol 1 is missing, and here 'b'"),
    ],
)
def test_the_first_symbol_that_differs(theirs, ours, says):
    with pytest.raises(UsageError, match=says):
        fingerprints._compare(theirs, ours, "target", "model.pt")


def test_averages_of_models_of_other_text_are_refused(checkpoint, tmp_path, monkeypatch):
    state = load_checkpoint(str(checkpoint))
    state["extra_state"][FINGERPRINTS]["source"].reverse()
    torch.save(state, tmp_path / "other.pt")
    average = ["average", "--output", tmp_path / "mean.pt", checkpoint, tmp_path / "other.pt"]
    with pytest.raises(UsageError, match="trained with other dictionaries or tokenisers"):
        cli.main([*map(str, average)])
    monkeypatch.setenv("FAIRSEQ_EXT_OTHER_DICTIONARY", "")
    cli.main([*map(str, average), "--other-dictionary"])


@pytest.fixture
def spoilt(checkpoint, tmp_path):
    """The model with one parameter that is no number."""
    state = load_checkpoint(str(checkpoint))
    state["model"]["encoder.layers.1.fc1.weight"][2, 3] = float("nan")
    torch.save(state, tmp_path / "checkpoint_last.pt")
    shutil.copy(checkpoint.with_name("train.log"), tmp_path)
    return tmp_path / "checkpoint_last.pt"


MORE = {
    "average": "--output {folder}/mean.pt {checkpoint}",
    "predict": "{checkpoint} --cpu --input {folder}/lines",
    "export-hf": "{checkpoint} {folder}/out",
    "export-fairseq": "{checkpoint} {folder}/stock.pt",
    "export-graph": "{checkpoint} {folder}/graph",
    "export-vectors": "{checkpoint} --words {folder}/dict.en.txt --out {folder}/out",
    "prune": "{checkpoint} {folder}/pruned.pt",
    "probe": "{checkpoint} --coreference {folder}/refl.1 --out {folder}/out",
    "report": "{run} --out {folder}/report.html",
    "table": "{run}",
    "record": "{run} --out {folder}/record.toml",
}
"""Other verbs that read checkpoints."""
SAYS = r"last\.pt .* not finite, first 1 of \d+ in encoder\.layers\.1\.fc1\.weight; .*--allow-nan"


@pytest.mark.parametrize("name", COMMANDS)
def test_parameters_that_are_not_finite_are_refused(name, letters, spoilt, tmp_path):
    with pytest.raises(UsageError, match=SAYS):
        run(name, tmp_path, letters, spoilt)


@pytest.mark.parametrize("name", MORE)
def test_other_verbs_refuse_them_too(name, spoilt, tmp_path):
    (tmp_path / "lines").write_text("a b\n")
    (tmp_path / "refl.1").write_text("a girl sees b by herself\t5\t0 1\t3 3 \n")
    places = {"folder": tmp_path, "checkpoint": spoilt, "run": tmp_path}
    with pytest.raises(UsageError, match=SAYS):
        cli.main([name, *MORE[name].format(**places).split()])


def test_every_verb_that_reads_checkpoints_is_tried():
    assert {*COMMANDS, *MORE} >= {*cli.VERBS} - {*cli.NO_READERS}


def test_they_can_be_looked_at(letters, spoilt, tmp_path, monkeypatch):
    monkeypatch.setenv("FAIRSEQ_EXT_ALLOW_NAN", "")
    cli.main(
        ["weights", str(spoilt), "--data", str(letters), "--out", str(tmp_path), "--allow-nan"]
    )
    assert permissions.is_given("--allow-nan")
    run("validate", tmp_path, letters, spoilt, "--allow-nan")


def test_only_what_is_given_is_given(monkeypatch):
    for value in ("", "0"):
        monkeypatch.setenv("FAIRSEQ_EXT_ALLOW_NAN", value)
        assert not permissions.is_given("--allow-nan")
    monkeypatch.setenv("FAIRSEQ_EXT_ALLOW_NAN", "1")
    assert permissions.is_given("--allow-nan")
    assert not permissions.is_given("--other-dictionary")
