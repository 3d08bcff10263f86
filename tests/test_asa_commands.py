"""Adversarial self-attention through the commands, on a few sentences."""

import json
import logging
import os
import re
import sys
from pathlib import Path

import pytest
import torch
from conftest import PLUGIN, ROOT, fairseq, train_in_two_processes
from corpora import builtin
from fairseq_cli.train import cli_main
from labelled import write_examples, write_vocabulary
from safetensors.torch import load_file
from shell import assert_refused, bash

from fairseq_ext import cli
from fairseq_ext.criterions.adversarial.masking_rates import read_masking_rates
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation import predictions
from fairseq_ext.training_logs import read_log

PAIRS = [
    [" ".join(re.findall(r"\w+|[^\w\s]", sentence.lower())) for sentence in pair]
    for pair in builtin()["train"][:60]
]
SENTENCES = [english for english, _ in PAIRS]
FLAGS = [
    *("--user-dir", str(PLUGIN)),
    *"--cpu --num-workers 0 --seed 1 --optimizer adam --lr 1e-3 --lr-scheduler fixed".split(),
    *"--log-format json --log-interval 1 --no-epoch-checkpoints --batch-size 8".split(),
]
SIZES = "--{0}-layers 3 --{0}-embed-dim 32 --{0}-ffn-embed-dim 48 --{0}-attention-heads 4"


def saved(run):
    return torch.load(run / "checkpoint_last.pt", weights_only=False)


def train(data, run, updates, *flags):
    """`fairseq-train` for some updates, its log kept."""
    where = ["--save-dir", run, "--max-update", updates]
    done = fairseq("train", data, *FLAGS, *where, *flags)
    with (run / "train.log").open("a") as log:
        log.write(done.stdout + done.stderr)


def logged(run, kind="train_inner"):
    return [record.values for record in read_log(run) if record.kind == kind]


def of_asa(values):
    return {name for name in values if name.startswith("asa")}


