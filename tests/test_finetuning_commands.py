"""Fine-tuning through the commands: from a tiny encoder of ours to predictions on new text."""

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import PLUGIN, ROOT, fairseq, train_in_two_processes
from fairseq import tasks
from fairseq.data import data_utils
from fairseq.logging import metrics
from fairseq_cli.train import cli_main
from labelled_examples import (
    EXAMPLES,
    KINDS,
    SENTENCES,
    classification,
    read,
    regression,
    remove_target,
    write,
    write_data,
)
from omegaconf import OmegaConf
from saved_state import save_state
from shell import bash, lib
from tokenizers import BertWordPieceTokenizer
from torch import nn

from fairseq_ext import cli
from fairseq_ext.data.tokenisers import OF_BERT
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation import predictions
from fairseq_ext.training_logs import read_log

WIDTH, POSITIONS = 32, 48
SIZES = f"--encoder-layers 2 --encoder-embed-dim {WIDTH} --encoder-ffn-embed-dim 48 "
SIZES += "--encoder-attention-heads 4"
UPDATES = 31  # of 7 in an epoch

FLAGS = [
    *("--user-dir", str(PLUGIN)),
    *"--cpu --num-workers 0 --seed 1 --optimizer adam --lr 3e-3 --clip-norm 1".split(),
    *"--lr-scheduler polynomial_decay --total-num-update 60".split(),
    *"--log-format json --log-interval 1 --no-epoch-checkpoints".split(),
]

