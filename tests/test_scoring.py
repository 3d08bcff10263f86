"""Intervals of confidence of every metric, and BLEU with compounds split."""

import gzip
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from conftest import fairseq
from sacremoses import MosesTokenizer

from fairseq_ext import cli
from fairseq_ext.evaluation import corpus_scorers
from fairseq_ext.evaluation.metrics import METRICS
from fairseq_ext.evaluation.significance import confidence_interval

REFERENCES = ["Ein Mann, der schläft.", "Sie sagt: Ja!", "Zwei Hunde.", "Eine Kuh.", "Drei!"]
HYPOTHESES = ["Ein Mann, der läuft.", "Sie sagt: Nein!", "Zwei Hunde.", "Ein Kalb.", "Vier"]
KINDS = {name: kind for name, kind in METRICS.items() if kind.form != "sourced"}


# Intervals.


def naive_interval(scorer, numbers) -> list[float]:
    """Sentence by sentence; between the 25th and the 26th from either end of 1000."""
    rng, found = np.random.default_rng(12345), []
    for _ in range(1000):
        total = np.zeros_like(numbers[0])
        for sentence in rng.integers(len(numbers), size=len(numbers)):
            total = total + numbers[sentence]
        found.append(scorer.value(total))
    found.sort()
    return [
        found[24] + 0.975 * (found[25] - found[24]),
        found[974] + 0.025 * (found[975] - found[974]),
    ]


@pytest.mark.parametrize("name", KINDS)
def test_interval_is_that_of_a_loop(name):
    scorer = KINDS[name].make(False, "de")
    numbers = scorer.statistics(HYPOTHESES, REFERENCES)
    low, high = confidence_interval(numbers, scorer.value)
    assert [low, high] == pytest.approx(naive_interval(scorer, numbers))
    assert low <= scorer.value(numbers.sum(0)) <= high and low < high


def test_batches_of_sentences_have_the_statistics_of_all(monkeypatch):
    for name in ("bleu", "chrf++", "ter", "compound-split-bleu"):
        scorer = KINDS[name].make(False, "de")
        monkeypatch.setattr(corpus_scorers, "BATCH", 1000)
        together = scorer.statistics(HYPOTHESES, REFERENCES)
        monkeypatch.setattr(corpus_scorers, "BATCH", 2)
        assert (scorer.statistics(HYPOTHESES, REFERENCES) == together).all()
        assert len(together) == len(HYPOTHESES) and "nrefs:1" in scorer.signature()


def test_sacrebleu_keeps_the_ngrams_of_a_batch_alone(monkeypatch):
    """A limit of memory: it is given so many sentences at once, however many there are."""
    scorer, sizes = KINDS["chrf"].make(False, "de"), []
    extract = scorer.metric._extract_corpus_statistics
    monkeypatch.setattr(
        scorer.metric,
        "_extract_corpus_statistics",
        lambda lines, references: sizes.append(len(lines)) or extract(lines, references),
    )
    scorer.statistics(HYPOTHESES * 500, REFERENCES * 500)
    assert sizes == [1000, 1000, 500]


def test_interval_of_a_mean_is_nearly_that_of_the_normal_distribution():
    values = np.random.default_rng(4).normal(3, 2, size=900)
    numbers = np.stack([values, np.ones_like(values)], 1)
    half = 1.96 * values.std() / 30
    found = confidence_interval(numbers, lambda sums: sums[0] / sums[1])
    assert found == pytest.approx((values.mean() - half, values.mean() + half), abs=0.02)


def scored(capsys, *options: str) -> str:
    cli.main(["score", "out.txt", "--reference", "ref.de", *options])
    return capsys.readouterr().out


