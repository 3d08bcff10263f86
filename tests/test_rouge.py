"""ROUGE: against its definition and the library, on real headlines, and in fairseq-generate."""

import gzip
import json
import random
import re
import sys
from collections import Counter
from fractions import Fraction
from functools import cache

import pytest
from conftest import PLUGIN, fairseq, train
from rouge_score.rouge_scorer import RougeScorer as Library
from rouge_score.scoring import BootstrapAggregator
from rouge_score.tokenize import tokenize

from fairseq_ext import cli
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.corpus_scorers import Rouge
from fairseq_ext.evaluation.metrics import METRICS
from fairseq_ext.evaluation.rouge_scorer import RougeScorer, RougeScorerConfig
from fairseq_ext.evaluation.significance import confidence_interval
from fairseq_ext.evaluation.subword_marks import refuse_subwords
from fairseq_ext.evaluation.translation import detokenise_if_needed, read_output

NAMES = [f"rouge-{kind}{end}" for end in ("", "-unstemmed") for kind in "12l"]


# The definition.


def shared(one: tuple[str, ...], other: tuple[str, ...], kind: str) -> tuple[int, int, int]:
    """What is shared, and how much each side has."""
    if kind == "l":

        @cache
        def longest(i: int, j: int) -> int:
            if i == len(one) or j == len(other):
                return 0
            if one[i] == other[j]:
                return 1 + longest(i + 1, j + 1)
            return max(longest(i + 1, j), longest(i, j + 1))

        return longest(0, 0), len(one), len(other)
    n = int(kind)
    sides = [Counter(x[i : i + n] for i in range(len(x) - n + 1)) for x in (one, other)]
    return (sides[0] & sides[1]).total(), sides[0].total(), sides[1].total()


def naive(hypothesis: str, reference: str, kind: str) -> Fraction:
    both, one, other = shared(tuple(hypothesis.split()), tuple(reference.split()), kind)
    if not both:
        return Fraction(0)
    precision, recall = Fraction(both, one), Fraction(both, other)
    return 2 * precision * recall / (precision + recall)


HYPOTHESES = ["the cat sat on the mat", "police kill gunman"]
REFERENCES = ["the cat lay on a mat", "police killed the gunman"]
# 4 of 6 words and, in order, 4; 1 of 5 pairs. Then 3 words of 3 and of 4 if killed is kill, else 2;
# then 1 pair of 2 and of 3 if so, else none.
WORKED = {
    "rouge-1": (Fraction(2, 3), Fraction(6, 7)),
    "rouge-2": (Fraction(1, 5), Fraction(2, 5)),
    "rouge-l": (Fraction(2, 3), Fraction(6, 7)),
    "rouge-1-unstemmed": (Fraction(2, 3), Fraction(4, 7)),
    "rouge-2-unstemmed": (Fraction(1, 5), Fraction(0)),
    "rouge-l-unstemmed": (Fraction(2, 3), Fraction(4, 7)),
}


@pytest.mark.parametrize("name", NAMES)
def test_worked_sentences(name):
    scorer = METRICS[name].make(False, "en")
    numbers = scorer.statistics(HYPOTHESES, REFERENCES)
    assert numbers.tolist() == [[pytest.approx(float(x)), 1] for x in WORKED[name]]
    assert scorer.value(numbers.sum(0)) == pytest.approx(float(50 * sum(WORKED[name])))
    if "unstemmed" in name:
        twin = [naive(*both, name[6]) for both in zip(HYPOTHESES, REFERENCES, strict=True)]
        assert tuple(twin) == WORKED[name]


@pytest.mark.parametrize("kind", "12l")
def test_it_is_the_definition(kind):
    rng = random.Random(1)
    pairs = [
        [" ".join(rng.choices("ab cd ef gh".split(), k=rng.randint(0, 9))) for _ in range(2)]
        for _ in range(300)
    ]
    found = Rouge(kind, stem=False).statistics(*zip(*pairs, strict=True))
    assert found[:, 0] == pytest.approx([float(naive(*both, kind)) for both in pairs])


def test_what_counts_as_a_word():
    def words(*lines: str) -> set[float]:
        scorer = Rouge("1", stem=False)
        return {f1 for f1, _ in scorer.statistics(lines, ["u.s. stocks up"] * len(lines))}

    assert words("U.S. Stocks up ##.# !", "u s stocks up", "u . s . # stocks up") == {1}
    ours, theirs = ["japan &apos;s s &amp; p"], ["japan 's s & p"]
    for kind in "12l":
        ((f1, _),) = Rouge(kind, stem=True).statistics(ours, theirs)
        assert f1 == 1  # apos and amp are no words


# Real headlines.


