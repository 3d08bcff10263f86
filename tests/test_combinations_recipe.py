"""The recipes of combinations and of alternatives, shrunk: what they train, in tables."""

import re
import shlex
import sys
from itertools import chain

import pytest
from conftest import ROOT
from corpora import write_corpus
from shell import assert_refused, bash, lib
from variants import ALTERNATIVES, PAPERS, in_slot
from variants import PAPER_PAIRS as PAIRS
from variants import PAPERS as MECHANISMS

from fairseq_ext.safe_loading import load_checkpoint

sys.path.append(str(ROOT / "docs"))
from print_mechanisms import read_rows  # noqa: E402

pytestmark = pytest.mark.recipe

SCRIPT = ROOT / "scripts" / "combinations.sh"
EVERY = ROOT / "scripts" / "alternatives.sh"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    corpora, out = (tmp_path_factory.mktemp(name) for name in ("corpora", "data"))
    write_corpus(corpora)
    recipe = ROOT / "scripts" / "prepare_multi30k.sh"
    prepared = bash(recipe, out / "bin", FAIRSEQ_EXT_CORPORA=str(corpora))
    assert prepared.returncode == 0, prepared.stderr
    return out / "bin"


def test_a_plain_model_and_all_mechanisms_in_a_table(data, tmp_path):
    """Each of which has had its effect."""
    every = "+".join(name for name in MECHANISMS if name != "dna")
    command = [SCRIPT, "--data", data, "--out", tmp_path / "out", "--seeds", 1, "--updates", 2]
    done = bash(*command, "--jobs", 2, "--variants", f"plain {every}")
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^([\w+]+) +1 +[\d,]+ +2 ", done.stdout, re.M)
    assert rows == ["plain", every]
    runs = {name == every: tmp_path / "out" / name / "seed-1" for name in rows}
    for whether, run in runs.items():
        log = (run / "train.log").read_text()
        for said in ("ag_loss", "encoder0_u", "asa_divergence", "encoder0_gate0"):
            assert (f"| {said} " in log) == whether
        model = load_checkpoint(str(run / "checkpoint_last.pt"))["cfg"]["model"]
        assert (model["encoder_roles"] == "rare,separator,relative") == whether
        assert (model["encoder_gaussian_heads"] == "2") == whether
        assert model["encoder_attention_heads"] == 8


def test_the_default_is_all_pairs():
    """Those that are tested."""
    text = SCRIPT.read_text()
    library = (ROOT / "scripts" / "lib" / "study.sh").read_text()
    [names] = re.findall("^MECHANISMS='(.*)'$", library, re.M)
    assert names.split() == sorted(MECHANISMS, key=names.split().index)
    function = text[text.index("print_pairs() {") : text.index("print_variant()")]
    said = bash("-c", f"MECHANISMS='{names}'\nsay() {{ echo \"$*\"; }}\n{function}print_pairs")
    pairs = {frozenset(pair.split("+")) for pair in said.stdout.split()}
    assert pairs == set(map(frozenset, PAIRS)) and len(said.stdout.split()) == len(PAIRS)


@pytest.mark.parametrize(
    ("variants", "said"),
    [
        ("plain dna+rols", ["'rols'", "plain, dna, hna", "t5, rotary"]),
        ("dna+hna", ["'dna+hna'", "two of these give --encoder-normaliser"]),
        ("alibi+dna+rotary", ["two of these give --encoder-positions"]),
        ("gate+l0", ["two of these give --head-gate"]),
        ("asa+rdrop", ["'asa+rdrop'", "two second passes"]),
    ],
)
def test_variants_that_there_are_not(variants, said):
    assert_refused(bash(SCRIPT, "--variants", variants), *said)


def test_what_fairseq_would_refuse_is_refused_before_the_first_training(data, tmp_path):
    command = [
        SCRIPT,
        "--data",
        data,
        "--out",
        tmp_path / "out",
        "--variants",
        "plain gaussian+roles",
    ]
    done = bash(*command, "--", "--encoder-attention-heads", 4)
    assert_refused(done, "3 roles", "2 of its heads")
    assert not (tmp_path / "out").exists()


