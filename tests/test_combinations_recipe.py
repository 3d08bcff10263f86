"""The recipe of combinations, shrunk: what it trains, in a table."""

import re

import pytest
from conftest import ROOT
from corpora import write_corpus
from shell import assert_refused, bash
from variants import PAPER_PAIRS as PAIRS
from variants import PAPERS as MECHANISMS

from fairseq_ext.safe_loading import load_checkpoint

pytestmark = pytest.mark.recipe

SCRIPT = ROOT / "scripts" / "combinations.sh"


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
    [("plain dna+rols", ["'rols'", "plain, ag, dna"]), ("dna+hna", ["'dna+hna'", "in one way"])],
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