EVERY = pytest.mark.parametrize("name", KINDS)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A folder of examples for each task; of the test parts nothing is known."""
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Path:
    """Pre-trained a little, with segments; dictionary and tokeniser lie beside."""
    folder = tmp_path_factory.mktemp("encoder")
    tokenizer = BertWordPieceTokenizer(lowercase=True)
    tokenizer.train_from_iterator(
        SENTENCES, vocab_size=300, special_tokens=list(OF_BERT), show_progress=False
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    pieces = [piece for piece in tokenizer.get_vocab() if piece not in OF_BERT]
    lines = [f"{piece} 0\n" for piece in [*sorted(pieces), "<mask>"]]
    (folder / "dict.txt").write_text("".join(lines))
    encoded = [" ".join(tokenizer.encode(s, add_special_tokens=False).tokens) for s in SENTENCES]
    for split, some in (("train", encoded[:80]), ("valid", encoded[80:])):
        (folder / split).write_text("\n".join(some) + "\n")
    fairseq(
        *("preprocess", "--only-source", "--srcdict", folder / "dict.txt", "--destdir"),
        *(folder / "bin", "--trainpref", folder / "train", "--validpref", folder / "valid"),
    )
    fairseq(
        *("train", folder / "bin", *FLAGS, "--task", "masked_lm_sop", "--criterion"),
        *("masked_lm_sop", "--arch", "roberta_una_tiny", *SIZES.split(), "--save-dir", folder),
        *("--tokens-per-sample", POSITIONS, "--layer-norm-eps", "1e-6", "--batch-size", 4),
        *("--max-update", 2, "--disable-validation"),
    )
    return folder


def command(name, data, encoder, run, *more):
    """The arguments of `fairseq-train` that fine-tune."""
    return [
        *(data, *FLAGS, "--task", name, "--criterion", name, *KINDS[name].flags.split()),
        *("--arch", "roberta_una", "--finetune-from-model", encoder / "checkpoint_last.pt"),
        *("--vocabulary", encoder, "--batch-size", 4, "--save-dir", run),
        *("--max-update", UPDATES, *more),
    ]


def train(*args, **options):
    arguments = command(*args)
    done = fairseq("train", *arguments, **options)
    run = Path(arguments[arguments.index("--save-dir") + 1])
    if run.is_dir():
        (run / "train.log").write_text(done.stdout + done.stderr)
    return done


def saved(run):
    return torch.load(run / "checkpoint_last.pt", weights_only=False)


@pytest.fixture(scope="module")
def trained(data, encoder, tmp_path_factory):
    """Runs by task. Data and encoder were where they are no more."""
    runs = {}

    def made(name: str) -> Path:
        if name not in runs:
            folder = tmp_path_factory.mktemp(name)
            shutil.copytree(encoder, folder / "encoder", ignore=lambda *_: {"bin"})
            shutil.copytree(data / name, folder / "data")
            runs[name] = folder / "run"
            train(name, folder / "data", folder / "encoder", runs[name])
            for part in ("encoder", "data"):
                shutil.rmtree(folder / part)
        return runs[name]

    return made


@pytest.mark.parametrize("precision", [[], ["--bf16", "--ema-fp32"]], ids=["float32", "bf16"])
def test_a_moving_average_has_the_new_head(data, encoder, tmp_path, precision):
    name = "sentence_classification"
    flags = ["--store-ema", "--ema-decay", 0, *precision, "--max-update", 2]
    train(name, data / name, encoder, tmp_path, *flags)
    state = saved(tmp_path)
    average, last = state["extra_state"]["ema"], state["model"]
    assert average.keys() == last.keys() and any("task_head" in key for key in last)
    for key, value in last.items():
        torch.testing.assert_close(average[key], value, msg=key)


def logged(run, kind="valid"):
    return [record.values for record in read_log(run) if record.kind == kind]


def restored(run, data, encoder):
    """Model, task and criterion in this process, begun from the data, with saved parameters."""
    state = saved(run)
    cfg = OmegaConf.create(state["cfg"])
    cfg.task.update(data=str(data), vocabulary=str(encoder))
    cfg.task.pretrained = str(encoder / "checkpoint_last.pt")
    task = tasks.setup_task(cfg.task)
    model = task.build_model(cfg.model)
    model.load_state_dict(state["model"], strict=True)
    return model.eval(), task, task.build_criterion(cfg.criterion).eval()


def in_validation(run, data, encoder, size=4):
    """What the model says of valid.jsonl, and the metrics, `size` examples at a time."""
    model, task, criterion = restored(run, data, encoder)
    task.load_dataset("valid")
    dataset = task.dataset("valid")
    with torch.no_grad(), metrics.aggregate(new_root=True) as found:
        said = []
        for first in range(0, len(dataset), size):
            places = range(first, min(first + size, len(dataset)))
            sample = dataset.collater([dataset[place] for place in places])
            said += task.read_answers(model(**sample["net_input"], task_head=True)[0], sample)
            criterion.reduce_metrics([criterion(model, sample)[2]])
    return said, found.get_smoothed_values()


def alike(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return one == pytest.approx(other, abs=1e-5)


@EVERY
def test_predictions_are_those_of_validation(trained, data, encoder, tmp_path, name):
    """From the checkpoint alone, in a fresh process, of examples without labels."""
    said, values = in_validation(trained(name), data / name, encoder)
    if name == "sentence_regression":
        del values["loss"]  # a correlation over each batch
    *_, last = logged(trained(name))
    assert {metric: last[metric] for metric in values} == pytest.approx(values, abs=2e-3)
    assert len({json.dumps(answer) for answer in said}) > len(said) / 2
    for example in (examples := read(data / name / "valid.jsonl")):
        remove_target(example)
    write(tmp_path / "new.jsonl", examples)
    verb = ["python", "-m", "fairseq_ext.cli", "predict", trained(name) / "checkpoint_last.pt"]
    subprocess.run(
        [*verb, *"--cpu --json --examples --input new.jsonl --output said".split()],
        check=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert alike(read(tmp_path / "said"), said)


@pytest.mark.parametrize(
    ("name", "scores"),
    {
        "sentence_classification": ["accuracy", "f1", "mcc"],
        "sentence_regression": ["pearson"],
        "multiple_choice": ["accuracy"],
        "sequence_tagging": ["f1", "token_f1"],
    }.items(),
)
def test_answers_are_scored_as_validation_logs(trained, data, tmp_path, name, scores):
    """The last checkpoint gives them; some labels are known to training alone."""
    answers, checkpoint = tmp_path / "predict-dev.txt", trained(name) / "checkpoint_last.pt"
    given = ["--input", data / name / "valid.jsonl", "--output", answers]
    cli.main(
        ["predict", *map(str, (checkpoint, *given)), *"--cpu --json --examples --right".split()]
    )
    *_, last = logged(trained(name))
    for score in scores:
        found, _ = predictions.measure(f"predicted.dev.{score}", [tmp_path])
        assert found.values[tmp_path] == pytest.approx(last[score], abs=6e-3)


@EVERY
def test_text_is_predicted_like_examples(trained, data, encoder, tmp_path, name, capsys):
    """In columns, and in other batches."""
    said, _ = in_validation(trained(name), data / name, encoder)
    rows = [KINDS[name].columns(example) for example in read(data / name / "valid.jsonl")]
    (tmp_path / "new").write_text("".join("\t".join(row) + "\n" for row in rows), "utf-8")
    given = ["--input", tmp_path / "new", "--batch-size", 3, "--cpu"]
    capsys.readouterr()
    cli.main(["predict", str(trained(name) / "checkpoint_last.pt"), *map(str, given)])
    lines = [line.split("\t") for line in capsys.readouterr().out.split("\n")[:-1]]
    for (first, *share), answer in zip(lines, said, strict=True):
        if "score" in answer:
            assert float(first) == pytest.approx(answer["score"], abs=1e-3) and not share
            continue
        expected = next(answer[key] for key in ("answer", "tags", "label") if key in answer)
        assert first == (" ".join(expected) if isinstance(expected, list) else str(expected))
        shown = [answer["probability"]] if "probability" in answer else []
        assert [float(each) for each in share] == pytest.approx(shown, abs=1e-3)


def test_text_comes_from_standard_input(trained, data, tmp_path, monkeypatch, capsys):
    name = "sentence_classification"
    text = "".join(f"{example['text']}\n" for example in read(data / name / "valid.jsonl"))
    (tmp_path / "new").write_text(text, "utf-8")
    said = []
    for given in (["--input", str(tmp_path / "new")], []):
        marked = text.encode("utf-8-sig")  # a byte order mark is no text
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(marked)))
        capsys.readouterr()
        cli.main(["predict", str(trained(name) / "checkpoint_last.pt"), "--cpu", *given])
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] and said[0].count("\n") == EXAMPLES["valid"]


def test_a_training_with_other_labels_does_not_go_on(trained, data, encoder, tmp_path):
    """The labels are named, not the parameters of the head that do not fit then."""
    name = "sentence_classification"
    shutil.copy(trained(name) / "checkpoint_last.pt", tmp_path)
    other = shutil.copytree(data / name, tmp_path / "data")
    new = {**read(other / "train.jsonl")[0], "label": "new"}
    with (other / "train.jsonl").open("a") as file:
        file.write(json.dumps(new) + "\n")
    done = train(name, other, encoder, tmp_path, check=False)
    assert done.returncode == 1
    assert "trained with other labels than now" in done.stderr.splitlines()[-1]


def test_a_training_with_another_head_does_not_go_on(trained, data, encoder, tmp_path):
    """Another pooling is refused, though the parameters would fit."""
    name = "sentence_classification"
    shutil.copy(trained(name) / "checkpoint_last.pt", tmp_path)
    done = train(name, data / name, encoder, tmp_path, "--pooling", "max", check=False)
    assert done.returncode == 1
    assert "trained with --pooling first, which is now max; go on" in done.stderr.splitlines()[-1]


def test_a_checkpoint_has_the_predictions_of_one_validation(trained, data):
    name = "sentence_classification"
    meters = saved(trained(name))["extra_state"]["metrics"]["valid"]
    found = {key: state for _, key, _, state in meters}
    assert len(logged(trained(name))) > 1
    assert len(found["_predicted"]["tensor"]) == len(read(data / name / "valid.jsonl"))


@pytest.mark.parametrize(
    ("given", "text", "says"),
    [
        ("--batch-size 0", "", "--batch-size is 0 and must be at least 1"),
        ("--batch-size 99999999999999999999", "", "and at most 9223372036854775807"),
        ("--right --json", "", "--right adds to JSON objects what examples say; give --examples"),
        ("", "the dog\na\tb\tc\n", "standard input:2 has 3 columns; give "),
        ("--output .", "the dog\n", "--output is ., which cannot be a file; give one in a folder"),
        ("--output nowhere/said", "the dog\n", "--output is nowhere/said, which cannot be a file"),
    ],
)
def test_what_cannot_be_predicted(trained, monkeypatch, given, text, says):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    checkpoint = trained("sentence_classification") / "checkpoint_last.pt"
    with pytest.raises(UsageError) as refused:
        cli.main(["predict", str(checkpoint), "--cpu", *given.split()])
    assert says in str(refused.value)


def test_an_encoder_without_a_head_predicts_nothing(encoder):
    with pytest.raises(UsageError, match="is of --task masked_lm_sop, without labels; give one of"):
        cli.main(["predict", str(encoder / "checkpoint_last.pt"), "--cpu"])


# What a model takes over from its encoder.


def test_a_model_without_a_size_takes_over_that_of_its_encoder(trained, encoder):
    options = saved(trained("sentence_classification"))["cfg"]["model"]
    assert options["encoder_layers"] == 2 and options["encoder_embed_dim"] == WIDTH
    assert options["encoder_ffn_embed_dim"] == 48 and options["encoder_attention_heads"] == 4
    assert options["max_positions"] == POSITIONS
    assert options["segments"] == 2 and options["layer_norm_eps"] == 1e-6


def test_layer_normalisation_is_that_of_the_encoder(trained, data, encoder):
    name = "sentence_classification"
    model, task, _ = restored(trained(name), data / name, encoder)
    norms = [module for module in model.encoder.modules() if isinstance(module, nn.LayerNorm)]
    assert len(norms) == 5 and {norm.eps for norm in norms} == {1e-6}
    assert task.separators == 1 and task.room == POSITIONS


def test_a_frozen_encoder_stays_as_it_was(data, encoder, trained, tmp_path):
    name = "sentence_classification"
    train(name, data / name, encoder, tmp_path, "--freeze-encoder", "--save-interval-updates", 8)
    begun = torch.load(tmp_path / "checkpoint_2_8.pt", weights_only=False)["model"]
    ended, full, before = (saved(r)["model"] for r in (tmp_path, trained(name), encoder))
    head = {key for key in ended if key.startswith("task_head.")}
    shared = ended.keys() & before.keys()
    assert len(head) == 4 and shared | head == ended.keys()
    assert all(torch.equal(ended[key], before[key]) for key in shared)
    assert not any(torch.equal(ended[key], begun[key]) for key in head)
    assert not any(torch.equal(full[key], before[key]) for key in shared if "weight" in key)


@pytest.mark.parametrize("examples", [108, 128, 2490])
def test_recipes_count_batches_as_fairseq_does(examples):
    """By default it cuts the last batch: 108 examples would be 3 batches of 32, then 8 and 4."""
    script = f"TASK=t METRIC=m; set_training_flags {examples} 1 1e-3 32"
    done = lib(f'{script}; echo "$UPDATES ${{FLAGS[*]}}"', "finetuning")
    assert done.returncode == 0, done.stderr
    updates, flags = done.stdout.split(maxsplit=1)
    multiple = int(flags.split("--required-batch-size-multiple ")[1].split()[0])
    batches = data_utils.batch_by_size(
        np.arange(examples), num_tokens_fn=lambda _: 1, max_sentences=32,
        required_batch_size_multiple=multiple,
    )  # fmt: skip
    assert int(updates) == len(batches)


# Going on, and other ways to train.


def test_an_encoder_of_another_task(trained, data, encoder, tmp_path):
    """Its head is left behind."""
    name, before = "sequence_tagging", trained("sentence_classification") / "checkpoint_last.pt"
    more = ["--finetune-from-model", before, "--lr", 0, "--max-update", 1]
    train(name, data / name, encoder, tmp_path, *more)
    ended, begun = saved(tmp_path)["model"], saved(before.parent)["model"]
    assert ended["task_head.out_proj.weight"].shape == (2, WIDTH)
    shared = [key for key in ended if not key.startswith("task_head.")]
    assert all(torch.equal(ended[key], begun[key]) for key in shared)


def test_resuming_is_exact(trained, data, encoder, tmp_path):
    """From within an epoch."""
    name = "sentence_classification"
    expected = saved(trained(name))["model"]
    train(name, data / name, encoder, tmp_path, "--max-update", 10)
    assert saved(tmp_path)["optimizer_history"][-1]["num_updates"] == 10
    train(name, data / name, encoder, tmp_path)
    torch.testing.assert_close(saved(tmp_path)["model"], expected, rtol=0, atol=0)


def test_validate_tells_what_training_logged(trained, data, encoder):
    name = "sentence_classification"
    run = trained(name)
    checked = fairseq(
        *("validate", data / name, "--user-dir", PLUGIN, "--path", run / "checkpoint_last.pt"),
        *("--task", name, "--vocabulary", encoder, "--cpu", "--batch-size", 5, "--num-workers", 0),
    )
    found = dict(re.findall(r"\| (\w+) (-?[\d.]+)", checked.stdout + checked.stderr))
    *_, last = logged(run)
    for metric in ("loss", "accuracy", "f1", "mcc"):
        assert float(found[metric]) == pytest.approx(last[metric], abs=2e-3)


def test_hydra_and_the_command_line_agree(trained, data, encoder, tmp_path):
    name = "sentence_classification"
    config = {
        "common": {"user_dir": str(PLUGIN), "cpu": True, "seed": 1},
        "task": {"_name": name, "data": str(data / name), "vocabulary": str(encoder)},
        "model": {"_name": "roberta_una"},
        "criterion": {"_name": name},
        "dataset": {"batch_size": 4, "num_workers": 0},
        "optimizer": {"_name": "adam"},
        "lr_scheduler": {"_name": "polynomial_decay", "total_num_update": 60},
        "optimization": {"max_update": UPDATES, "lr": [0.003], "clip_norm": 1},
        "checkpoint": {
            "save_dir": str(tmp_path / "run"),
            "finetune_from_model": str(encoder / "checkpoint_last.pt"),
        },
    }
    (tmp_path / "mine.yaml").write_text(json.dumps(config))
    fairseq("hydra-train", "--config-dir", tmp_path, "--config-name", "mine", cwd=tmp_path)
    ours, theirs = saved(tmp_path / "run"), saved(trained(name))
    torch.testing.assert_close(ours["model"], theirs["model"], rtol=0, atol=0)
    assert ours["cfg"]["model"]["encoder_layers"] == 2


@pytest.mark.processes
def test_two_processes_have_the_metrics_of_one(data, encoder, tmp_path):
    """Of 11 examples, so that one has less to do than the other."""
    name = "sequence_tagging"
    arguments = command(name, data / name, encoder, tmp_path, "--log-file", tmp_path / "log")
    train_in_two_processes(*(part for part in arguments if part != "--cpu"))
    _, values = in_validation(tmp_path, data / name, encoder)
    told = [line for line in (tmp_path / "log").read_text().split("\n") if '"valid_loss"' in line]
    last = json.loads(told[-1])
    found = {metric: float(last[f"valid_{metric}"]) for metric in values}
    assert found == pytest.approx(values, abs=2e-3)


# Cross-validation and the recipe.


@pytest.mark.slow
def test_folds_and_seeds(data, encoder, tmp_path, capsys, forked):
    """Every example is held out once for each seed, which has its own encoder."""
    for seed in (1, 2):
        shutil.copytree(encoder, tmp_path / f"seed-{seed}")
    name = "sentence_classification"
    _, *flags = command(name, data / name, encoder, "-", "--max-update", 3)
    for flag in ("--save-dir", "--seed", "--finetune-from-model", "--user-dir"):
        del flags[flags.index(flag) : flags.index(flag) + 2]
    encoders = f"--finetune-from-model {tmp_path}/seed-$SEED/checkpoint_last.pt"
    options = ["--out", tmp_path / "out", "--seeds", 1, 2, "--folds", 3, "--jobs", 2]
    (tmp_path / "only").mkdir()
    shutil.copy(data / name / "train.jsonl", tmp_path / "only")
    cli.main(
        ["sweep", *map(str, options), "--variant", f"una={encoders}", "--"]
        + [str(part) for part in (tmp_path / "only", *flags)]
    )
    runs = sorted((tmp_path / "out" / "una").iterdir())
    assert [run.name for run in runs] == [f"seed-{s}-fold-{f}" for s in (1, 2) for f in (1, 2, 3)]
    held_out = []
    for run in runs:
        found = re.findall(r"Loaded (\w+) with #samples: (\d+)", (run / "train.log").read_text())
        assert sum(int(count) for _, count in found) == EXAMPLES["train"]
        held_out.append(int(dict(found)["valid"]))
        its = saved(run)["cfg"]["checkpoint"]["finetune_from_model"]
        assert its == f"{tmp_path}/seed-{run.name[5]}/checkpoint_last.pt"
    assert held_out == [9, 9, 8] * 2
    capsys.readouterr()
    cli.main(["table", "--format", "csv", "--metric", "accuracy", "--", *map(str, runs)])
    (row,) = csv.DictReader(line for line in io.StringIO(capsys.readouterr().out) if line[0] != "#")
    assert row["variant"] == "una" and row["n"] == "6"
    mean = sum(logged(run)[-1]["accuracy"] for run in runs) / 6
    assert float(row["accuracy"]) == pytest.approx(mean, abs=0.01)


@pytest.mark.recipe
def test_the_recipe(corpora, encoder, tmp_path):
    """scripts/finetune.sh on a part of CR; its encoder lies in a folder with a space."""
    spaced = tmp_path / "an encoder"
    spaced.symlink_to(encoder)
    prepared = bash(
        *(ROOT / "scripts" / "prepare_task.sh", "cr", tmp_path / "cr"),
        FAIRSEQ_EXT_CORPORA=str(corpora),
    )
    assert prepared.returncode == 0, prepared.stderr
    lines = (tmp_path / "cr" / "train.jsonl").read_text(encoding="utf-8").split("\n")
    (tmp_path / "cr" / "train.jsonl").write_text("\n".join(lines[::20]) + "\n", encoding="utf-8")
    done = bash(
        *(ROOT / "scripts" / "finetune.sh", "cr", f"tiny={spaced}/checkpoint_last.pt"),
        *("--data", tmp_path / "cr", "--out", tmp_path / "out", "--seeds", 1, "--folds", 2),
        *("--", "--max-update", 2, "--cpu"),
    )
    assert done.returncode == 0, done.stderr
    rows = done.stdout.split("\n")
    assert any(re.match(r"tiny +2 ", row) for row in rows), done.stdout
    assert (tmp_path / "out" / "table.txt").read_text() in done.stdout
    for fold in (1, 2):
        state = saved(tmp_path / "out" / "tiny" / f"fold-{fold}")
        assert state["optimizer_history"][-1]["num_updates"] == 2
        assert state["cfg"]["model"]["encoder_embed_dim"] == WIDTH


ATTENTION = {
    ("roberta_asa_tiny", "asa_layers", "all", "head_gate", False): ["--arch", "roberta_una"],
    ("roberta_roles_tiny", "encoder_roles", "relative", "head_gate", True): [
        *("--encoder-roles=relative", "--head-gate=static", "--arch", "roberta_una")
    ],
    ("roberta_dna", "encoder_gaussian_heads", "2", "encoder_gaussian_offsets", "-1,0"): [
        *("--encoder-gaussian-heads=2", "--encoder-gaussian-offsets=-1,0", "--arch", "roberta_dna")
    ],
    ("roberta_hna_12", "encoder_normaliser", "sinkhorn", "sinkhorn_sweeps", 2): [
        *("--encoder-normaliser=sinkhorn", "--sinkhorn-sweeps=2", "--arch", "roberta_hna")
    ],
}


@pytest.mark.parametrize("given", ATTENTION, ids=lambda given: given[0])
def test_recipes_take_over_the_attention_of_an_encoder(given, tmp_path):
    name, *pairs = given
    model = {"_name": name, **dict(zip(pairs[::2], pairs[1::2], strict=True))}
    save_state(tmp_path / "seed 1.pt", model)
    code = f'. "{ROOT}/scripts/lib/finetuning.sh"; '
    code += 'set_encoder "$1"; printf "%s\\n" "${ENCODER[@]}"'
    done = bash("-c", code, "-", tmp_path / "seed $SEED.pt")
    expected = ["--finetune-from-model", f"{tmp_path}/seed $SEED.pt", *ATTENTION[given]]
    assert done.stdout.split("\n")[:-1] == expected, done.stderr


def test_encoders_of_all_seeds_are_looked_for(tmp_path):
    for seed in (1, 3):
        save_state(tmp_path / f"seed-{seed}.pt", {"_name": "roberta_una_tiny"})
    code = f'. "{ROOT}/scripts/lib/finetuning.sh"; seeds=3; set_encoder "$1"'
    done = bash("-c", code, "-", tmp_path / "seed-$SEED.pt")
    assert done.returncode and "seed-2.pt' is not there, with which seed 2 would" in done.stderr


@pytest.mark.recipe
def test_the_recipe_of_task_attention(encoder, tmp_path):
    """scripts/task_attention.sh: each variant with its own flags, and the sum of their times."""
    for name, example in (("sst-5", classification), ("sts", regression)):
        (tmp_path / name).mkdir()
        for split in ("train", "valid"):
            write(tmp_path / name / f"{split}.jsonl", [example(i) for i in range(12)])
    done = bash(
        *(ROOT / "scripts" / "task_attention.sh", encoder / "checkpoint_last.pt"),
        *("--data", tmp_path, "--out", tmp_path / "out", "--corpora", "sst-5 sts"),
        *("--modes", "frozen", "--variants", "mean attention joint"),
        *("--", "--max-update", 2, "--cpu"),
    )
    assert done.returncode == 0, done.stderr
    tasks_of = {}
    for run in (tmp_path / "out").glob("*/frozen/*/seed-1"):
        cfg = saved(run)["cfg"]["task"]
        assert cfg["freeze_encoder"]
        tasks_of[run.parts[-4], run.parts[-2]] = (str(cfg["pairs"]), str(cfg["pooling"]))
    assert tasks_of == {
        ("sst-5", "mean"): ("joint", "mean"),
        ("sst-5", "attention"): ("joint", "attention"),
        ("sts", "mean"): ("apart", "mean"),
        ("sts", "attention"): ("apart", "attention"),
        ("sts", "joint"): ("joint", "first"),
    }
    assert re.search(
        r"frozen mean: [\d,]+ s of training over sst-5, sts, 1\.000 of mean", done.stdout
    )
    assert "frozen attention: " in done.stdout
    assert "frozen joint: left out, without sst-5/seed-1\n" in done.stdout


@pytest.mark.slow
@pytest.mark.recipe
def test_the_recipe_of_task_attention_by_the_last_epoch(encoder, tmp_path):
    """A few examples, blocks with more in them, and tests over seeds and examples."""
    (tmp_path / "sts").mkdir()
    for split, size in (("train", 30), ("valid", 20)):
        write(tmp_path / "sts" / f"{split}.jsonl", [regression(i) for i in range(size)])
    out, variants = tmp_path / "out", ["mean", "residual", "uniform-all"]
    done = bash(
        *(ROOT / "scripts" / "task_attention.sh", encoder / "checkpoint_last.pt"),
        *("--data", tmp_path, "--out", out, "--corpora", "sts", "--modes", "full", "--seeds", 2),
        *("--variants", " ".join(variants), "--examples", 12, "--last"),
        *("--", "--max-update", 2, "--cpu"),
    )
    assert done.returncode == 0, done.stderr
    assert len(read(out / "sts" / "examples-12" / "train.jsonl")) == 12
    for variant in variants:
        cfg = saved(run := out / "sts" / "full" / variant / "seed-2")["cfg"]["task"]
        parts = [cfg[f"task_attention_{name}"] for name in ("residual", "norm", "bias")]
        assert parts == [variant != "mean", *[variant == "uniform-all"] * 2]
        assert cfg["task_init"] == ("uniform:0.9,1" if variant == "uniform-all" else "default")
        assert not logged(run) and len(read(run / "predict-valid.txt")) == 20
    assert "predicted.valid.pearson against mean: paired bootstrap over seed-1" in done.stdout
    assert "predicted.valid.pearson against mean: paired t-test over n = 2" in done.stdout
    assert done.stdout.count("corrected for 2 comparisons (Holm)") == 2


# Refused before training.


def without_labels(folder):
    examples = read(folder / "train.jsonl")
    del examples[2]["label"]
    write(folder / "train.jsonl", examples)


@pytest.mark.parametrize(
    ("change", "flags", "says"),
    [
        (None, "--finetune-from-model nowhere.pt", "--finetune-from-model is nowhere.pt, which is"),
        (None, "--arch roberta_una_12", "has --encoder-layers 2 and the model to be fine-tuned 12"),
        (
            None,
            "--pooling attention --task-init uniform --amp",
            "--task-init uniform makes numbers too large for --amp",
        ),
        (None, "--arch roberta", "needs an encoder of ours, like roberta_una"),
        (None, "--vocabulary {}/data", "{}/data has no dict.txt; give --vocabulary"),
        (None, "--vocabulary {}/fewer", "was trained with another dictionary"),
        ("train.jsonl", "", "/data/train.jsonl is not there; make it with"),
        ("valid.jsonl", "", "/data/valid.jsonl is not there; make it with"),
        (without_labels, "", "/data/train.jsonl:3 has no 'label' (it has text)"),
    ],
)
def test_refusals(data, encoder, tmp_path, monkeypatch, change, flags, says):
    """Nothing is trained."""
    name = "sentence_classification"
    shutil.copytree(data / name, tmp_path / "data")
    fewer = tmp_path / "fewer"
    shutil.copytree(encoder, fewer, ignore=shutil.ignore_patterns("bin", "*.pt"))
    words = (fewer / "dict.txt").read_text().split("\n")
    (fewer / "dict.txt").write_text("\n".join(words[3:]))
    if callable(change):
        change(tmp_path / "data")
    elif change:
        (tmp_path / "data" / change).unlink()
    more = flags.format(tmp_path).split()
    given = command(name, tmp_path / "data", encoder, tmp_path / "run", *more)
    given = given[:1] + given[3:]  # the plugin is loaded here
    monkeypatch.setattr(sys, "argv", ["fairseq-train", *map(str, given)])
    with pytest.raises(UsageError) as refused:
        cli_main()
    assert says.format(tmp_path) in str(refused.value)
    assert not list(tmp_path.glob("run/*.pt"))


def test_a_refusal_is_one_sentence(data, encoder, tmp_path):
    shutil.copytree(data / "multiple_choice", tmp_path / "data")
    (tmp_path / "data" / "valid.jsonl").unlink()
    refused = train("multiple_choice", tmp_path / "data", encoder, tmp_path / "run", check=False)
    assert refused.returncode == 1
    last = refused.stderr.strip().split("\n")[-1]
    assert last.startswith(f"error: {tmp_path}/data/valid.jsonl is not there; make it with")
    assert "Traceback" not in refused.stderr and not list(tmp_path.glob("run/*.pt"))