LAYERS = {"asa_masked", *(f"asa_masked_{layer}" for layer in range(3))}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Text in vocabulary/bin, a corpus in translation, examples in two folders."""
    folder = tmp_path_factory.mktemp("asa")
    words = sorted({word for sentence in SENTENCES for word in sentence.split()})
    write_vocabulary(folder / "vocabulary", words)
    for split, some in (("train", PAIRS[:48]), ("valid", PAIRS[48:])):
        english, german = ("\n".join(side) + "\n" for side in zip(*some, strict=True))
        for name, text in ((split, english), (f"{split}.en", english), (f"{split}.de", german)):
            (folder / name).write_text(text, encoding="utf-8")
        examples = {
            "classes": [{"text": s, "label": str(s.endswith("?"))} for s, _ in some],
            "tags": [
                {"words": s.split(), "tags": ["B-x" if len(w) < 4 else "O" for w in s.split()]}
                for s, _ in some
            ],
        }
        for name, lines in examples.items():
            (folder / name).mkdir(exist_ok=True)
            write_examples(folder / name / f"{split}.jsonl", lines)
    words, mono = folder / "vocabulary", ("--only-source", "--srcdict")
    for out, *flags in (
        (words / "bin", *mono, words / "dict.txt"),
        (folder / "translation", *"-s de -t en --joined-dictionary".split()),
    ):
        parts = ["--trainpref", folder / "train", "--validpref", folder / "valid"]
        fairseq("preprocess", *parts, "--destdir", out, *flags)
    return folder


# Pre-training.

ENCODER = f"--arch roberta_asa_tiny {SIZES.format('encoder')}".split()
ON_TEXT = "--task masked_lm --criterion masked_lm_asa --tokens-per-sample 48".split()
ON_TEXT += ["--sample-break-mode", "eos"]


def pretrain(place, run, updates, *flags):
    return train(place / "vocabulary" / "bin", run, updates, *ENCODER, *ON_TEXT, *flags)


@pytest.fixture(scope="module")
def pretrained(place, tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("pretrained")
    pretrain(place, run, 8)
    return run


def test_pretraining(pretrained):
    """What is logged, and that adversaries learn; validation knows nothing of them."""
    lines = logged(pretrained)
    assert len(lines) == 8
    assert all(of_asa(line) == LAYERS | {"asa_divergence"} for line in lines)
    assert all(0 <= line[name] <= 1 for line in lines for name in LAYERS)
    assert len({line["asa_masked"] for line in lines}) > 4
    for line in logged(pretrained, "valid"):
        assert "loss" in line and not of_asa(line)
    biases = [x for name, x in saved(pretrained)["model"].items() if "adversary.query.bias" in name]
    assert len(biases) == 3 and all(bias.abs().max() > 1e-3 for bias in biases)


@pytest.mark.slow
@pytest.mark.processes
def test_two_processes_equal_one(place, tmp_path):
    """Which has the updates of two batches, and checkpoints activations."""
    same = "--dropout 0 --attention-dropout 0 --disable-validation --optimizer sgd --lr 0.05"
    one = ["--update-freq", "2", "--checkpoint-activations", *same.split()]
    pretrain(place, tmp_path / "one", 3, *one)
    flags = [flag for flag in (*FLAGS, *ENCODER, *ON_TEXT, *same.split()) if flag != "--cpu"]
    where = ["--save-dir", tmp_path / "two", "--max-update", 3]
    train_in_two_processes(place / "vocabulary" / "bin", *flags, *where)
    states = [saved(tmp_path / name)["model"] for name in ("one", "two")]
    torch.testing.assert_close(*states, atol=2e-5, rtol=1e-4)
    moved = states[0]["encoder.sentence_encoder.layers.2.self_attn.adversary.query.bias"]
    assert moved.abs().max() > 1e-3  # from 0


def test_exports_have_no_adversaries(place, pretrained, tmp_path):
    checkpoint = pretrained / "checkpoint_last.pt"
    words = ["--vocabulary", str(place / "vocabulary")]
    cli.main(["export-hf", str(checkpoint), str(tmp_path / "out"), *words])
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert tensors and not [name for name in tensors if "adversary" in name]
    ours = saved(pretrained)["model"]["encoder.sentence_encoder.layers.1.fc1.weight"]
    assert any(ours.shape == x.shape and torch.equal(ours, x) for x in tensors.values())


# Fine-tuning.


def finetuning(place, pretrained, *flags, task="sentence_classification"):
    """Arguments of `fairseq-train`, but for those of every training."""
    data = place / ("tags" if task == "sequence_tagging" else "classes")
    given = ["--task", task, "--vocabulary", place / "vocabulary", "--finetune-from-model"]
    return data, *given, pretrained / "checkpoint_last.pt", *flags


def finetune(place, pretrained, run, updates, *flags, **options):
    data, *given = finetuning(place, pretrained, *flags, **options)
    train(data, run, updates, *given)


@pytest.fixture
def here(monkeypatch, caplog):
    """Trains in this process, into which the plugin is loaded; gives what it logs."""

    def train_here(data, run, updates, *flags):
        caplog.clear()
        for name in (None, "fairseq"):  # which predict silences
            caplog.set_level(logging.INFO, name)
        where = ["--save-dir", run, "--max-update", updates]
        given = ["fairseq-train", data, *FLAGS[2:], *where, *flags]
        monkeypatch.setattr(sys, "argv", list(map(str, given)))
        cli_main()
        return [json.loads(r.message) for r in caplog.records if r.name == "train_inner"]

    return train_here


WITH_ASA = "--arch roberta_asa --criterion sentence_prediction_asa".split()


@pytest.fixture(scope="module")
def tuned(place, pretrained, tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("tuned")
    finetune(place, pretrained, run, 6, *WITH_ASA)
    return run


def test_an_encoder_is_fine_tuned_without_adversaries(place, pretrained, tmp_path):
    """As in the paper's Table 1. They are left behind, all else is taken over."""
    plain = "--arch roberta_una --criterion sentence_classification --lr 0".split()
    finetune(place, pretrained, tmp_path, 1, *plain)
    before, after = saved(pretrained)["model"], saved(tmp_path)["model"]
    encoder = {name for name in after if not name.startswith("task_head.")}
    assert not [name for name in encoder if "adversary" in name] and len(encoder) > 40
    assert all(torch.equal(after[name], before[name]) for name in encoder)
    assert not of_asa(logged(tmp_path)[0])


def test_fine_tuning_with_adversaries(tuned, pretrained):
    lines = logged(tuned)
    assert len(lines) == 6
    assert all(of_asa(line) == LAYERS | {"asa_divergence"} for line in lines)
    assert {"accuracy", "loss", "f1"} <= logged(tuned, "valid")[0].keys()
    assert not of_asa(logged(tuned, "valid")[0])
    before, after = saved(pretrained)["model"], saved(tuned)["model"]
    for name in (name for name in after if "adversary" in name):  # 6 steps of Adam on
        assert 1e-5 < (after[name] - before[name]).abs().max() < 7e-3


