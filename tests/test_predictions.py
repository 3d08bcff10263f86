"""Scores of answers to labelled text: worked examples, and the functions that training uses."""

import json

import numpy as np
import pytest

from fairseq_ext.criterions.labelled import correlation, f1, matthews, pearsonr
from fairseq_ext.criterions.tokens_and_spans import match_entities, token_f1
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation import predictions

TAGS = ["O", "B-x", "I-x", "B-y"]


def scored(tmp_path, answers, name):
    """The score, and the numbers of each example."""
    tmp_path.mkdir(exist_ok=True)
    lines = [a if isinstance(a, str) else json.dumps(a, ensure_ascii=False) for a in answers]
    (tmp_path / "predict-dev.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    measure, note = predictions.measure(f"predicted.dev.{name}", [tmp_path])
    assert note == f"predicted.dev.{name}: of the answers in RUN/predict-dev.txt"
    assert measure.scores is not None
    statistics = measure.scores.statistics[tmp_path]
    assert len(statistics) == len(answers)
    return measure.values[tmp_path]


def of_labels(pairs, names):
    share = dict.fromkeys(names, 0.5)
    return [{"label": a, "right": b, "probabilities": share} for a, b in pairs]


def test_worked_examples(tmp_path):
    """Two of four pairs are hits; "1" was found twice, once rightly, of its two: 2 / 4."""
    answers = of_labels(["00", "11", "10", "01"], "01")
    assert scored(tmp_path, answers, "accuracy") == 50
    assert scored(tmp_path, answers, "f1") == 50 and scored(tmp_path, answers, "mcc") == 0
    choices = [{"label": n, "choice": "a", "right": 1, "probabilities": [1, 0]} for n in (1, 0, 1)]
    assert scored(tmp_path, choices, "accuracy") == pytest.approx(200 / 3)
    tags = [{"tags": ["B-x", "I-x", "O"], "entities": [], "right": ["B-x", "I-x", "B-y"]}]
    tags += [{"tags": ["B-x", "O"], "entities": [], "right": ["B-x", "I-x"]}]
    # of two entities one is right, of three; of three tags all are right, of five
    assert scored(tmp_path, tags, "f1") == pytest.approx(40)
    assert scored(tmp_path, tags, "token_f1") == pytest.approx(75)
    assert scored(tmp_path, tags, "accuracy") == pytest.approx(60)
    plain = [{"tags": ["DT", "NN"], "right": ["DT", "VB"]}, {"tags": ["NN"], "right": ["NN"]}]
    assert scored(tmp_path, plain, "accuracy") == pytest.approx(200 / 3)
    with pytest.raises(UsageError, match="is no score of these answers; give accuracy for 'f1'"):
        scored(tmp_path, plain, "f1")
    numbers = [{"score": x, "right": y} for x, y in ((1, 2), (2, 4), (3, 6))]
    assert scored(tmp_path, numbers, "pearson") == pytest.approx(100)
    assert scored(tmp_path, numbers[:1] * 3, "pearson") == 0


@pytest.mark.parametrize("names", ["ab", "abcd"])
def test_labels_are_scored_as_in_training(tmp_path, names):
    rng = np.random.default_rng(1)
    for _ in range(5):
        predicted, right = rng.integers(len(names) - 1, size=(2, 30))  # one class never occurs
        predicted[:9] = right[:9]
        predicted[0] = len(names) - 1
        answers = of_labels(
            [(names[a], names[b]) for a, b in zip(predicted, right, strict=True)], names
        )
        assert scored(tmp_path, answers, "accuracy") == pytest.approx(
            100 * np.mean(predicted == right)
        )
        expected = f1(len(names), predicted, right)
        assert scored(tmp_path, answers, "f1") == pytest.approx(expected)
        assert scored(tmp_path, answers, "mcc") == pytest.approx(matthews(predicted, right))


def test_tags_are_scored_as_in_training(tmp_path):
    rng = np.random.default_rng(2)
    sides = [[[TAGS[n] for n in rng.integers(4, size=9)] for _ in range(20)] for _ in range(2)]
    answers = [{"tags": a, "entities": [], "right": b} for a, b in zip(*sides, strict=True)]
    flat = [np.array([TAGS.index(tag) for tags in side for tag in tags]) for side in sides]
    assert scored(tmp_path, answers, "token_f1") == pytest.approx(token_f1(*flat))
    counts = match_entities(*sides)
    expected = 200 * counts["hits"] / (counts["found"] + counts["marked"])
    assert scored(tmp_path, answers, "f1") == pytest.approx(expected)


def test_numbers_are_scored_as_in_training(tmp_path):
    predicted, right = np.random.default_rng(3).normal(3, 1, size=(2, 50))
    answers = [{"score": x, "right": y} for x, y in zip(predicted, right, strict=True)]
    expected = correlation(pearsonr, predicted, right)
    assert scored(tmp_path, answers, "pearson") == pytest.approx(expected)


@pytest.mark.parametrize(
    ("answers", "name", "said"),
    [
        ([], "f1", "predict-dev.txt is empty"),
        ([{"label": "a"}], "f1", "predict-dev.txt:1 has no 'right' (it has label); give"),
        ([{"score": 1.0, "right": 1.0}], "f1", "no score of these answers; give pearson for 'f1'"),
        (["half of a line"], "f1", "predict-dev.txt:1 is no JSON object; give one with right"),
        ([{"answer": "a", "right": []}], "f1", "none of them can be computed from sums"),
    ],
)
def test_answers_without_a_score(tmp_path, answers, name, said):
    with pytest.raises(UsageError) as refused:
        scored(tmp_path, answers, name)
    assert said in str(refused.value)


def test_runs_that_answered_other_examples(tmp_path):
    for name, right in (("a", "0"), ("b", "1")):
        scored(tmp_path / name, of_labels([("0", right)], "01"), "accuracy")
    with pytest.raises(UsageError, match="have other right answers"):
        predictions.measure("predicted.dev.accuracy", [tmp_path / "a", tmp_path / "b"])
    both, _ = predictions.measure("predicted.dev.accuracy", [tmp_path / "a", tmp_path / "b"], True)
    assert [*both.values.values()] == [100, 0]
    with pytest.raises(UsageError, match="has no predict-test.txt; put there what"):
        predictions.measure("predicted.test.accuracy", [tmp_path / "a"])
