"""Confidence intervals, and two-sided tests of a difference to a baseline.

They replace the tests of sacrebleu 2.6: the p-value of its bootstrap tends to a one-sided one, and
it does not count ties, so that equal outputs get the smallest p there is.

In all functions, the statistics of an output are numbers of each sentence, [sentences, numbers],
and `value` computes a score from their sum, [numbers].
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

SEED = 12345
LEVEL = 0.95  # of the intervals
RESAMPLES = 1000  # for an interval
ROUNDING = 1e-9  # share by which equal differences may differ

Value = Callable[[np.ndarray], float]


class Comparison(NamedTuple):
    """A difference to the baseline, its confidence interval, and the two-sided p-value.

    The interval is None where the test has none; p is NaN where it cannot be computed.
    """

    difference: float
    interval: tuple[float, float] | None
    p: float


def paired_t(system: Sequence[float], baseline: Sequence[float]) -> Comparison:
    """Compare two or more pairs of scores by Student's t-test of their mean difference."""
    from scipy import stats  # slow

    differences = np.subtract(system, baseline)
    mean = float(differences.mean())
    if not math.isfinite(mean) or np.ptp(differences) <= ROUNDING * abs(mean):
        return Comparison(mean, None, math.nan)
    result = stats.ttest_rel(system, baseline)
    interval = result.confidence_interval(LEVEL)
    return Comparison(mean, (float(interval.low), float(interval.high)), float(result.pvalue))


def bootstrap(system: np.ndarray, baseline: np.ndarray, value: Value, samples: int) -> Comparison:
    """Compare two outputs by paired bootstrap resampling of sentences."""
    return bootstrap_over_seeds(system[None], baseline[None], value, samples)


def bootstrap_over_seeds(
    systems: np.ndarray, baselines: np.ndarray, value: Value, samples: int
) -> Comparison:
    """Compare the trainings of two variants by resampling both seeds and sentences.

    The difference is the mean over seeds. A sample has as many seeds, with replacement, each with
    the outputs of both variants, and as many sentences, with replacement, the same of all seeds.
    The spread of n seeds is underestimated by the factor sqrt((n - 1) / n).

    Args:
        systems: statistics of the outputs of one variant, [seeds, sentences, numbers].
        baselines: the same of the baseline, seed by seed.
        value: see above.
        samples: the number of samples.
    """
    pairs = np.stack([systems, baselines], 1)

    def compare(sums: np.ndarray) -> np.ndarray:
        return np.array([value(ours) - value(base) for ours, base in sums])

    observed = float(compare(pairs.sum(2)).mean())
    seeds, _, sentences, _ = pairs.shape
    rng = np.random.default_rng(SEED)
    differences = []
    for _ in range(samples):
        counts = np.bincount(rng.integers(sentences, size=sentences), minlength=sentences)
        by_seed = compare(np.einsum("n,spnk->spk", counts, pairs))
        differences.append(float(by_seed[rng.integers(seeds, size=seeds)].mean()))
    p = _share_at_least(np.abs(np.subtract(differences, observed)), observed)
    return Comparison(observed, _percentiles(differences), p)


def confidence_interval(statistics: np.ndarray, value: Value) -> tuple[float, float]:
    """Return the percentile interval of a score, by bootstrap resampling of sentences."""
    indices = _resample(len(statistics), RESAMPLES)
    return _percentiles([value(statistics[i].sum(0)) for i in indices])


def _resample(size: int, samples: int) -> Iterator[np.ndarray]:
    """Yield indices of `size` sentences sampled with replacement."""
    rng = np.random.default_rng(SEED)
    return (rng.integers(size, size=size) for _ in range(samples))


def _percentiles(values: Sequence[float]) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def randomisation(
    system: np.ndarray, baseline: np.ndarray, value: Value, samples: int
) -> Comparison:
    """Compare two outputs by paired approximate randomisation.

    In each sample, the two outputs of every sentence are swapped at random or not.
    """
    rng = np.random.default_rng(SEED)
    swaps = (rng.integers(2, size=(len(system), 1), dtype=bool) for _ in range(samples))
    pair = np.stack([system, baseline])
    differences = [_difference(value, *np.where(swap, pair[::-1], pair)) for swap in swaps]
    observed = _difference(value, system, baseline)
    return Comparison(observed, None, _share_at_least(np.abs(differences), observed))


def _difference(value: Value, system: np.ndarray, baseline: np.ndarray) -> float:
    return value(system.sum(0)) - value(baseline.sum(0))


def _share_at_least(values: np.ndarray, observed: float) -> float:
    """Return the share of values as far from 0 as the observed one, which itself counts as one."""
    return (1 + int(np.sum(values >= abs(observed) * (1 - ROUNDING)))) / (1 + len(values))


def holm(values: Iterable[float]) -> list[float]:
    """Return p-values corrected for their number (Holm 1979); NaN stays and is not counted."""
    p = np.array(list(values), float)
    order = np.argsort(p)  # NaN comes last
    factors = np.isfinite(p).sum() - np.arange(len(p))
    p[order] = np.maximum.accumulate(np.minimum(1, factors * p[order]))
    return p.tolist()
