"""Alignment error rate of cross-attention: numbers worked by hand, a naive twin, the command."""

import argparse
import csv
import json
from pathlib import Path

import pytest
import torch

from fairseq_ext import cli
from fairseq_ext.analysis import align as alignment
from fairseq_ext.analysis import gold_alignments
from fairseq_ext.analysis.align import DIAGONAL, MEAN, EncodedPair, GoldBatch, align
from fairseq_ext.analysis.gold_alignments import GoldLinks, SentencePair, score_links
from fairseq_ext.analysis.inspector import ModelInspector
from fairseq_ext.analysis.tokens import TokenisedWords
from fairseq_ext.errors import UsageError


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


@pytest.mark.parametrize(
    ("found", "sure", "possible", "expected"),
    [
        # A = {00, 11, 20}; of them 00 is sure, 00 and 20 are possible
        ("00 11 20", "00 21", "00 21 20", (1 - 3 / 5, 2 / 3, 1 / 2)),
        ("00 11", "00 11", "00 11", (0, 1, 1)),
        ("01 10", "00 11", "00 11", (1, 0, 0)),
        ("00 11", "00", "00 11", (0, 1, 1)),  # all possible links cost nothing
        ("00", "00 11", "00 11", (1 - 2 / 3, 1, 1 / 2)),
        ("00", "", "00", (0, 1, 0)),
    ],
)
def test_worked_numbers(found, sure, possible, expected):
    """With the naive twin: sets of links."""
    a, s, p = ({(int(i), int(j)) for i, j in each.split()} for each in (found, sure, possible))
    aer, precision, recall = score_links(len(a), len(a & s), len(a & p), len(s)).values()
    assert (aer, precision, recall) == pytest.approx(expected)
    assert aer == pytest.approx(1 - (len(a & s) + len(a & p)) / (len(a) + len(s)))


def test_nothing_to_align():
    assert score_links(0, 0, 0, 0) == {"aer": 1, "precision": 0, "recall": 0}


# "ge@@ ht nicht </s>" and "does not go@@ ing </s>"
JOB = EncodedPair(
    TokenisedWords(torch.arange(4), [[0, 1], [2]]),
    TokenisedWords(torch.arange(5), [[0], [1], [2, 3]]),
    GoldLinks({(1, 1)}, {(1, 1), (0, 2), (0, 0)}),
)


@pytest.mark.parametrize(
    ("shift", "expected"),
    [
        (0, [3, 1, 3]),  # does-geht, not-nicht (sure), going-geht
        (1, [3, 1, 2]),  # does-nicht (no link), not-nicht, going-geht
    ],
)
def test_links_of_words(shift, expected):
    """To a word the sum, from a word the mean; the end of the sentence is no word."""
    maps = torch.tensor(
        [
            [0.3, 0.3, 0.4, 0.0],  # predicts does
            [0.1, 0.0, 0.2, 0.7],  # has read does, predicts not
            [0.0, 0.0, 0.6, 0.4],  # has read not, predicts go@@
            [0.4, 0.3, 0.0, 0.3],  # has read go@@, predicts ing
            [0.0, 0.0, 0.0, 1.0],  # has read ing, predicts the end
        ]
    )
    counts = GoldBatch([JOB], shift).count_links(maps[None, None])
    assert counts.tolist() == [expected] * 2  # of the only head, and of the mean


def test_a_word_that_sees_no_word_has_no_link():
    maps = torch.zeros(1, 2, 5, 4)
    maps[..., 3] = 1
    maps[0, 0, 0] = torch.tensor([1.0, 0, 0, 0])
    assert GoldBatch([JOB], 0).count_links(maps).tolist() == [[1, 0, 1], [0, 0, 0], [1, 0, 1]]


@pytest.fixture(scope="module")
def subject(hybrid_run, data_bin) -> ModelInspector:
    return ModelInspector(hybrid_run / "checkpoint_last.pt", data_bin)


@pytest.fixture(scope="module")
def files(real_lines, tmp_path_factory) -> dict[str, Path]:
    """12 pairs, with links drawn by chance that begin at 1."""
    folder = tmp_path_factory.mktemp("gold")
    sides = [
        (real_lines / f"test.{side}").read_text("utf-8").split("\n")[:12] for side in LANGUAGES
    ]
    random = torch.Generator().manual_seed(1)
    gold = []
    for source, target in zip(*sides, strict=True):
        sizes = len(source.split()), len(target.split())
        drawn = [
            [int(torch.randint(1, size + 1, (), generator=random)) for size in sizes]
            for _ in range(8)
        ]
        kinds = "-p-p----"
        gold.append(" ".join(f"{i}{kind}{j}" for (i, j), kind in zip(drawn, kinds, strict=True)))
    return {
        **{side: write(folder / f"test.{side}", *sides[n]) for n, side in enumerate(LANGUAGES)},
        "gold": write(folder / "test.talp", *gold),
        "reversed": write(folder / "reversed.talp", *map(turned, gold)),
        "from 0": write(folder / "from0.talp", *map(lowered, gold)),
    }


