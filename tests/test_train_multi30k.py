"""The recipe of small Transformers on Multi30k, shrunk: averaged checkpoints, scored."""

import re

import pytest
from conftest import ROOT
from corpora import write_corpus
from shell import bash

pytestmark = pytest.mark.recipe


def test_averaged_models_in_a_table(tmp_path):
    corpora = write_corpus(tmp_path / "corpora")
    data = tmp_path / "data"
    prepared = bash(
        *(ROOT / "scripts/prepare_multi30k.sh", data, "--merges", 200),
        FAIRSEQ_EXT_CORPORA=str(corpora),
    )
    assert prepared.returncode == 0, prepared.stderr
    out = tmp_path / "out"
    command = [ROOT / "scripts/train_multi30k.sh", "--data", data, "--out", out, "--seeds", 1]
    shrunk = ["--", "--max-tokens", 2000, "--max-epoch", 3, "--train-subset", "valid"]
    done = bash(*command, "--variants", "una ag", *shrunk)
    assert done.returncode == 0, done.stderr
    for variant in ("una", "ag"):
        run = out / variant / "seed-1"
        assert "is the average of" in (run / "average.log").read_text()
        assert "averaged.pt" in (run / "generate-test.done").read_text()
    assert re.search(r"^una +1 +[\d,]+ +\d+ +[\d.]+", done.stdout, re.M), done.stdout
    again = bash(*command, "--variants", "una ag", *shrunk)
    assert "fairseq-train" not in again.stdout and "2 of 2 runs" in again.stdout