def test_predictions_are_those_without_adversaries(tuned, place, tmp_path, capsys):
    average = tmp_path / "average.pt"
    cli.main(["average", str(tuned / "checkpoint_last.pt"), "--output", str(average)])
    assert not [n for n in torch.load(average, weights_only=True)["model"] if "adversary" in n]
    said = []
    for checkpoint in (tuned / "checkpoint_last.pt", average):
        capsys.readouterr()
        given = ["--input", place / "valid.en", "--cpu", "--json"]
        cli.main(["predict", str(checkpoint), *map(str, given)])
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    shares = [json.loads(line)["probability"] for line in said[0].split("\n")[:-1]]
    assert len(shares) == 12 and len(set(shares)) > 6


def test_tagging(place, pretrained, tmp_path):
    flags = "--arch roberta_asa --asa-layers upper --criterion sequence_tagging_asa".split()
    finetune(place, pretrained, tmp_path, 2, *flags, task="sequence_tagging")
    upper = {"asa_divergence", "asa_masked", "asa_masked_1", "asa_masked_2"}
    assert all(of_asa(line) == upper for line in logged(tmp_path))
    assert "f1" in logged(tmp_path, "valid")[0]


def test_the_released_code_as_one_option(place, pretrained, tmp_path):
    """Rows have 48 tokens, for which the encoder has positions; predictions need none of it."""
    flags = "--arch roberta_asa --criterion sequence_tagging_asa --asa-preset released".split()
    run = {"task": "sequence_tagging"}
    finetune(place, pretrained, tmp_path, 2, *flags, "--asa-padded-length", 48, **run)
    lines = logged(tmp_path)
    assert len(lines) == 2 and all(of_asa(line) == LAYERS | {"asa_divergence"} for line in lines)
    checkpoint, text = str(tmp_path / "checkpoint_last.pt"), str(place / "valid.en")
    cli.main(["predict", checkpoint, "--cpu", "--input", text])


@pytest.mark.parametrize(
    ("baseline", "told"),
    [
        ("two_pass", {"asa_divergence"}),
        ("bernoulli", {"asa_divergence", "asa_masked"}),
        ("scheduled", {"asa_divergence", "asa_masked"}),
        ("magnitude", {"asa_divergence", "asa_masked"}),
        ("freelb", {"asa_gain"}),
        ("smart", {"asa_divergence"}),
    ],
)
def test_baselines(place, pretrained, tmp_path, here, baseline, told):
    flags = ["--arch", "roberta_una", "--criterion", "sentence_prediction_asa"]
    flags += ["--asa-baseline", baseline, *(["--asa-log", pretrained] * (baseline == "scheduled"))]
    data, *given = finetuning(place, pretrained, *flags)
    lines = here(data, tmp_path, 3, *given)
    assert all(of_asa(line) == told for line in lines) and len(lines) == 3
    assert not [name for name in saved(tmp_path)["model"] if "adversary" in name]
    if baseline == "scheduled":
        begun = logged(pretrained)[0]["asa_masked"]
        assert float(lines[0]["asa_masked"]) == pytest.approx(begun, abs=0.1)
    if baseline == "smart":
        mean = saved(tmp_path)["task_state"]["smart_mean"]
        assert mean.keys() <= saved(tmp_path)["model"].keys()
        average = tmp_path / "average.pt"
        cli.main(["average", str(tmp_path / "checkpoint_last.pt"), "--output", str(average)])
        assert "smart_mean" not in torch.load(average, weights_only=True)["task_state"]


# Translation.

TRANSLATE = "--task translation -s de -t en --criterion label_smoothed_cross_entropy_asa".split()
TRANSLATE += "--label-smoothing 0.1 --asa-sample --arch transformer_asa_tiny".split()
TRANSLATE += "--share-all-embeddings --lr 5e-3".split()
TRANSLATE += [*SIZES.format("encoder").split(), *SIZES.format("decoder").split()]