LANGUAGES = "de", "en"


def turned(line: str) -> str:
    links = [gold_alignments.LINK.fullmatch(part).groups() for part in line.split()]
    return " ".join(f"{j}{kind}{i}" for i, kind, j in links)


def lowered(line: str) -> str:
    links = [gold_alignments.LINK.fullmatch(part).groups() for part in line.split()]
    return " ".join(f"{int(i) - 1}{kind}{int(j) - 1}" for i, kind, j in links)


def given_for(files, **change) -> argparse.Namespace:
    given = {"source": files["de"], "target": files["en"], "gold": files["gold"]}
    given |= {"first_index": 1, "reversed": False, "lowercase": False}
    return argparse.Namespace(**given | change)


def naive(subject: ModelInspector, pairs: list[SentencePair], shift: int) -> dict[tuple, float]:
    """(layer, head) -> AER, pair by pair, with loops and sets."""
    counts: dict[tuple, list[int]] = {}
    for pair in pairs:
        source, target = (
            subject.codec.encode(pair.source),
            subject.codec.encode(pair.target, target=True),
        )
        found = subject.maps(subject.batch(source.numbers, target.numbers))["cross"]
        for layer, maps in found.items():
            each = maps[0].double()
            for head, weights in [*enumerate(each), (MEAN, each.mean(0))]:
                links = set()
                for j, attending in enumerate(target.spans):
                    attention = [
                        sum(float(weights[t + shift, s]) for t in attending for s in attended)
                        for attended in source.spans
                    ]
                    links.add((attention.index(max(attention)), j))
                sums = counts.setdefault((layer, head), [0, 0])
                sums[0] += len(links & pair.gold.sure) + len(links & pair.gold.possible)
                sums[1] += len(links) + len(pair.gold.sure)
    return {place: 1 - hits / total for place, (hits, total) in counts.items()}


@pytest.mark.parametrize("shift", [0, 1])
def test_naive_twin(subject, files, shift):
    pairs = gold_alignments.read_pairs(given_for(files))
    jobs = [alignment.encode_pair(subject, pair) for pair in pairs]
    expected = naive(subject, pairs, shift)
    for max_tokens in (100, 1):
        rows = align(subject, jobs, shift, max_tokens)
        assert {(row["layer"], row["head"]): row["aer"] for row in rows} == pytest.approx(expected)
    assert len(expected) == 3 * 3 and len(set(expected.values())) > 1


def test_forms_of_gold_are_alike(files):
    pairs = gold_alignments.read_pairs(given_for(files))
    assert any(gold.possible > gold.sure for *_, gold in pairs)
    turned_round = given_for(files, gold=files["reversed"], reversed=True)
    assert gold_alignments.read_pairs(turned_round) == pairs
    assert (
        gold_alignments.read_pairs(given_for(files, gold=files["from 0"], first_index=0)) == pairs
    )


def test_links_and_words_as_written(tmp_path):
    """A no-break space parts no words, as in the tools that count words for gold alignments."""
    files = {
        "de": write(tmp_path / "de", "Zehn\u00a0Uhr  ist", ""),
        "en": write(tmp_path / "en", "Ten is", "x"),
        "gold": write(tmp_path / "gold", "1-1 2p2 1-1", ""),
    }
    first, empty = gold_alignments.read_pairs(given_for(files))
    assert first == (["Zehn\u00a0Uhr", "ist"], ["Ten", "is"], ({(0, 0)}, {(0, 0), (1, 1)}))
    assert empty == ([], ["x"], (set(), set()))
    lowered = gold_alignments.read_pairs(given_for(files, lowercase=True))
    assert lowered[0].source[0] == "zehn\u00a0uhr"


def test_the_diagonal():
    """Words at the same relative position: of five for two the second and the fourth."""
    words = [TokenisedWords(torch.arange(size + 1), [[i] for i in range(size)]) for size in (5, 2)]
    gold = {(1, 0), (3, 1)}
    found = alignment.align_diagonally([EncodedPair(*words, GoldLinks(gold, gold))])
    assert (found["aer"], found["links"]) == (0, 2)
    gold = {(0, 0), (0, 1), (0, 2), (1, 3), (1, 4)}
    found = alignment.align_diagonally([EncodedPair(*reversed(words), GoldLinks(gold, gold))])
    assert found["recall"] == pytest.approx(4 / 5)  # (1, 2) in place of (0, 2)


def test_pairs_that_the_model_cannot_read(subject):
    gold = GoldLinks(set(), set())
    for source, target, kept in [
        ("ein mann", "a man", True),
        ("", "a man", False),
        ("ein mann", "", False),
        ("ein " * 1024, "a man", False),
        ("ein mann", "a " * 1024, False),
    ]:
        job = alignment.encode_pair(subject, SentencePair(source.split(), target.split(), gold))
        assert (job is not None) == kept


# The command.


