"""Exact match and F1 of answers, by the definition of SQuAD's official evaluation.

Rajpurkar et al. 2016, Section 6.1: punctuation, articles and case do not count; an answer gets the
best score over the answers of several people.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence

ARTICLES = re.compile(r"\b(a|an|the)\b")
WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def split_answer(text: str) -> list[str]:
    """Return the words of an answer in lower case, without punctuation and articles."""
    return ARTICLES.sub(" ", text.lower().translate(WITHOUT_PUNCTUATION)).split()


def score_answer(answer: str, references: Sequence[str]) -> tuple[float, float]:
    """Return exact match and F1 of an answer, from 0 to 1, each the best over the references.

    Args:
        answer: the predicted text; empty if there is no answer.
        references: right answers, at least one; an empty one says that there is no answer.
    """
    words = split_answer(answer)
    expected = [split_answer(reference) for reference in references]
    return max(float(words == each) for each in expected), max(_f1(words, e) for e in expected)


def _f1(words: Sequence[str], expected: Sequence[str]) -> float:
    """Return the harmonic mean of precision and recall of words, counted as often as they occur."""
    if not words or not expected:
        return float(words == expected)
    common = (Counter(words) & Counter(expected)).total()
    return 2 * common / (len(words) + len(expected))