@pytest.fixture(scope="module")
def translator(place, tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("translator")
    train(place / "translation", run, 20, *TRANSLATE)
    return run


def test_resuming_is_exact(translator, place, tmp_path):
    """From within an epoch, with dropout and masks by chance."""
    for updates in (9, 20):
        train(place / "translation", tmp_path, updates, *TRANSLATE)
    ours, theirs = (
        [{name: line[name] for name in of_asa(line)} for line in logged(run)]
        for run in (tmp_path, translator)
    )
    assert ours == theirs and len(ours) == 20
    assert all(line.keys() == LAYERS | {"asa_divergence"} for line in ours)
    states = [saved(run)["model"] for run in (tmp_path, translator)]
    torch.testing.assert_close(*states, atol=0, rtol=0)


def test_translations_are_those_without_adversaries(translator, place):
    found = []
    without = {"_name": "transformer_una_tiny", "arch": "transformer_una_tiny"}
    for overrides in ({}, without | {"asa_layers": "none"}):
        done = fairseq(
            *("generate", place / "translation", "--user-dir", PLUGIN, "--cpu", "--beam", 3),
            *("--path", translator / "checkpoint_last.pt", "--gen-subset", "valid"),
            *("--max-len-b", 12, "--model-overrides", str(overrides)),
        )
        found.append(sorted(re.findall(r"^[HP]-.*", done.stdout, re.M)))
    assert found[0] == found[1] and len(found[0]) == 24
    assert len({line.split("\t")[-1] for line in found[0]}) > 12


# Refused at start-up, before anything is read or written.


PLAIN = "--criterion sentence_classification"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ([*WITH_ASA, "--asa-alpha=-1"], "--asa-alpha is -1; give a number from 0 upwards"),
        ([*WITH_ASA, "--asa-preset", "released"], "128, and the encoder has 48 positions; give"),
        (
            [*WITH_ASA, "--asa-preset", "released", "--asa-divergence", "kl"],
            "--asa-divergence kl contradicts --asa-preset released; leave out one of them",
        ),
        ([*WITH_ASA, "--arch", "roberta_una"], "needs an architecture with adversaries; give"),
        (
            [*WITH_ASA, "--asa-baseline", "scheduled"],
            "--asa-baseline scheduled takes its rates from",
        ),
        (
            [*WITH_ASA, "--asa-baseline", "two_pass"],
            "prediction_asa does not train adversaries",
        ),
        (
            [*WITH_ASA, "--regression-loss", "pearson"],
            "--regression-loss pearson has no effect",
        ),
        (
            "--arch roberta_una --criterion sentence_prediction_ag --freeze-encoder".split(),
            "_ag of",
        ),
        (
            "--arch roberta_una --criterion sentence_prediction_ag --freeze-encoder "
            "--pooling attention".split(),
            "_ag of",
        ),
        ([*WITH_ASA, "--quant-noise-scalar", "0.1"], "--quant-noise-scalar quantises plain"),
        ([*WITH_ASA, "--sinkhorn-sweeps", "2"], "--sinkhorn-sweeps 2 has no effect"),
        ([*WITH_ASA, "--freeze-encoder"], "in a frozen encoder; leave out --freeze-encoder"),
        (f"--arch roberta_asa {PLAIN}".split(), "--criterion sentence_classification does not"),
        (f"--arch roberta_una --asa-layers 1,9 {PLAIN}".split(), "--asa-layers is '1,9'; give"),
    ],
)
def test_refusals(place, pretrained, tmp_path, here, flags, says):
    data, *given = finetuning(place, pretrained, *flags)
    with pytest.raises(UsageError) as refused:
        here(data, tmp_path / "run", 2, *given)
    assert says in str(refused.value)
    assert not list(tmp_path.glob("run/*.pt"))


def test_a_refusal_is_one_sentence(place, tmp_path):
    where = ["--save-dir", tmp_path / "run", "--max-update", 2]
    text = [place / "vocabulary" / "bin", *FLAGS, *ENCODER, *ON_TEXT, *where]
    refused = fairseq("train", *text, "--asa-tau=-0.5", check=False)
    assert refused.returncode == 1 and "Traceback" not in refused.stderr
    last = refused.stderr.strip().split("\n")[-1]
    assert last.startswith("error: --asa-tau is -0.5; give a number from 0 upwards")
    assert not list(tmp_path.glob("run/*.pt"))


def test_an_unknown_baseline(place, pretrained, tmp_path, here):
    data, *given = finetuning(place, pretrained, *WITH_ASA, "--asa-baseline", "chance")
    with pytest.raises(UsageError, match="--asa-baseline is 'chance', which it does not take; "):
        here(data, tmp_path / "run", 2, *given)


