"""The recipe for little text, on a few lines of the real corpora, and what counts as converged."""

import gzip
import math
import re
from pathlib import Path

import pytest
from conftest import ROOT
from shell import assert_refused, bash

from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.runs import Facts, Run
from fairseq_ext.files import read_lines
from fairseq_ext.safe_loading import load_checkpoint
from fairseq_ext.tools import convergence
from fairseq_ext.training_logs import Record

SCRIPT = ROOT / "scripts" / "low_resource.sh"
SHORT = "--layers 2 --seeds 1 --updates 4 --epochs 1 --vocabulary 300 --jobs 2".split()
LINES = {"yoruba-raw": 150, "oromo-raw": 150, "masakhaner2-yor": 300, "masakhanews-orm": 40}


@pytest.fixture(scope="module")
def few(corpora, tmp_path_factory) -> Path:
    """A folder with the first lines of each corpus, and a place that the recipes share."""
    folder = tmp_path_factory.mktemp("few")
    for name, count in LINES.items():
        (folder / name).mkdir()
        for path in (corpora / name).glob("*.gz"):
            kept = count if path.name.startswith("train") else count // 3
            lines = [f"{line}\n" for line, _ in zip(read_lines(path), range(kept), strict=False)]
            with gzip.open(folder / name / path.name, "wt", encoding="utf-8") as file:
                file.writelines(lines)
    return folder


def recipe(few, *arguments):
    settings = {"FAIRSEQ_EXT_CORPORA": str(few), "FAIRSEQ_EXT_PLACE": str(few / "place")}
    return bash(SCRIPT, *arguments, *SHORT, **settings)


def settings_of(run: Path) -> dict:
    return load_checkpoint(str(run / "checkpoint_last.pt"))["cfg"]


def rows(folder: Path) -> list[str]:
    return re.findall(r"^([\w+-]+) +\d ", (folder / "table.txt").read_text(), re.M)


@pytest.mark.slow
@pytest.mark.recipe
def test_from_raw_text_to_names(few):
    """Each side pre-trains at the rate of its search, and each encoder is fine-tuned in folds."""
    flags = ["--folds", 2, "--rates", "1e-3 2e-3"]
    done = recipe(few, "yoruba", *flags)
    assert done.returncode == 0, done.stderr
    out = few / "place" / "checkpoints" / "low_resource" / "yoruba"
    chosen = dict(line.split("+") for line in (out / "chosen.txt").read_text().splitlines())
    assert chosen == {"plain": "2e-3", "ag": "2e-3"}  # which learns more in two updates
    assert rows(out / "search") == ["plain+1e-3", "ag+1e-3", "plain+2e-3", "ag+2e-3"]
    assert settings_of(out / "search" / "ag+1e-3" / "seed-1")["model"]["encoder_layers"] == 4
    deep = out / "layers-2"
    assert rows(deep) == rows(deep / "masakhaner2-yor-joined") == ["plain", "ag"]
    for name, criterion in (("plain", "masked_lm"), ("ag", "masked_lm_ag")):
        trained = settings_of(deep / name / "seed-1")
        assert trained["criterion"]["_name"] == criterion
        assert trained["optimization"]["lr"] == [2e-3] and trained["model"]["encoder_layers"] == 2
        tuned = settings_of(deep / "masakhaner2-yor-joined" / name / "fold-2")
        encoder = tuned["checkpoint"]["finetune_from_model"]
        assert encoder == str(deep / name / "seed-1" / "checkpoint_last.pt")
    said = (deep / "converged.txt").read_text()
    assert re.fullmatch(r"(ag: 0 of 1 converged \(.*\)\n){2}", said.replace("plain:", "ag:"))
    assert "paired t-test over n = 2 (fold-1, fold-2)" in done.stdout
    again = recipe(few, "yoruba", *flags)
    assert again.returncode == 0 and "fairseq-train, log" not in again.stdout