def command(hybrid_run, data_bin, files, out, *change: str) -> list[str]:
    names = [("source", "de"), ("target", "en"), ("gold", "gold")]
    parts = [part for option, name in names for part in (f"--{option}", str(files[name]))]
    checkpoint = hybrid_run / "checkpoint_last.pt"
    return ["align", str(checkpoint), "--data", str(data_bin), *parts, "--out", str(out), *change]


def test_the_command(hybrid_run, data_bin, subject, files, tmp_path, capsys):
    found = {}
    for shift in ("output", "next"):
        out = tmp_path / shift
        cli.main(command(hybrid_run, data_bin, files, out, "--shift", shift))
        with (out / "align.csv").open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        heads = [[str(layer), head] for layer in range(3) for head in ("0", "1", MEAN)]
        assert [[row["layer"], row["head"]] for row in rows] == [*heads, ["", DIAGONAL]]
        about = json.loads((out / "align.json").read_text("utf-8"))
        assert (about["pairs"], about["left_out"], about["shift"]) == (12, 0, shift)
        assert [row["aer"] for row in about["rows"]] == [float(row["aer"]) for row in rows]
        assert (out / "align.png").read_bytes().startswith(b"\x89PNG")
        found[shift] = [float(row["aer"]) for row in rows]
    pairs = gold_alignments.read_pairs(given_for(files))
    assert found["next"][:-1] == pytest.approx(list(naive(subject, pairs, 1).values()))
    assert found["output"][-1] == found["next"][-1] and found["output"] != found["next"]
    said = capsys.readouterr().out
    assert "12 pairs, 0 left out" in said and f"{found['next'][-1]:.3f}" in said
    shown = [line.split()[:4] for line in said.split("\n") if line.startswith("layer 1")]
    best = min((0, 1), key=lambda head: found["output"][3 + head])
    assert shown[0] == ["layer", "1", "head", str(best)] and shown[1][:3] == ["layer", "1", MEAN]


@pytest.mark.parametrize(
    ("gold", "change", "says"),
    [
        ("1-1 3-1", [], r"gold, line 1: '3-1' is out of range; expected are source words 1 to 2"),
        ("1-1 2-4", [], "'2-4' is out of range; .* and target words 1 to 3"),
        ("0-1", [], "'0-1' is out of range"),
        ("1-3", ["--reversed"], "'1-3' is out of range"),
        ("0-3", ["--first-index", "0"], "source words 0 to 1 and target words 0 to 2"),
        ("1-1", ["--first-index", "0"], "has no link with index 0; give --first-index 1"),
        ("1-1 2", [], "line 1: '2' is no link; expected are such as 3-4 and 3p4"),
        ("1-1\n1-1", [], "de has 1, .*en has 1, .*gold has 2; give parallel ones"),
        ("1-1", ["--max-tokens", "0"], "--max-tokens is 0"),
        ("1-1", ["--out", "/dev/null/x"], "/dev/null is a file"),
        ("1-1", ["--data", "."], "neither dictionaries nor examples"),
    ],
)
def test_what_cannot_be_aligned(hybrid_run, data_bin, tmp_path, gold, change, says):
    files = {
        "de": write(tmp_path / "de", "ein mann"),
        "en": write(tmp_path / "en", "a man ."),
        "gold": write(tmp_path / "gold", *gold.split("\n")),
    }
    with pytest.raises(UsageError, match=says):
        cli.main(command(hybrid_run, data_bin, files, tmp_path / "out", *change))
    assert not (tmp_path / "out").exists()


def test_nothing_is_left(hybrid_run, data_bin, tmp_path):
    files = {name: write(tmp_path / name, "") for name in ("de", "en", "gold")}
    with pytest.raises(UsageError, match="has no pair that the model can read"):
        cli.main(command(hybrid_run, data_bin, files, tmp_path / "out"))


def test_models_without_cross_attention(
    subject, hybrid_run, data_bin, files, tmp_path, monkeypatch
):
    monkeypatch.setattr(ModelInspector, "heads", {"encoder": {0: 4}})
    with pytest.raises(UsageError, match="has no cross-attention; give a translation model"):
        cli.main(command(hybrid_run, data_bin, files, tmp_path / "out"))


def test_real_gold(corpora):
    folder = corpora / "goldalign-de-en"
    paths = {"source": folder / "test.de", "target": folder / "test.en"}
    given = given_for({"de": "", "en": "", "gold": ""}, gold=folder / "test.de-en.talp", **paths)
    pairs = gold_alignments.read_pairs(given)
    assert len(pairs) == 508
    assert sum(len(pair.gold.sure) for pair in pairs) == 9613
    jobs = [EncodedPair(*([[i] for i in side] for side in pair[:2]), pair.gold) for pair in pairs]
    jobs = [
        EncodedPair(TokenisedWords(None, job.source), TokenisedWords(None, job.target), job.gold)
        for job in jobs
    ]
    assert 0.5 < alignment.align_diagonally(jobs)["aer"] < 0.9
