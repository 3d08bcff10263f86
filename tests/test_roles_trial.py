"""scripts/roles_trial.sh: what it draws, chooses and compares, and the whole recipe."""

import os
import random
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from saved_state import save_state
from shell import assert_refused, bash

from fairseq_ext.data.annotations import Annotations
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.significance import paired_t
from fairseq_ext.safe_loading import load_checkpoint

sys.path.append(str(ROOT / "scripts"))
import roles_trial  # noqa: E402
from roles_trial import MIN_COUNT, ROLES, SHARED, SIDES, Corpus, tabulate  # noqa: E402

SCRIPT = ROOT / "scripts" / "roles_trial.sh"
FIVE = "rare,separator,dependency,major,relative"
WORDS = [f"{first}{second}" for first in "abcdefghijklm" for second in "nopqrstuvwx"]


def step(name, *words):
    return [*roles_trial.STEPS[name]([*map(str, words)])]


def read_flags(line):
    words = line.partition("=")[2].split()
    return dict(zip(words[::2], words[1::2], strict=True))


# The search.


@pytest.mark.parametrize("seed", [1, 2])
def test_settings_that_are_drawn(seed):
    """Six a side, none twice, of the values there are; a count only with the role rare."""
    lines = step("draw", seed, 6)
    names = [line.partition("=")[0] for line in lines]
    assert names == [f"{side}-{n}" for side in ("plain", "roles") for n in range(1, 7)]
    for side in SIDES:
        drawn = [read_flags(line) for line in lines if line.startswith(side)]
        assert len({tuple(flags.items()) for flags in drawn}) == 6
        for flags in drawn:
            expected = {*SHARED, ROLES} | ({MIN_COUNT} if "rare" in flags[ROLES] else set())
            assert flags.keys() == expected
            assert all(flags[name] in (SHARED | SIDES[side])[name] for name in flags)


def test_draws_are_those_of_the_seed():
    """Whatever else draws numbers."""
    first = step("draw", 1, 6)
    random.seed(7)
    assert step("draw", 1, 6) == first
    assert step("draw", 2, 6) != first
    assert step("draw", 1, 2) == [first[n] for n in (0, 1, 6, 7)]


def write_run(folder, scores, subsets="aside"):
    """Write a finished run; its scores are by subset those of each validation."""
    folder.mkdir(parents=True)
    lines = [
        f"{subset} | epoch 00{n} | accuracy {score} | num_updates {n}"
        for subset, each in scores.items()
        for n, score in enumerate(each, 1)
    ]
    lines.append("fairseq_cli.train | done training in 3.0 seconds")
    text = "".join(f"2026-01-01 01:01:01 | INFO | {line}\n" for line in lines)
    (folder / "train.log").write_text(text)
    config = {
        "model": {"_name": "roberta_roles"},
        "task": {"_name": "sentence_classification"},
        "common": {"seed": int(folder.name[-1])},
        "dataset": {"valid_subset": subsets},
        "checkpoint": {
            "best_checkpoint_metric": "accuracy",
            "maximize_best_checkpoint_metric": True,
        },
    }
    state = {"cfg": config, "extra_state": {"previous_training_time": 3.0}}
    save_state(folder / "checkpoint_last.pt", {}, {"w": torch.ones(1)}, **state)


def test_the_last_epoch_chooses(tmp_path):
    """The first of equal settings is chosen, not the one that was better before its end."""
    found = {"plain-1": [90, 70], "plain-2": [60, 80], "plain-3": [50, 80], "roles-1": [10, 20]}
    for name, scores in found.items():
        write_run(tmp_path / name / "seed-1", {"aside": scores})
    settings = [f"{name}=--lr {n}" for n, name in enumerate(found, 1)]
    assert step("choose", tmp_path, *settings) == [
        "# plain 70.00: --lr 1",
        "# plain 80.00: --lr 2",
        "# plain 80.00: --lr 3",
        "plain=--lr 2",
        "# roles 20.00: --lr 4",
        "roles=--lr 4",
    ]
    log = tmp_path / "roles-1" / "seed-1" / "train.log"
    log.write_text(log.read_text().replace("done training", "stopped"))
    with pytest.raises(UsageError, match="is not finished"):
        step("choose", tmp_path, *settings)


# The comparison of corpora.