# The recipe.


def recipe(out, *arguments):
    return bash(ROOT / "scripts" / "asa.sh", *arguments[:-1], "--out", out, *arguments[-1])


@pytest.mark.recipe
def test_the_recipe_of_fine_tuning(place, pretrained, tmp_path):
    out, spaced = tmp_path / "its runs", tmp_path / "an encoder"
    spaced.symlink_to(pretrained)
    checkpoint = spaced / "checkpoint_last.pt"
    few = "--seeds 1 --epochs 1 --lr 1e-3 -- --max-update 2 --cpu --tokens-per-sample 48".split()
    places = ["--vocabulary", place / "vocabulary", "--data", place / "classes"]
    variants = ["--variants", "naive bernoulli-.05 asa scheduled"]
    alone = ["--asa", "--asa-tau .6"]
    done = recipe(out, "finetune", "rte", checkpoint, *places, *variants, *alone, few)
    assert done.returncode == 0, done.stderr
    names = re.findall(r"^(\S+) +1 +[\d,]+ +2 ", done.stdout, re.M)
    assert names == ["naive", "bernoulli-.05", "asa", "scheduled"]
    cfg = {name: saved(out / name / "seed-1")["cfg"] for name in names}
    assert {name: each["model"]["asa_layers"] for name, each in cfg.items()} == {
        **dict.fromkeys(names, "none"),
        "asa": "all",
    }
    assert cfg["asa"]["criterion"]["asa_tau"] == 0.6
    assert cfg["bernoulli-.05"]["criterion"]["asa_rate"] == 0.05
    assert cfg["scheduled"]["criterion"]["asa_log"] == str(out / "asa" / "seed-1")
    assert {each["optimization"]["clip_norm"] for each in cfg.values()} == {0.0}
    assert len(read_masking_rates(cfg["scheduled"]["criterion"]["asa_log"])[0]) == 2  # of 2 updates
    assert (out / "masked.png").read_bytes().startswith(b"\x89PNG")
    share = logged(out / "asa" / "seed-1", "train")[-1]["asa_masked"]
    assert f"asa: {share:.3f} of all; from the lowest layer " in done.stdout


@pytest.mark.recipe
@pytest.mark.slow
def test_the_recipe_of_tau(place, pretrained, tmp_path):
    checkpoint = pretrained / "checkpoint_last.pt"
    places = ["--vocabulary", place / "vocabulary", "--data", place / "classes"]
    few = "--seeds 1 --epochs 1 -- --max-update 2 --cpu --tokens-per-sample 48".split()
    done = recipe(tmp_path, "tau", "rte", checkpoint, *places, few)
    assert done.returncode == 0, done.stderr
    names = re.findall(r"^(\S+) +1 +[\d,]+ +2 ", done.stdout, re.M)
    assert names == ["tau-.3", "tau-.6", "tau-1"]
    taus = [saved(tmp_path / name / "seed-1")["cfg"]["criterion"]["asa_tau"] for name in names]
    assert taus == [0.3, 0.6, 1]
    assert (tmp_path / "masked.png").read_bytes().startswith(b"\x89PNG")


SHORT = ["--epochs", 1, "--", "--max-update", 2, "--cpu", "--tokens-per-sample", 48]