@pytest.mark.slow
@pytest.mark.recipe
def test_from_raw_text_to_topics(few):
    """The Transformer of today and another rate, with the rates of an earlier search."""
    out = few / "place" / "checkpoints" / "low_resource" / "oromo"
    out.mkdir(parents=True)
    (out / "chosen.txt").write_text("plain+3e-3\nag+4e-3\n")
    names = ["today+ag", "rotary+1e-3"]
    done = recipe(few, "oromo", "--variants", " ".join(names))
    assert done.returncode == 0, done.stderr
    assert not (out / "search").exists()
    today, rotary = (settings_of(out / "layers-2" / name / "seed-1") for name in names)
    assert today["model"]["norm"] == "rms" and today["criterion"]["_name"] == "masked_lm_ag"
    assert rotary["model"]["norm"] != "rms" and rotary["model"]["encoder_positions"] == "rotary"
    assert (today["optimization"]["lr"], rotary["optimization"]["lr"]) == ([4e-3], [1e-3])
    topics = out / "layers-2" / "masakhanews-orm"
    header = (topics / "table.txt").read_text().split("\n")[0].split()
    assert rows(topics) == names and header[4:6] == ["test.accuracy", "accuracy"]
    assert settings_of(topics / names[0] / "seed-1")["model"]["norm"] == "rms"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["filipino"], "LANGUAGE is 'filipino' and must be one of: yoruba oromo"),
        (["oromo", "train"], "PART is 'train' and must be one of: search pretrain finetune"),
        (["oromo", "--folds", "10"], "--folds is for yoruba"),
        (["yoruba", "--layers", "4,12"], "--layers is '4,12' and must be a positive number"),
        (["yoruba", "--variants", "plian"], "--variants has 'plian' and must have some of plain"),
        (["yoruba"], "FAIRSEQ_EXT_CORPORA is not set"),
    ],
)
def test_what_is_refused_before_the_text_is_prepared(arguments, said):
    assert_refused(bash(SCRIPT, *arguments), said)


def test_bits_by_frequencies(encoder_data):
    """By a loop over rows of 8 tokens, of which 7 are text."""
    data = encoder_data
    words = (data / "dict.txt").read_text().splitlines()
    names = ["<s>", "<pad>", "</s>", "<unk>", *(line.split()[0] for line in words)]
    counts = {}
    for part in ("train", "valid"):
        text = (data.parent / "encoded" / part).read_text().splitlines()
        tokens = [token for line in text for token in [*line.split(), "</s>"]]
        tokens += ["<s>"] * math.ceil(len(tokens) / 7)
        counts[part] = {name: tokens.count(name) for name in names}
    train, valid = counts["train"], counts["valid"]
    total, bits = sum(train.values()) + len(names), 0.0
    for name in names:
        bits -= valid[name] / sum(valid.values()) * math.log2((train[name] + 1) / total)
    assert convergence.measure_unigrams(data, 8) == pytest.approx(bits, abs=1e-9)


def test_runs_that_have_converged(monkeypatch):
    """From half a bit below; the best validation counts."""

    def run(number, losses, task="masked_lm"):
        settings = {"task._name": task, "task.data": "d", "task.tokens_per_sample": 8}
        records = [Record("valid", at, {"loss": loss}) for at, loss in enumerate(losses)]
        facts = Facts(1, 1, 1.0, settings)
        return Run(Path(f"v/seed-{number}"), "v", f"seed-{number}", facts, records)

    runs = {"v": [run(1, [9.4, 8.6]), run(2, [8.4, 8.5]), run(3, [8.51, 9])]}
    monkeypatch.setattr(convergence, "read_runs", lambda _: runs)
    monkeypatch.setattr(convergence, "measure_unigrams", lambda *_: 9.0)
    [line] = convergence.count_converged(["v"])
    assert line.startswith("v: 1 of 3 converged (8.600, 8.400, 8.510 bits; by frequencies 9.000")
    runs["v"].append(run(4, [1.0], "translation"))
    with pytest.raises(UsageError, match="v/seed-4 has the task translation, not masked_lm"):
        list(convergence.count_converged(["v"]))