def test_alternatives_are_those_that_can_be_combined():
    """Under their names here or as a variant's choice; scores and mixers are nobody's closest."""
    said = bash(
        "-c", f'. "{ROOT}/scripts/lib/study.sh"; say "$ALTERNATIVES"; say "${{CLOSEST[*]}}"'
    )
    names, closest = (set(line.split()) for line in said.stdout.splitlines())
    rows = [row["variants"] for row in read_rows(ROOT) if "alternative_to" in row]
    assert names == {*chain(*rows)} >= ALTERNATIVES.keys()
    assert all(ALTERNATIVES.keys() & row for row in rows)
    assert closest == (names | PAPERS.keys()) - {"hna"} - in_slot("scorer") - in_slot("head_mixer")


@pytest.mark.parametrize(
    ("flags", "given"),
    [
        ("--fp16", ""),
        ("--fp16 --user-dir 'my ext' --lr 1", "--user-dir my ext "),
        ("--user-dir=my", "--user-dir=my "),
    ],
)
def test_analyses_know_the_users_package(flags, given):
    code = f"foreground() {{ say $*; }}; RUNS=(a/seed-1) REST=({flags}) data=d; describe_attention"
    done = lib(f"{code} --limit 3", "study")
    assert done.stdout.endswith(f"--sentences 0 --out a/seed-1/analysis {given}--limit 3\n")


@pytest.mark.slow
def test_every_alternative_is_one_that_fairseq_takes(data, tmp_path):
    """All are built before the first training; here the sweep then refuses a flag of its own."""
    done = bash(EVERY, "--data", data, "--out", tmp_path / "out", "--", "--save-dir", "x")
    assert_refused(done, "--save-dir stands in --variant")


@pytest.mark.slow
def test_the_table_of_alternatives(data, tmp_path):
    """It has what was trained, and a second one each mechanism with what is closest to it."""
    out, names = tmp_path / "out", ["plain", "dna", "sink"]
    command = [EVERY, "--data", data, "--out", out, "--seeds", 2, "--updates", 2, "--jobs", 2]
    done = bash(*command, "--variants", " ".join(names))
    assert done.returncode == 0, done.stderr
    table, closest = ((out / f"{name}.txt").read_text() for name in ("table", "table-dna"))
    assert re.findall(r"^([\w-]+) +2 +[\d,]+ +2 ", table, re.M) == names
    header = table.split("\n")[0]
    for title in ("BLEU", "chrF", "valid.nll_loss", "train.nll_avg", "updates-to.valid.nll_loss"):
        assert title in header
    for title in ("time-ratio", "analysis.encoder.explained_away", "analysis.encoder.entropy"):
        assert title in header
    assert "valid.nll_loss against plain: paired t-test over n = 2" in table
    assert "corrected for 2 comparisons (Holm)" in table
    assert re.findall(r"^([\w-]+) +2 ", closest, re.M) == ["dna", "sink"]
    assert "valid.nll_loss against dna: paired t-test" in closest
    assert {path.name for path in out.glob("table*")} == {"table.txt", "table-dna.txt"}
    assert {"bleu.png", "bleu.csv", "curves.png"} <= {path.name for path in out.iterdir()}
    for name in names:
        model = load_checkpoint(str(out / name / "seed-1" / "checkpoint_last.pt"))["cfg"]["model"]
        normaliser = {"plain": "softmax", "dna": "doubly"}.get(name, name)
        assert model["encoder_normaliser"] == normaliser and model["encoder_attention_heads"] == 8
    again = bash(*command[:6], 1, *command[7:], "--variants", "plain dna")
    assert "2 of 2 runs" in again.stdout and "fairseq-train" not in again.stdout
    assert re.findall(r"^([\w-]+) +1 ", (out / "table.txt").read_text(), re.M) == names[:2]


def test_flags_of_the_user_replace_those_of_variants(tmp_path):
    code = 'python() { printf "%s " "${@@Q}"; echo; }; foreground() { "$@"; }; seeds=1 jobs=1 '
    code += f"REST=(--hna-init .3 --user-dir 'my plugin') data=d out='{tmp_path}'; "
    done = lib(f"{code} study 'hna=--hna-init .1' una= -- --lr 1", "study")
    assert done.returncode == 0, done.stderr
    checked, started = map(shlex.split, done.stdout.splitlines())
    own = "--hna-init .3 --user-dir 'my plugin'"
    for given in (checked, started):
        variants = [each for each in given if each.startswith(("hna=", "una="))]
        flags = [shlex.split(each.partition("=")[2]) for each in variants]
        assert flags == [shlex.split(f"--hna-init .1 {own}"), shlex.split(own)]
        assert given[-2:] == ["--lr", "1"]
