"""Comparisons of variants with a baseline, by tests over matched runs or over their sentences."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation import significance
from fairseq_ext.evaluation.metrics import Scores, expand_groups
from fairseq_ext.evaluation.runs import Run
from fairseq_ext.evaluation.significance import Comparison

FEWEST_RESAMPLES = 100
SMALLEST_P = 1e-4  # smaller ones are shown as "< 0.0001"

Pairs = Mapping[str, Sequence[tuple[Run, Run]]]
"""Each variant's runs, each with the run of the baseline that has the same number."""


class Measure(NamedTuple):
    """A result of each run.

    Attributes:
        title: its name in tables.
        digits: the number of decimals to show.
        values: by folder of the run, the result.
        scores: numbers of each sentence, which can be resampled; None for a logged value.
    """

    title: str
    digits: int
    values: Mapping[Path, float]
    scores: Scores | None = None


MEANING = "p: how probable a difference at least as large is if "
RESAMPLINGS: dict[str, tuple[Callable[..., Comparison], int, str, str]] = {
    "bootstrap": (
        significance.bootstrap,
        1000,
        "paired bootstrap resampling",
        f"{MEANING}both models are equally good at sentences like these; other seeds may differ",
    ),
    "randomisation": (
        significance.randomisation,
        10_000,
        "paired approximate randomisation",
        f"{MEANING}it is chance which model made which translation; other seeds may differ",
    ),
}
"""Tests on the sentences of two outputs: usual number of resamples, title, and meaning of p."""
OVER_SEEDS = "bootstrap-seeds"
SEED_RESAMPLES = 10_000
TESTS = ["t", *RESAMPLINGS, OVER_SEEDS]

OF_SENTENCES = TESTS[1:]
"""Tests that resample the same sentences of two runs."""


def match_runs(tests: Sequence[str], runs: Mapping[str, Sequence[Run]], baseline: str) -> Pairs:
    """Return the runs of each variant, each with the baseline's run of the same number.

    Raises:
        UsageError: these runs do not allow the tests, or there is no such baseline.
    """
    if baseline not in runs or len(runs) < 2:
        raise UsageError(
            f"--test compares two variants or more, one of them the --baseline, here {baseline}; "
            f"the runs are of {', '.join(runs)}"
        )
    numbered = {name: {run.repetition: run for run in each} for name, each in runs.items()}
    for name, each in runs.items():
        if len(numbered[name]) < len(each):  # of a record that does not say which one is which
            raise UsageError(
                f"{name} has {each[0].repetition or 'runs without number'} twice; a test needs to "
                "know which repetition is which"
            )
    base = numbered.pop(baseline)
    for variant, ours in numbered.items():
        if unmatched := ours.keys() ^ base.keys():
            first = min(unmatched)
            one, other = (variant, baseline) if first in ours else (baseline, variant)
            raise UsageError(
                f"{one} has {first or 'a run without number'} and {other} has not; a test "
                "needs the same repetitions of all variants"
            )
    if "t" in tests and len(base) < 2:
        raise UsageError(
            f"a t-test needs two repetitions or more, and {baseline} has {len(base)}; train more "
            "seeds or folds, or give --test bootstrap"
        )
    return {name: [(ours[n], base[n]) for n in base] for name, ours in numbered.items()}


def choose_metrics(by: Sequence[str] | None, known: Collection[str]) -> list[str]:
    """Return the metrics to test by: those of --by, or the first known one.

    Raises:
        UsageError: --by names another one than these.
    """
    names = expand_groups(by or [next(iter(known))])
    if unknown := [name for name in names if name not in known]:
        raise UsageError(
            f"--by names {unknown[0]}, no metric of this table; give some of {', '.join(known)}"
        )
    return names