def test_corrected_for_the_number_of_corpora():
    """By hand: the smallest p times 2, the other as it is or as large as that."""
    plain, roles = [1.0, 2.0, 3.0], [[2.0, 3.5, 4.2], [1.5, 1.5, 3.5]]
    text = tabulate("last epoch", [Corpus(f"c{n}", plain, each) for n, each in enumerate(roles)])
    rows = [re.split(r"  +", line) for line in text.split("\n")[1:3]]
    p = [paired_t(each, plain).p for each in roles]
    assert p[0] < p[1] and 2 * p[0] < p[1]
    assert [float(row[-2]) for row in rows] == pytest.approx(p, abs=1e-4)
    assert [float(row[-1]) for row in rows] == pytest.approx([2 * p[0], p[1]], abs=1e-4)
    assert rows[0][:5] == ["c0", "3", "2.00 ± 1.00", "3.23 ± 1.12", "+1.23"]
    assert "corrected for 2 corpora (Holm)" in text


def test_last_and_best_epoch(tmp_path):
    """The best epoch is best on the first subset; the second one is scored."""
    for side, last in (("plain", 50), ("roles", 60)):
        for seed in (1, 2):
            scores = {"aside": [9, 8], "valid": [last + 20 + seed * (side == "roles"), last + seed]}
            write_run(tmp_path / "cr" / side / f"seed-{seed}", scores, "aside,valid")
    lines = step("compare", tmp_path / "cr")
    last, best = (line.split() for line in lines if line.startswith("cr "))
    assert lines[0].startswith("last epoch ") and [last[2], last[5], last[8]] == [
        *("51.50", "61.50", "+10.00")
    ]
    assert [best[2], best[5], best[8]] == ["70.00", "81.50", "+11.50"]
    (tmp_path / "cr" / "roles" / "seed-2").rename(tmp_path / "cr" / "roles" / "seed-3")
    with pytest.raises(UsageError, match="needs the same repetitions of all variants"):
        step("compare", tmp_path / "cr")


# The recipe.


def write_corpora(folder, rng):
    """Write CR and TREC of sentences of made words, and a treebank that nobody reads."""
    for name, labels, count in (("custrev.all", 2, 60), ("TREC.train.all", 6, 60)):
        lines = [f"{n % labels} {' '.join(rng.sample(WORDS, 9))} .\n" for n in range(count)]
        (folder / "sentclass").mkdir(parents=True, exist_ok=True)
        (folder / "sentclass" / name).write_text("".join(lines))
    test = [f"{n} {WORDS[n]} {WORDS[n + 1]}\n" for n in range(6)]
    (folder / "sentclass" / "TREC.test.all").write_text("".join(test))
    (folder / "ud-english-ewt").mkdir()
    for part in ("train", "dev"):
        (folder / "ud-english-ewt" / f"en_ewt-ud-{part}.conllu.gz").touch()
    return folder


STAND_IN = """
from types import SimpleNamespace as Part


def load(model, exclude):
    return Part(vocab=None, pipe=parse, pipe_labels={"parser": ["nsubj", "ROOT"]})


def parse(docs):
    for words in docs:
        places = [Part(i=place) for place in range(len(words))]
        for place, word in enumerate(places):
            word.head, word.dep_ = places[min(place + 1, len(places) - 1)], "nsubj"
        yield places


tokens = Part(Doc=lambda vocab, words: words)
"""


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    """Run the recipe in a folder of its own, with a stand-in for spaCy: each word depends on the
    next one.

    Only commands that parse see it, since a longer PYTHONPATH makes commands slow.
    """
    place, rng = tmp_path_factory.mktemp("trial"), random.Random(1)
    for name in ("python", "fairseq-ext"):
        more = f"""case "$*" in *spacy*) export PYTHONPATH="{place}:$PYTHONPATH" ;; esac"""
        program = place / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\n{more}\nexec "{shutil.which(name)}" "$@"\n')
        program.chmod(0o755)
    (place / "spacy.py").write_text(STAND_IN)
    (place / "parser" / "model-best").mkdir(parents=True)
    (place / "parser" / "scores.json").write_text('{\n  "dep_uas":0.75,\n  "dep_las":0.5\n}\n')
    rows = (f"{word} {' '.join(f'{rng.gauss(0, 1):.3f}' for _ in range(100))}\n" for word in WORDS)
    (place / "glove.txt").write_text("".join(rows))
    env = {
        "FAIRSEQ_EXT_CORPORA": str(write_corpora(place / "corpora", rng)),
        "FAIRSEQ_EXT_PLACE": str(place),
        "PATH": f"{place}/bin:{os.environ['PATH']}",
    }
    given = ["--vectors", place / "glove.txt", "--parser", place / "parser", "--out", place / "out"]
    given += ["--updates", 2, "--tries", 2, "--seeds", 2, "--folds", 2]

    def run(*arguments):
        done = bash(SCRIPT, *arguments, *given, "--", "--cpu", **env)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run.place = place
    return run


def read_options(run, part="model"):
    return load_checkpoint(str(run / "checkpoint_last.pt"))["cfg"][part]