def write(name: str, lines: list[str]) -> None:
    Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def test_a_default_score_that_is_missing_says_why(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("out.txt", ["Der Hund, der bellt, ist laut.", "Er ruft: Komm!"] * 20)
    write("ref.de", ["Der Hund, der bellt, war laut.", "Sie ruft: Komm!"] * 20)
    said = (
        "no tokenised BLEU: it compares tokens, which are not known of all outputs and their "
        "reference; give tokenised text as --reference"
    )
    assert said in scored(capsys).splitlines()
    assert "no tokenised" not in scored(capsys, "--metrics", "bleu")


def test_intervals_are_shown(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("out.txt", HYPOTHESES)
    write("ref.de", REFERENCES)
    asked = ["--metrics", "ter", "rouge-1"]
    found = json.loads(scored(capsys, *asked, "--confidence", "--json"))
    (one,) = found["outputs"]
    for name in ("TER", "ROUGE-1"):
        low, high = one["intervals"][name]
        assert low < one["scores"][name] < high
        assert found["signatures"][name].endswith("|bs:1000|seed:12345")
    printed = scored(capsys, *asked, "--confidence")
    low, high = one["intervals"]["TER"]
    assert f"{one['scores']['TER']:.2f} [{low:.2f}, {high:.2f}]" in printed
    assert "[ ]: 95% interval, from 1000 bootstrap resamples" in printed
    for plain in (scored(capsys, *asked, "--json"), scored(capsys, *asked)):
        assert "interval" not in plain and "bs:" not in plain


# Compounds.


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ein kurz-ärmliges hemd", "ein kurz ##AT##-##AT## ärmliges hemd"),
        ("ab-cd-ef", "ab ##AT##-##AT## cd ##AT##-##AT## ef"),
        ("a-b-c", "a ##AT##-##AT## b-c"),  # b is part of one match and cannot begin another
        ("a - b -- c -d e-", "a - b -- c -d e-"),
        ("a--b", "a ##AT##-##AT## -b"),
        ("ein kurz @-@ ärmliges hemd", "ein kurz ##AT##-##AT## ärmliges hemd"),
        ("ein kurz ##AT##-##AT## ärmliges hemd", "ein kurz ##AT##-##AT## ärmliges hemd"),
    ],
)
def test_compounds_are_split(line, expected):
    assert METRICS["compound-split-bleu"].make(False, "de").split(line) == expected


def usual_chain(hypotheses: list[str], references: list[str]) -> float:
    """Perl's substitution on both sides, then fairseq-score."""
    for name, lines in (("sys", hypotheses), ("ref", references)):
        write(name, lines)
        split = r"s{(\S)-(\S)}{$1 ##AT##-##AT## $2}g"
        subprocess.run(["perl", "-i", "-ple", split, name], check=True)
    said = fairseq("score", "--sys", "sys", "--ref", "ref", cwd=Path.cwd()).stdout
    return float(re.search(r"BLEU4 = ([\d.]+)", said)[1])


@pytest.mark.skipif(not shutil.which("perl"), reason="there is no perl")
def test_compound_split_bleu_is_that_of_the_usual_chain(tmp_path, capsys, corpora, monkeypatch):
    """On whole compounds; where aggressive tokenisation split them, the score is the same."""
    monkeypatch.chdir(tmp_path)
    path = corpora / "newstest-en-de" / "newstest2014.de.gz"
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as text:
        raw = text.read().split("\n")[:300]
    values = {}
    for aggressive in (False, True):
        tokens = [MosesTokenizer("de").tokenize(x, aggressive, return_str=True) for x in raw]
        assert aggressive == ("@-@" in " ".join(tokens))
        wrong = [line.replace(" die ", " der ").replace("US", "EU") for line in tokens]
        write("out.txt", [f"H-{i}\t-1\t{line}" for i, line in enumerate(wrong)])
        write("ref.de", tokens)
        asked = ["--metrics", "compound-split-bleu", "tokenised-bleu", "--json"]
        found = json.loads(scored(capsys, *asked))
        values[aggressive] = found["outputs"][0]["scores"]
        assert found["signatures"]["compound-split BLEU"].endswith("|compounds:split")
        if not aggressive:
            usual = usual_chain(wrong, tokens)
    split, parted = (values[each]["compound-split BLEU"] for each in (False, True))
    assert split == pytest.approx(usual, abs=0.0051)  # it prints two digits
    assert parted == pytest.approx(split)
    assert abs(split - values[False]["tokenised BLEU"]) > 0.1