@pytest.mark.recipe
@pytest.mark.slow
def test_the_recipe_chooses_rate_and_tau(place, pretrained, tmp_path):
    """Every tenth example is held out to choose by; the second call trains nothing."""
    places = ["--vocabulary", place / "vocabulary", "--data", place / "classes"]
    given = ["choose", "rte", pretrained / "checkpoint_last.pt", *places, "--examples", 40]
    done = recipe(tmp_path, *given, ["--lr", "1e-4", "--taus", ".3 3", *SHORT])
    assert done.returncode == 0, done.stderr
    every = (place / "classes" / "train.jsonl").read_text().split("\n")[:-1]
    left = [line for number, line in enumerate(every, 1) if number % 10]
    for name, wanted in (
        ("train", [left[n * len(left) // 40] for n in range(40)]),
        ("valid", every[9::10]),
    ):
        lines = (tmp_path / "examples-40" / f"{name}.jsonl").read_text().split("\n")
        assert lines[:-1] == wanted, name
    best = []
    for side, names in (
        ("lr", [f"naive-{rate}" for rate in ("0.0001", "0.0002", "0.0004", "0.0008")]),
        ("tau", ["asa-.3", "asa-3"]),
    ):
        runs = [tmp_path / side / name / "seed-1" for name in names]
        scores = predictions.measure("predicted.valid.accuracy", runs)[0].values
        best.append(max(runs, key=scores.__getitem__).parts[-2].partition("-")[2])
        assert not logged(runs[0], "valid")
    assert (tmp_path / "chosen.txt").read_text() == "lr {}\ntau {}\n".format(*best)
    cfg = saved(tmp_path / "tau" / "asa-3" / "seed-1")["cfg"]
    assert cfg["optimization"]["lr"] == [float(best[0])] and cfg["criterion"]["asa_tau"] == 3
    again = recipe(tmp_path, *given, ["--lr", "1e-4", "--taus", ".3 3", *SHORT])
    assert "4 of 4 runs" in again.stdout and "2 of 2 runs" in again.stdout, again.stdout


@pytest.mark.recipe
@pytest.mark.slow
def test_the_recipe_with_what_was_chosen(place, pretrained, tmp_path):
    """Beside R-Drop and the released code's settings, by the last epoch, on another corpus too."""
    out, variants = tmp_path / "out", "naive two_pass rdrop asa-released asa-chosen scheduled"
    variants += " two_pass-released"
    (tmp_path / "data-bin").mkdir()
    (tmp_path / "data-bin" / "paws-wiki").symlink_to(place / "classes")
    (tmp_path / "chosen.txt").write_text("lr 4e-05\ntau 3\n")
    done = bash(
        *(ROOT / "scripts" / "asa.sh", "finetune", "rte", pretrained / "checkpoint_last.pt"),
        *("--vocabulary", place / "vocabulary", "--data", place / "classes", "--out", out),
        *("--variants", variants, "--seeds", 2, "--chosen", tmp_path / "chosen.txt", "--last"),
        *(
            "--asa",
            "--asa-penalty padded --asa-padded-length 48",
            "--transfer",
            "paws-wiki",
            *SHORT,
        ),
        FAIRSEQ_EXT_PLACE=str(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    cfg = {name: saved(out / name / "seed-2")["cfg"] for name in variants.split()}
    assert {each["optimization"]["lr"][0] for each in cfg.values()} == {4e-5}
    assert cfg["rdrop"]["criterion"]["rdrop_alpha"] == 1
    assert cfg["asa-chosen"]["criterion"]["asa_tau"] == 3
    assert cfg["asa-released"]["criterion"]["asa_preset"] == "released"
    assert cfg["two_pass-released"]["criterion"]["asa_divergence"] == "symmetric"
    assert cfg["scheduled"]["criterion"]["asa_log"] == str(out / "asa-chosen" / "seed-2")
    assert not logged(out / "naive" / "seed-1", "valid")
    for side in ("naive", "two_pass", "two_pass-released"):
        for score in ("valid.accuracy", "paws-wiki.mcc"):
            said = f"predicted.{score} against {side}: paired bootstrap over seed-1, seed-2"
            assert said in done.stdout
    for name in ("asa-released", "asa-chosen"):
        assert re.search(rf"^{name}: 0\.\d+ of all; from the lowest layer ", done.stdout, re.M)


@pytest.mark.slow
@pytest.mark.recipe
def test_the_recipe_of_pre_training(place, pretrained, tmp_path):
    checkpoint = pretrained / "checkpoint_last.pt"
    few = ["--seeds", 1, "--updates", 2, "--", "--cpu", "--batch-size", 8]
    data = ["--data", place / "vocabulary" / "bin"]
    flags = [*few, *ENCODER[2:], *ON_TEXT[4:]]
    done = recipe(tmp_path, "pretrain", checkpoint, *data, flags)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^(\S+) +1 +[\d,]+ +2 ", done.stdout, re.M) == ["plain", "asa"]
    assert "asa_masked_2" in (tmp_path / "asa" / "seed-1" / "train.log").read_text()


@pytest.mark.parametrize(
    ("corpus", "transfer", "said"),
    [
        ("quora", "sts", "--transfer is 'sts', a corpus for sentence_regression"),
        ("quora", "parws", "The corpus is 'parws'"),
        ("squad-1.1", "squad-2.0", "--transfer is not for span_extraction"),
    ],
)
def test_transfer_is_to_a_corpus_of_the_same_task(corpus, transfer, said):
    script = ROOT / "scripts" / "asa.sh"
    assert_refused(bash(script, "finetune", corpus, "no.pt", "--transfer", transfer), said)


def test_transfer_is_to_a_corpus_of_the_same_labels(place, pretrained, tmp_path):
    """A label that training lacks is refused before anything is trained."""
    other = tmp_path / "data-bin" / "paws-wiki"
    other.mkdir(parents=True)
    (other / "valid.jsonl").write_text(json.dumps({"text": "a", "label": "maybe"}) + "\n")
    refused = bash(
        *(ROOT / "scripts" / "asa.sh", "finetune", "rte", pretrained / "checkpoint_last.pt"),
        *("--vocabulary", place / "vocabulary", "--data", place / "classes"),
        *("--out", tmp_path / "out", "--transfer", "paws-wiki"),
        FAIRSEQ_EXT_PLACE=str(tmp_path),
    )
    assert_refused(refused, "paws-wiki/valid.jsonl has the label 'maybe', which ")
    assert not (tmp_path / "out").exists()


STUB = """#!/bin/sh
echo "$@" >>"$CALLS"
case "$*" in *corpora\\ --list) echo wnut-17 sequence_tagging ;; esac
while [ $# -gt 0 ]; do
  case $1 in --output) echo >"$2" ;; esac
  shift
done
"""


def run_in_words(folder, *given):
    """Run the recipe on folder/data, and return the calls of Python; nothing is trained."""
    calls, stub = folder / "calls", folder / "bin" / "python"
    stub.parent.mkdir()
    stub.write_text(STUB)
    stub.chmod(0o755)
    (folder / "out").mkdir()
    done = bash(
        *(ROOT / "scripts" / "asa.sh", *given, "--data", folder / "data", "--out", folder / "out"),
        PATH=f"{stub.parent}:{os.environ['PATH']}",
        CALLS=str(calls),
    )
    assert done.returncode == 0, done.stderr
    return calls.read_text().split("\n")


def test_tagging_as_released_has_a_control_with_its_divergence(tmp_path):
    """The table begins with F1 of tokens, which is the paper's."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text("{}\n")
    variants = ["--variants", "naive two_pass two_pass-released", "--last", "--seeds", 2]
    calls = run_in_words(tmp_path, "finetune", "wnut-17", "encoder.pt", *variants)
    sweep = next(line for line in calls if "cli sweep" in line)
    two_pass = "sequence_tagging_asa --asa-baseline two_pass"
    assert f"--variant two_pass=--criterion {two_pass} --variant" in sweep
    assert f"{two_pass} --asa-divergence symmetric --asa-tagging tokens " in sweep
    tables = [line for line in calls if "cli table" in line]
    both = "--metric predicted.valid.token_f1 predicted.valid.f1"
    assert both in tables[0] and "--baseline two_pass-released" in tables[2]


@pytest.mark.parametrize("seeds", [1, 2])
def test_translations_are_compared_with_two_passes_too(tmp_path, seeds):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "test.de-en.en.idx").touch()
    calls = run_in_words(tmp_path, "translate", "--seeds", seeds)
    tables = [line for line in calls if "cli table" in line]
    found = [re.findall(r"--test t|--baseline \w+", line) for line in tables]
    assert found == ([[]] if seeds == 1 else [["--test t"], ["--test t", "--baseline two_pass"]])
    assert all("--gen-subset test --target-lang en" in line for line in tables)


@pytest.mark.parametrize(
    ("variants", "said"),
    [
        ("naive scheduled", "--variants has scheduled without asa"),
        ("naive asa-chosen", "--variants has asa-chosen without --chosen"),
        ("naive alum", "--variants has 'alum'"),
        ("naive bernoulli-2", "--asa-rate is 2; give a number from 0 to 1"),
        ("naive asa", "cannot train adversaries in a frozen encoder"),
    ],
)
def test_variants_that_there_are_not(place, pretrained, tmp_path, variants, said):
    """Or not with such flags; before any is trained."""
    places = ["--vocabulary", place / "vocabulary", "--data", place / "classes"]
    checkpoint = pretrained / "checkpoint_last.pt"
    given = [
        "finetune",
        "rte",
        checkpoint,
        *places,
        ["--variants", variants, "--", "--tokens-per-sample", 48, "--freeze-encoder"],
    ]
    assert_refused(recipe(tmp_path / "out", *given), said)
    assert not (tmp_path / "out").exists()