@pytest.mark.slow
def test_search_and_trial(trial):
    """Both sides read the same vectors; what was validated on in the search chooses the epoch."""
    said, out = trial("trial", "--corpora", "trec"), trial.place / "out" / "trec"
    data = trial.place / "data-bin" / "roles-trial" / "trec"
    assert sorted(path.name for path in data.glob("*.annotations")) == [
        *("test.annotations", "train.annotations", "valid.annotations")
    ]
    chosen = [x for x in (out / "chosen.txt").read_text().split("\n") if x and x[0] != "#"]
    assert [line.partition("=")[0] for line in chosen] == ["plain", "roles"]
    assert len([*(out / "search").glob("*/seed-1/checkpoint_last.pt")]) == 4
    for line in chosen:
        side, flags = line.partition("=")[0], read_flags(line)
        for seed in (1, 2):
            options = read_options(out / side / f"seed-{seed}")
            assert options["encoder_roles"] == flags["--encoder-roles"]
            assert options["encoder_attention_heads"] == int(flags["--encoder-attention-heads"])
            assert options["dropout"] == float(flags["--dropout"])
        assert read_options(out / side / "seed-1", "task")["word_vectors"] == f"{data}/vectors.txt"
        subsets = read_options(out / side / "seed-1", "dataset")["valid_subset"]
        assert subsets == "valid,test"
    table = (trial.place / "out" / "table.txt").read_text()
    assert said.endswith(table) and re.search(r"^trec +2 ", table, re.M)
    share = re.search(r"^trec: vectors of 96 numbers for (\d+) of (\d+) words", table, re.M)
    assert 100 < int(share[1]) == int(share[2]) - 2  # the full stop and <mask> have none
    assert not {"done", "ready."} & {*trial("search", "--corpora", "trec").split()}  # all is there
    assert "parser, scores: dep_uas:0.75 dep_las:0.5\n" in table
    (data / "made-of").write_text("/other\n")
    with pytest.raises(AssertionError, match="made with these vectors and this parser: /other"):
        trial("search", "--corpora", "trec")


@pytest.mark.slow
def test_folds_ablation_and_control(trial):
    """A setting that was chosen is not searched again; every tenth example is in no fold."""
    out, sides = trial.place / "out" / "cr", "--encoder-attention-heads 6 --lr 1e-3 --encoder-roles"
    out.mkdir(parents=True)
    few = "separator,dependency,major,relative"
    (out / "chosen.txt").write_text(f"# plain 1\nplain={sides} none\nroles={sides} {few}\n")
    trial("ablate", "--corpora", "cr")
    assert not (out / "search").exists()
    data = trial.place / "data-bin" / "roles-trial" / "cr"
    whole = (trial.place / "data-bin" / "cr" / "train.jsonl").read_text().split("\n")[:-1]
    assert (data / "aside.jsonl").read_text().split("\n")[:-1] == whole[9::10]
    kept = [line for n, line in enumerate(whole) if n % 10 != 9]
    assert (data / "train.jsonl").read_text().split("\n")[:-1] == kept
    names = ["plain", "roles", "five", *(f"without-{role}" for role in FIVE.split(",")), "random"]
    runs = {path.parent.name for path in out.glob("*/fold-2")}
    assert runs == {*names}
    found = {name: read_options(out / name / "fold-2") for name in names}
    assert found["roles"]["encoder_roles"] == few
    assert found["five"]["encoder_roles"] == found["random"]["encoder_roles"] == FIVE
    assert found["without-major"]["encoder_roles"] == FIVE.replace("major", "none")
    task = read_options(out / "random" / "fold-2", "task")
    assert task["data"] == f"{data}-random" and task["word_vectors"] == f"{data}-random/vectors.txt"
    for split in ("train", "aside"):
        plain, mixed = (
            Annotations(each / f"{split}.annotations") for each in (data, Path(task["data"]))
        )
        assert len(plain) == len(mixed) and plain.lengths == mixed.lengths
        assert (plain.values != mixed.values).any()
        assert [plain.values[:, 2].sum()] == [mixed.values[:, 2].sum()]  # as many major relations
    for name, first in (("plain", "roles"), ("five", "without-rare"), ("random", "five")):
        assert f"\n{first}: difference " in (out / f"table-{name}.txt").read_text()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["tune"], ["PART is 'tune'", "search trial ablate"]),
        (["search", "trial"], ["2 parts are given"]),
        (["--corpora", "cr subj"], ["--corpora is 'subj'", "sst-2-sentences"]),
        (["--folds", "0"], ["--folds is '0'"]),
        (["--vectors", "/nowhere"], ["--vectors is '/nowhere'", "give an encoder or vectors"]),
    ],
)
def test_refused(given, said):
    assert_refused(bash(SCRIPT, *given), *said)
