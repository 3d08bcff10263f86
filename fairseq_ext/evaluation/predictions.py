"""Scores of answers to labelled text, as functions of sums over examples, which can be resampled.

The answers are those of `fairseq-ext predict --examples --json --right`, in RUN/predict-SUBSET.txt.
The scores are those that training logs, of the same examples.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fairseq_ext.data.examples import Field, parse
from fairseq_ext.data.tags import count_matches
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.comparisons import Measure
from fairseq_ext.evaluation.metrics import Scores
from fairseq_ext.files import numbered_lines

PREFIX = "predicted."

RIGHT = {"right": Field("the right answer: predict with --right", lambda answer: True)}

Answer = dict[str, Any]


class PredictionScorer(NamedTuple):
    """A score of answers, from 0 or -100 to 100.

    Attributes:
        statistics: returns the numbers of each answer to sum, [examples, numbers].
        value: returns the score, of numbers summed over examples, [numbers].
    """

    statistics: Callable[[Sequence[Answer]], np.ndarray]
    value: Callable[[np.ndarray], float]


def _count_hits(answers: Sequence[Answer]) -> np.ndarray:
    return np.array([[answer["label"] == answer["right"], 1] for answer in answers], float)


def _count_classes(answers: Sequence[Answer]) -> np.ndarray:
    """Return of each class the hits, and how often it was predicted and is right."""
    names = list(answers[0]["probabilities"])
    predicted = np.array([[answer["label"] == name for name in names] for answer in answers])
    right = np.array([[answer["right"] == name for name in names] for answer in answers])
    return np.concatenate([predicted & right, predicted, right], 1).astype(float)


def _compute_percentage(sums: np.ndarray) -> float:
    return 100 * float(sums[0] / sums[1]) if sums[1] else 0.0


def _compute_f1(sums: np.ndarray) -> float:
    """Return 200 hits / (predicted + right); 0 if nothing was predicted and nothing is right."""
    hits, predicted, right = sums
    return _compute_percentage(np.array([2 * hits, predicted + right]))


def _compute_f1_of_classes(sums: np.ndarray) -> float:
    """Return F1 of the second of two classes; of more, the mean over those that occur."""
    classes = sums.reshape(3, -1).T
    if len(classes) == 2:
        return _compute_f1(classes[1])
    return float(np.mean([_compute_f1(each) for each in classes if each.any()]))


def _compute_matthews(sums: np.ndarray) -> float:
    """Return Matthews' correlation, of any number of classes."""
    hits, predicted, right = sums.reshape(3, -1)
    total = right.sum()
    covariance = hits.sum() * total - predicted @ right
    return _divide(covariance, (total**2 - predicted @ predicted) * (total**2 - right @ right))


def _divide(covariance: float, squared: float) -> float:
    """Return a correlation in per cent; 0 of constants."""
    return 100 * float(covariance) / math.sqrt(squared) if squared > 0 else 0.0


def _count_numbers(answers: Sequence[Answer]) -> np.ndarray:
    """Return what variances and covariance of scores and right ones are sums of."""
    x, y = (np.array([answer[key] for answer in answers], float) for key in ("score", "right"))
    return np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], 1)


def _compute_pearson(sums: np.ndarray) -> float:
    """Return Pearson's correlation."""
    n, x, y, xx, yy, xy = sums
    spread = max(0.0, n * xx - x * x) * max(0.0, n * yy - y * y)
    return _divide(n * xy - x * y, spread)


def _count_tags(answers: Sequence[Answer]) -> np.ndarray:
    """Return of each sentence's words with a tag but O: hits, predicted and right ones."""
    pairs = [list(zip(a["tags"], a["right"], strict=True)) for a in answers]
    rows = [[(t == r != "O", t != "O", r != "O") for t, r in pair] for pair in pairs]
    return np.array([np.sum(row, 0) for row in rows], float)


