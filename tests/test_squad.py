"""Exact match and F1 of answers, by hand and by torchmetrics."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_ext.criterions.tokens_and_spans import score_answer
from fairseq_ext.errors import UsageError
from fairseq_ext.prepare.corpora_readers import answer_in, check_label

WORKED = [
    ("Denver Broncos", ["the (Denver) Broncos!"], 1, 1),
    ("Denver Broncos", ["Broncos"], 0, 2 / 3),  # precision 1/2, recall 1
    ("an old, old man", ["The old man."], 0, 4 / 5),  # "old" counts once
    ("red cat", ["red dog", "cat red"], 0, 1),  # the best answer; order counts in the other score
    ("red cat", ["dog"], 0, 0),
    ("U.S.", ["us"], 1, 1),
    ("", [""], 1, 1),
    ("the", ["..."], 1, 1),  # nothing is left of either
    ("red", [""], 0, 0),
    ("", ["red", ""], 1, 1),
    ("theatre", ["atre"], 0, 0),  # no article
]


@pytest.mark.parametrize(("answer", "references", "exact", "f1"), WORKED)
def test_worked_numbers(answer, references, exact, f1):
    assert score_answer(answer, references) == pytest.approx((exact, f1))


TEXTS = st.text("aeht .,-'\nÉİ’0", max_size=12)


@settings(deadline=None)  # the library is imported
@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=3))
def test_scores_are_those_of_torchmetrics(answer, references):
    text = pytest.importorskip("torchmetrics.functional.text")
    answers = {"text": references, "answer_start": [0] * len(references)}
    scores = text.squad([{"id": "0", "prediction_text": answer}], [{"id": "0", "answers": answers}])
    expected = [float(scores[name]) / 100 for name in ("exact_match", "f1")]
    assert score_answer(answer, references) == pytest.approx(expected)


@pytest.mark.parametrize(
    "read",
    [
        lambda text: answer_in("a", {"text": text, "answer_start": 0}, "x"),
        lambda text: check_label(text, ["a"], "x"),
    ],
)
def test_a_long_text_is_cut_in_an_error(read):
    with pytest.raises(UsageError) as refused:
        read("red\ncat " * 100)
    assert "red cat red" in str(refused.value) and "\n" not in str(refused.value)
    assert len(str(refused.value)) < 200