def compare(test: str, pairs: Pairs, measure: Measure, size: int | None = None) -> list[str]:
    """Test each variant's difference to the baseline; return lines of text.

    The lines are the name of the test, a line for each difference, and the meaning of p.

    Args:
        test: a name of TESTS.
        pairs: see `match_runs`.
        measure: the result to compare.
        size: the number of resamples, if not the test's usual one.

    Raises:
        UsageError: the test resamples sentences and the measure has none.
    """
    if test == "t":
        title, meaning = _describe_t_test(pairs)
        results = {name: _compare_runs(matched, measure) for name, matched in pairs.items()}
    elif test == OVER_SEEDS:
        size = size or SEED_RESAMPLES
        title, meaning = _describe_seeds(pairs, size)
        results = {name: _compare_seeds(each, measure, size) for name, each in pairs.items()}
    else:
        resample, usual_size, title, meaning = RESAMPLINGS[test]
        size = size or usual_size
        title += f", {size} resamples, seed {significance.SEED}"
        results = _compare_sentences(resample, pairs, measure, size)
    lines = [f"{name}: {_show(result, measure.digits)}" for name, result in results.items()]
    baseline = next(iter(pairs.values()))[0][1].variant
    title = f"{measure.title} against {baseline}: {title}; p two-sided"
    if len(results) > 1:
        title += f", corrected for {len(results)} comparisons (Holm)"
        adjusted = significance.holm(result.p for result in results.values())
        lines = [f"{line}, corrected {_show_p(p)}" for line, p in zip(lines, adjusted, strict=True)]
    return [title, *lines, meaning]


def _describe_t_test(pairs: Pairs) -> tuple[str, str]:
    """Return the name of the test and the meaning of its p-value."""
    names = [run.repetition for run, _ in next(iter(pairs.values()))]
    meaning = f"{MEANING}the variants are equally good and differences vary normally"
    if any("fold" in name for name in names):
        meaning += "; folds share training data, so that it is too small"
    return f"paired t-test over n = {len(names)} ({', '.join(names)})", meaning


def _describe_seeds(pairs: Pairs, size: int) -> tuple[str, str]:
    """Return the name of the bootstrap over seeds and sentences, and the meaning of its p-value."""
    names = [run.repetition for run, _ in next(iter(pairs.values()))]
    over = f"{', '.join(names)} and over examples" if len(names) > 1 else "examples"
    title = f"paired bootstrap over {over}, {size} resamples, seed {significance.SEED}"
    return title, f"{MEANING}both variants are equally good, at examples and with seeds like these"


def _compare_runs(matched: Sequence[tuple[Run, Run]], measure: Measure) -> Comparison:
    values = [[measure.values[run.folder] for run in both] for both in matched]
    return significance.paired_t(*zip(*values, strict=True))


def _compare_sentences(
    test: Callable[..., Comparison], pairs: Pairs, measure: Measure, size: int
) -> dict[str, Comparison]:
    """Compare each matched pair of runs; return the results by VARIANT/REPETITION."""
    scores = _require_scores(measure)
    return {
        f"{variant}/{run.repetition}".rstrip("/"): test(
            *(scores.statistics[each.folder] for each in (run, base)), scores.scorer.value, size
        )
        for variant, matched in pairs.items()
        for run, base in matched
    }


def _compare_seeds(matched: Sequence[tuple[Run, Run]], measure: Measure, size: int) -> Comparison:
    """Compare the matched runs of two variants over their seeds and sentences."""
    scores = _require_scores(measure)
    sides = [[scores.statistics[run.folder] for run in side] for side in zip(*matched, strict=True)]
    if len({len(statistics) for side in sides for statistics in side}) > 1:
        raise UsageError(
            f"the runs of {matched[0][0].variant} and {matched[0][1].variant} have different "
            f"numbers of sentences, and --test {OVER_SEEDS} resamples the same ones of all; give "
            "--test t"
        )
    ours, base = (np.stack(side).astype(float) for side in sides)
    return significance.bootstrap_over_seeds(ours, base, scores.scorer.value, size)


def _require_scores(measure: Measure) -> Scores:
    """Return the numbers of each sentence; raise UsageError if the measure has none."""
    if measure.scores is None:
        raise UsageError(
            f"{measure.title} is of a log or a record and has no sentences to resample; give "
            "--test t, or a score of translations or of predictions of runs as the first --metric"
        )
    return measure.scores


def _show(result: Comparison, digits: int) -> str:
    text = f"difference {result.difference:+.{digits}f}"
    if result.interval:
        low, high = (f"{end:+.{digits}f}" for end in result.interval)
        text += f", {significance.LEVEL:.0%} interval {low} to {high}"
    if not math.isfinite(result.difference):
        return f"{text}, p unknown since a value is not finite"
    return f"{text}, p {_show_p(result.p)}"


def _show_p(p: float) -> str:
    if math.isnan(p):
        return "unknown since all differences are equal"
    return f"{p:.4f}" if p >= SMALLEST_P else f"< {SMALLEST_P}"
