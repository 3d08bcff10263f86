"""Answers of visual question answering: normalised and scored as the official evaluation does."""

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_ext.vqa.answers import CONTRACTIONS, normalise_answer, score_answers

TEN = 10


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        # worked out by hand from the rules; the official program says the same
        ("Red.", "red"),
        ("A red cat", "red cat"),
        ("the", ""),
        ("a", ""),
        ("None", "0"),
        ("ten dogs", "10 dogs"),
        ("dont know", "don't know"),
        ("Im", "im"),  # the table's form has a capital, which text has no more
        ("red-and-white", "red and white"),
        ("red - white", "red white"),  # removed beside a space, spaces are joined
        ("t-shirt, red", "t shirt red"),
        ("red/white -", "red white"),
        ("1,000", "1000"),
        ("1,000 t-shirts", "1000 tshirts"),  # a comma between digits removes all marks
        ("3.5", "3.5"),
        ("3.", "3"),
        ("U.S.", "us"),
        (".5", ".5"),
        ("what?", "what"),
        ("men's", "men's"),
        ("at&t", "at&t"),
        ("10:30", "10:30"),
        (" yes\n", "yes"),
        ("a\tb", "b"),
        ("somebody'd", "somebodyd"),
        ("yalld've", "yalld've"),
        ("." * 40 + "x", "." * 8 + "x"),  # 32 periods are removed at most
        ("", ""),
    ],
)
def test_normalised(given, normal):
    assert normalise_answer(given) == normal


def test_contractions():
    """There are as many as in the official table, in lower case and without those that stay."""
    assert len(CONTRACTIONS) == 114
    assert CONTRACTIONS["couldn'tve"] == CONTRACTIONS["couldnt've"] == "couldn't've"
    assert CONTRACTIONS["'ow'sat"] == "'ow's'at"
    assert CONTRACTIONS["oclock"] == "o'clock" and "id" not in CONTRACTIONS


def official_accuracy(answer: str, answers: list[str]) -> Fraction:
    """Mean over the leave-one-out sets of min(1, matches / 3), written out."""
    total = Fraction(0)
    for left_out in range(len(answers)):
        others = [given for place, given in enumerate(answers) if place != left_out]
        matches = len([given for given in others if given == answer])
        total += min(Fraction(1), Fraction(matches, 3))
    return total / len(answers)


@given(st.lists(st.sampled_from(["red", "blue", "green", "10", "old"]), min_size=1, max_size=12))
def test_accuracy_is_the_mean_over_annotators(answers):
    scores = score_answers(answers)
    assert list(scores) == list(dict.fromkeys(answers))
    for answer in {*answers, "other"}:
        assert scores.get(answer, 0.0) == float(official_accuracy(answer, answers))


@pytest.mark.parametrize(
    ("count", "score"), [(1, 0.3), (2, 0.6), (3, 0.9), (4, 1.0), (9, 1.0), (10, 1.0)]
)
def test_accuracy_of_ten_annotators(count, score):
    rest = [f"x{number}" for number in range(TEN - count)]
    assert score_answers(["yes"] * count + rest)["yes"] == score


def test_answers_are_normalised_before_they_are_counted():
    answers = ["Two"] * 2 + ["2"] * 2 + ["the cat"] + ["cat."] + ["Cat"] * 2 + ["a", "an"]
    assert score_answers(answers) == {"2": 1.0, "cat": 1.0, "": 0.6}


@pytest.mark.parametrize(
    ("answers", "key"),
    [
        (["none"] * TEN, "none"),
        (["Yes "] * 4 + ["Yes\n"] * 6, "Yes"),  # space around counts for nothing
        (["a"] * TEN, "a"),
    ],
)
def test_answers_that_all_agree_are_not_normalised(answers, key):
    """The official evaluation then leaves the predicted answer as it is, too."""
    assert score_answers(answers) == {key: 1.0}
    assert set(score_answers([*answers[1:], "other"])) == {normalise_answer(key), "other"}


@given(st.lists(st.text("aA. ,1", max_size=4), min_size=2, max_size=10))
def test_scores_of_any_text(answers):
    scores = score_answers(answers)
    counts = Counter(map(normalise_answer, answers))
    assert all(0 <= score <= 1 for score in scores.values())
    if len(scores) > 1:
        assert scores.keys() == counts.keys()