def _count_words(answers: Sequence[Answer]) -> np.ndarray:
    """Return of each sentence the words with the right tag, and its words."""
    pairs = [list(zip(each["tags"], each["right"], strict=True)) for each in answers]
    return np.array([[sum(t == r for t, r in pair), len(pair)] for pair in pairs], float)


def _count_entities(answers: Sequence[Answer]) -> np.ndarray:
    return np.array([count_matches(each["tags"], each["right"]) for each in answers], float)


SCORERS: dict[str, dict[str, PredictionScorer]] = {
    "choice": {"accuracy": PredictionScorer(_count_hits, _compute_percentage)},
    "entities": {
        "f1": PredictionScorer(_count_entities, _compute_f1),
        "token_f1": PredictionScorer(_count_tags, _compute_f1),
        "accuracy": PredictionScorer(_count_words, _compute_percentage),
    },
    "tags": {"accuracy": PredictionScorer(_count_words, _compute_percentage)},
    "label": {
        "accuracy": PredictionScorer(_count_hits, _compute_percentage),
        "f1": PredictionScorer(_count_classes, _compute_f1_of_classes),
        "mcc": PredictionScorer(_count_classes, _compute_matthews),
    },
    "score": {"pearson": PredictionScorer(_count_numbers, _compute_pearson)},
}
"""The scores of each kind of answers, by the key that tells them; of several, the first counts."""


def measure(name: str, folders: Sequence[Path], mixed: bool = False) -> tuple[Measure, str]:
    """Return a score of the answers of each run, and the note that says what it is.

    Args:
        name: predicted.SUBSET.NAME.
        folders: of the runs.
        mixed: whether they may have answered different examples.

    Raises:
        UsageError: a run has no such answers, or they have no such score.
    """
    file, score = name_file(name), name.rpartition(".")[2]
    answers = {folder: read_answers(folder, file) for folder in folders}
    scorers = {folder: _find_scorer(name, score, each[0]) for folder, each in answers.items()}
    if not mixed:
        _check_same(answers)
    statistics = {folder: scorers[folder].statistics(each) for folder, each in answers.items()}
    values = {folder: scorers[folder].value(x.sum(0)) for folder, x in statistics.items()}
    scorer: Any = scorers[folders[0]]
    scores = Scores(name, True, "", scorer, statistics, values)
    return Measure(name, 2, values, scores), f"{name}: of the answers in RUN/{file}"


def name_file(name: str) -> str:
    """Return the name of the file of answers that predicted.SUBSET.NAME is a score of."""
    return f"predict-{name.removeprefix(PREFIX).rpartition('.')[0]}.txt"


def read_answers(folder: Path, name: str) -> list[Answer]:
    """Return the answers of a run, each with the right one."""
    path = folder / name
    if not path.is_file():
        raise UsageError(
            f"{folder} has no {name}; put there what `fairseq-ext predict --examples --json "
            "--right` prints, or train with `fairseq-ext sweep --predict`"
        )
    answers = [each.values for each in parse(numbered_lines(path), RIGHT)]
    if not answers:
        raise UsageError(f"{path} is empty; predict again")
    return answers


def _find_scorer(name: str, score: str, answer: Answer) -> PredictionScorer:
    scorers = next((each for key, each in SCORERS.items() if key in answer), {})
    if score not in scorers:
        known = ", ".join(scorers) or "none of them can be computed from sums over examples"
        raise UsageError(f"{name} is no score of these answers; give {known} for {score!r}")
    return scorers[score]


def _check_same(answers: dict[Path, list[Answer]]) -> None:
    """Raise UsageError if runs answered other questions, as far as right answers tell."""
    (first, one), *others = answers.items()
    for folder, other in others:
        if [each["right"] for each in one] != [each["right"] for each in other]:
            raise UsageError(
                f"{first} and {folder} have other right answers, so that they answered other "
                "examples; predict the same ones with both"
            )
