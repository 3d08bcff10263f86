"""Variants compared with a baseline, each run with its match: which difference may be chance."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.metrics import Scores
from fairseq_ext.evaluation.runs import Run
from fairseq_ext.evaluation.significance import (
    LEVEL,
    SEED,
    Comparison,
    bootstrap,
    holm,
    paired_t,
    randomisation,
)

FEWEST = 100  # resamples
SMALLEST = 1e-4  # p that is shown

Pairs = Mapping[str, Sequence[tuple[Run, Run]]]  # variant -> its runs with those of the baseline


class Measure(NamedTuple):
    """One result of each run; ``scores`` holds what can be resampled, if anything."""

    title: str
    digits: int
    values: Mapping[Path, float]
    scores: Scores | None = None


class Resampling(NamedTuple):
    """A test on the sentences of two outputs; ``size`` is its usual number of resamples."""

    function: Callable[..., Comparison]
    size: int
    title: str
    meaning: str


MEANING = "p: how probable a difference at least as large is if "
RESAMPLINGS = {
    "bootstrap": Resampling(
        bootstrap,
        1000,
        "paired bootstrap resampling",
        f"{MEANING}both models are equally good at sentences like these; other seeds may differ",
    ),
    "randomisation": Resampling(
        randomisation,
        10_000,
        "paired approximate randomisation",
        f"{MEANING}it is chance which model made which translation; other seeds may differ",
    ),
}
TESTS = ["t", *RESAMPLINGS]


def match(test: str, runs: Mapping[str, Sequence[Run]], baseline: str) -> Pairs:
    """The runs with the same number of each variant and the baseline.

    Raises:
        UsageError: these runs do not allow the test, or there is no such baseline.
    """
    if baseline not in runs or len(runs) < 2:
        raise UsageError(
            f"--test compares two variants or more, one of them the --baseline, here {baseline}; "
            f"the runs are of {', '.join(runs)}"
        )
    numbered = {name: {run.repetition: run for run in each} for name, each in runs.items()}
    base = numbered.pop(baseline)
    for variant, ours in numbered.items():
        if alone := ours.keys() ^ base.keys():
            one, other = (variant, baseline) if min(alone) in ours else (baseline, variant)
            raise UsageError(
                f"{one} has {min(alone) or 'a run without number'} and {other} has not; a test "
                "needs the same repetitions of all variants"
            )
    if test == "t" and len(base) < 2:
        raise UsageError(
            f"a t-test needs two repetitions or more, and {baseline} has {len(base)}; train more "
            "seeds or folds, or give --test bootstrap"
        )
    return {
        variant: [(ours[name], base[name]) for name in base] for variant, ours in numbered.items()
    }


def compare(test: str, pairs: Pairs, measure: Measure, size: int | None = None) -> list[str]:
    """What was tested, each difference to the baseline, and what its p-value means, line by line.

    ``size`` is the number of resamples, by default that of the test. Raises UsageError if there is
    nothing to resample.
    """
    if test == "t":
        title, meaning = _about_t(pairs)
        found = {name: _over_runs(matched, measure) for name, matched in pairs.items()}
    else:
        _, usual, title, meaning = RESAMPLINGS[test]
        title += f", {size or usual} resamples, seed {SEED}"
        found = _over_sentences(RESAMPLINGS[test], pairs, measure, size or usual)
    corrected = holm(each.p for each in found.values())
    several = len(found) > 1
    lines = [
        f"{name}: {_shown(each, measure.digits)}"
        + (f", corrected {_rounded(p)}" if several else "")
        for (name, each), p in zip(found.items(), corrected, strict=True)
    ]
    baseline = next(iter(pairs.values()))[0][1].variant
    title = f"{measure.title} against {baseline}: {title}; p two-sided"
    return [title + f", corrected for {len(found)} comparisons (Holm)" * several, *lines, meaning]


def _about_t(pairs: Pairs) -> tuple[str, str]:
    names = [run.repetition for run, _ in next(iter(pairs.values()))]
    meaning = f"{MEANING}the variants are equally good and differences vary normally"
    if any("fold" in name for name in names):
        meaning += "; folds share training data, so that it is too small"
    return f"paired t-test over n = {len(names)} ({', '.join(names)})", meaning


def _over_runs(matched: Sequence[tuple[Run, Run]], measure: Measure) -> Comparison:
    values = [[measure.values[run.folder] for run in both] for both in matched]
    return paired_t(*zip(*values, strict=True))


def _over_sentences(
    test: Resampling, pairs: Pairs, measure: Measure, size: int
) -> dict[str, Comparison]:
    scores = measure.scores
    if scores is None:
        raise UsageError(
            f"{measure.title} is of the log and has no sentences to resample; give --test t, or a "
            "score of translations as the first --metric"
        )
    return {
        f"{variant}/{run.repetition}".rstrip("/"): test.function(
            *(scores.statistics[each.folder] for each in (run, base)), scores.scorer.value, size
        )
        for variant, matched in pairs.items()
        for run, base in matched
    }


def _shown(found: Comparison, digits: int) -> str:
    text = f"difference {found.difference:+.{digits}f}"
    if found.interval:
        low, high = (f"{end:+.{digits}f}" for end in found.interval)
        text += f", {LEVEL:.0%} interval {low} to {high}"
    if not math.isfinite(found.difference):
        return f"{text}, p unknown since a value is not finite"
    return f"{text}, p {_rounded(found.p)}"


def _rounded(p: float) -> str:
    if math.isnan(p):
        return "unknown since all differences are equal"
    return f"{p:.4f}" if p >= SMALLEST else f"< {SMALLEST}"