@pytest.fixture(scope="module")
def gigaword(corpora):
    folder = corpora / "gigaword-headline"

    def lines(name: str) -> list[str]:
        with gzip.open(folder / name, "rt", encoding="utf-8", newline="\n") as text:
            return text.read().removesuffix("\n").split("\n")

    rows = list(map(json.loads, lines("test1951.jsonl.gz")))
    return {
        "test": [row["summaries"][0] for row in rows],
        "first words": [" ".join(row["text"].split(" ")[:10]) for row in rows],
        "articles": [row["text"] for row in rows],
        "train": lines("train.title.txt.gz"),
    }


@pytest.mark.parametrize("stem", [True, False])
@pytest.mark.parametrize("kind", "12l")
def test_it_is_what_the_library_says(gigaword, kind, stem):
    """Its mean, and nearly its interval, which is from other draws."""
    sides = [[x.replace("&amp;", "&") for x in gigaword[n]] for n in ("first words", "test")]
    scorer = Rouge(kind, stem)
    numbers = scorer.statistics(gigaword["first words"], gigaword["test"])
    library, name = Library([f"rouge{kind.upper()}"], use_stemmer=stem), f"rouge{kind.upper()}"
    aggregator = BootstrapAggregator()
    theirs = [library.score(r, h) for h, r in zip(*sides, strict=True)]
    for each in theirs:
        aggregator.add_scores(each)
    found = [each[name].fmeasure for each in theirs]
    assert numbers[:, 0].tolist() == found
    assert scorer.value(numbers.sum(0)) == pytest.approx(100 * sum(found) / len(found))
    interval = aggregator.aggregate()[name]
    ends = [100 * interval.low.fmeasure, 100 * interval.high.fmeasure]
    assert confidence_interval(numbers, scorer.value) == pytest.approx(ends, abs=0.2)


@pytest.mark.parametrize("name", ["test", "articles", "train"])
def test_detokenising_changes_nothing(gigaword, name):
    """Headlines are told from raw text too, for all their want of punctuation."""
    lines = gigaword[name]
    joined, tokenised = detokenise_if_needed(lines, "en")
    assert tokenised and not detokenise_if_needed(joined, "en")[1]
    assert sum(a != b for a, b in zip(lines, joined, strict=True)) > 500
    plain = [line.replace("&amp;", "&") for line in lines]
    assert [tokenize(x, None) for x in plain] == [tokenize(x, None) for x in joined]
    scorer = Rouge("2", stem=False)
    some, others = lines[:500], lines[1:501]
    mixed = scorer.statistics(joined[:500], others)
    assert (scorer.statistics(some, others) == mixed).all() and mixed[:, 0].any()


# Subwords.


def pieces(lines: list[str], rare: int) -> list[str]:
    """Words that occur so often or less, as WordPiece splits them."""
    counts = Counter(word for line in lines for word in line.split(" "))

    def split(word: str) -> str:
        return f"{word[:3]} ##{word[3:]}" if counts[word] <= rare and len(word) > 3 else word

    return [" ".join(map(split, line.split(" "))) for line in lines]


@pytest.mark.parametrize("name", ["test", "articles", "train"])
def test_masked_digits_are_no_pieces(gigaword, name):
    lines = gigaword[name]
    assert sum(" ##" in line for line in lines) > 50
    assert any(re.search(r" ##(th|st|kg)\b", line) for line in lines)
    assert refuse_subwords("real text", lines) is lines
    assert refuse_subwords("one more unit", [*lines[:200], "winds of ##mph"])
    for size in (100, len(lines)):
        with pytest.raises(UsageError, match="--bpe wordpiece"):
            refuse_subwords("pieces", pieces(lines, 3)[:size])


def test_words_of_which_only_h_lines_are_pieces(tmp_path):
    """As `--bpe wordpiece` leaves them."""
    path = tmp_path / "out.txt"
    path.write_text("H-0\t-1\tsuper ##computer sales\nD-0\t-1\tsupercomputer sales\n")
    output = read_output(path)
    assert (output.words, output.tokens) == (["supercomputer sales"], None)


# Commands.


@pytest.fixture
def files(tmp_path, gigaword):
    for name, lines in (("out", gigaword["first words"]), ("ref.en", gigaword["test"])):
        (tmp_path / name).write_text("".join(f"{x}\n" for x in lines[:300]), encoding="utf-8")
    return ["score", str(tmp_path / "out"), "--reference", str(tmp_path / "ref.en")]


def test_score(files, capsys, tmp_path):
    cli.main([*files, "--metrics", "rouge", "rouge-l", "rouge-unstemmed", "--json"])
    found = json.loads(capsys.readouterr().out)
    scores = found["outputs"][0]["scores"]
    labels = [f"ROUGE-{kind}{end}" for end in ("", " unstemmed") for kind in "12L"]
    assert list(scores) == labels
    assert all(scores[x] > scores[f"{x} unstemmed"] for x in labels[:3])
    assert "|stem:yes|" in found["signatures"]["ROUGE-1"]
    assert "|stem:no|" in found["signatures"]["ROUGE-1 unstemmed"]
    cli.main([*files, "--metric", "rouge"])
    header, row, *_ = capsys.readouterr().out.split("\n")
    assert header.split()[2:] == labels[:3]
    assert row.split()[2:] == [f"{scores[x]:.2f}" for x in labels[:3]]


