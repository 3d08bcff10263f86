"""Intervals of confidence, and two-sided tests of a difference to a baseline.

The tests are not those of sacrebleu 2.6: the p-value of its bootstrap tends to a one-sided one,
and it does not count ties, so that equal outputs get the smallest p there is.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

SEED = 12345
LEVEL = 0.95  # of the intervals
RESAMPLES = 1000  # for an interval
ROUNDING = 1e-9  # share by which equal differences may differ


class Comparison(NamedTuple):
    """A difference to the baseline, its interval of confidence, and the two-sided p-value.

    The interval is None where the test has none; p is NaN where it cannot be computed.
    """

    difference: float
    interval: tuple[float, float] | None
    p: float


def paired_t(system: Sequence[float], baseline: Sequence[float]) -> Comparison:
    """Student's test of the mean difference of two or more pairs of scores."""
    from scipy import stats  # slow

    differences = np.subtract(system, baseline)
    mean = float(differences.mean())
    if not math.isfinite(mean) or np.ptp(differences) <= ROUNDING * abs(mean):
        return Comparison(mean, None, math.nan)
    result = stats.ttest_rel(system, baseline)
    interval = result.confidence_interval(LEVEL)
    return Comparison(mean, (float(interval.low), float(interval.high)), float(result.pvalue))


Value = Callable[[np.ndarray], float]


def bootstrap(system: np.ndarray, baseline: np.ndarray, value: Value, samples: int) -> Comparison:
    """Paired bootstrap resampling of sentences.

    Args:
        system, baseline: numbers of each sentence, [sentences, numbers].
        value: the score, from their sum.
    """
    observed = value(system.sum(0)) - value(baseline.sum(0))
    differences = np.array(
        [
            value(system[i].sum(0)) - value(baseline[i].sum(0))
            for i in _resampled(len(system), samples)
        ]
    )
    p = _share(np.abs(differences - observed), observed)
    return Comparison(observed, _interval(differences), p)


def confidence(numbers: np.ndarray, value: Value, samples: int = RESAMPLES) -> tuple[float, float]:
    """Percentile interval of a score, by bootstrap resampling of sentences; see `bootstrap`."""
    return _interval([value(numbers[i].sum(0)) for i in _resampled(len(numbers), samples)])


def _resampled(size: int, samples: int) -> Iterator[np.ndarray]:
    """Indices of as many sentences as there are, drawn with replacement."""
    rng = np.random.default_rng(SEED)
    return (rng.integers(size, size=size) for _ in range(samples))


def _interval(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def randomisation(
    system: np.ndarray, baseline: np.ndarray, value: Value, samples: int
) -> Comparison:
    """Paired approximate randomisation: the two outputs of a sentence are swapped at random."""
    rng = np.random.default_rng(SEED)
    observed = value(system.sum(0)) - value(baseline.sum(0))
    swaps = (rng.integers(2, size=(len(system), 1), dtype=bool) for _ in range(samples))
    differences = [
        value(np.where(swap, baseline, system).sum(0))
        - value(np.where(swap, system, baseline).sum(0))
        for swap in swaps
    ]
    return Comparison(observed, None, _share(np.abs(differences), observed))


def _share(found: np.ndarray, observed: float) -> float:
    """Share of values that are as far out as what was observed, which itself counts as one."""
    return (1 + int(np.sum(found >= abs(observed) * (1 - ROUNDING)))) / (1 + len(found))


def holm(values: Iterable[float]) -> list[float]:
    """p-values corrected for their number (Holm 1979); NaN stays and is not counted."""
    corrected = list(values)
    order = sorted((p, i) for i, p in enumerate(corrected) if not math.isnan(p))
    largest = 0.0
    for rank, (p, index) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p))
        corrected[index] = largest
    return corrected