def test_a_tokenised_reference_is_as_good_as_a_raw_one(capsys, tmp_path):
    texts = {
        "out": "ein mann , der .",
        "ref.de": "ein mann , der geht .",
        "raw.de": "Ein Mann, der geht.",
    }
    for name, line in texts.items():
        (tmp_path / name).write_text(f"{line}\n" * 3)
    printed = []
    for name in ("ref.de", "raw.de"):
        asked = [str(tmp_path / "out"), "--reference", str(tmp_path / name), "--metric", "rouge-2"]
        cli.main(["score", *asked])
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert "80.00" in printed[0] and "†" not in printed[0] and "--lowercase" not in printed[0]


def parsed(said: str) -> list[str]:
    found = re.search(r"ROUGE-1/2/L F1 = (\S+) \(stemmed\), (\S+) \(unstemmed\)", said)
    return [value for each in found.groups() for value in each.split("/")]


@pytest.mark.parametrize("lines", ["train", "test"])
def test_generate_says_what_score_says(lines, summariser, data_bin, tmp_path, real_lines, capsys):
    options = "--cpu --num-workers 0 --beam 2 --max-len-b 9 --max-tokens 2000 -s de -t en".split()
    options += ["--prefix-size", 4]  # of the references, so that something is right
    common = ["--user-dir", PLUGIN, "--path", summariser, "--gen-subset", lines]
    done = fairseq("generate", data_bin, *common, *options, "--scoring", "rouge")
    (tmp_path / "out.txt").write_text(done.stdout)
    reference = ["--reference", str(real_lines / f"{lines}.en")] if lines == "test" else []
    asked = [str(tmp_path / "out.txt"), *reference, "--metrics", "rouge", "rouge-unstemmed"]
    cli.main(["score", *asked])
    row = capsys.readouterr().out.split("\n")[1].split()
    *_, last = done.stdout.rstrip().split("\n")
    if lines == "train":
        assert parsed(last) == row[2:] and "unknown" not in last
    else:  # words that are not seen may share a stem, or be two to ROUGE
        unknown = len(re.findall("^T-.*<<unk>>", done.stdout, re.M))
        assert f"; {unknown} references hold unknown words" in last
        assert list(map(float, parsed(last))) == pytest.approx(list(map(float, row[2:])), abs=0.2)
    assert all(float(value) > 0.5 for value in row[2:])


@pytest.fixture(scope="module")
def summariser(data_bin, tmp_path_factory):
    return train(data_bin, "transformer_una_tiny", tmp_path_factory.mktemp("rouge"), 3)


@pytest.fixture
def scorer():
    return RougeScorer(RougeScorerConfig())


def test_unknown_words_match_nothing(scorer):
    scorer.add_string("<<unk>> dog", "<unk> dog")
    assert parsed(scorer.result_string())[:3] == ["50.00", "0.00", "50.00"]
    scorer.add_string("dogs bark", "dog barks")
    assert scorer.score() == pytest.approx(75)
    assert parsed(scorer.result_string()) == ["75.00", "50.00", "75.00", "25.00", "0.00", "25.00"]


def test_references_without_a_latin_letter_are_counted(scorer, tmp_path, capsys):
    """Scores of Latin text stay without a note; escapes of Moses are no letters."""
    said = "of 3 references have no letter a-z and no digit, which is all that ROUGE reads"
    lines = ["\u732b\u304c\u597d\u304d", "&apos;", "The cat 9"]
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    text = str(tmp_path / "text")
    for metrics, noted in (["rouge"], True), (["rouge-l-unstemmed"], True), (["chrf"], False):
        cli.main(["score", text, "--reference", text, "--metrics", *metrics])
        assert capsys.readouterr().out.count(f"warning: 2 {said}") == noted
    for line in lines:
        scorer.add_string(line, line)
    assert scorer.result_string().endswith(f"; 2 {said}")
    assert Rouge.describe_empty(["\u212a", "\u00c9t\u00e9", "9"]) == ""


@pytest.mark.parametrize(
    ("line", "said"), [("bahn@@ hof", "--remove-bpe"), ("bahn ##hof", "--bpe")]
)
def test_pieces_are_refused(scorer, line, said):
    scorer.add_string("bahnhof", line)
    with pytest.raises(UsageError, match=said):
        scorer.result_string()


@pytest.mark.parametrize(
    "begin", [lambda: RougeScorer(RougeScorerConfig()), lambda: Rouge("1", True)]
)
def test_it_is_refused_before_the_work_without_its_package(begin, monkeypatch):
    monkeypatch.setitem(sys.modules, "rouge_score", None)
    monkeypatch.delitem(sys.modules, "rouge_score.rouge_scorer", raising=False)
    with pytest.raises(
        UsageError, match=r"ROUGE needs rouge_score.*pip install 'fairseq_ext\[rouge"
    ):
        begin()
