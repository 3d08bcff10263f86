"""Draw the curves of runs: what fairseq-train logged, over the updates.

Training is thin, validation thick. Repetitions of a variant (VARIANT/seed-N, VARIANT/fold-N) share
a colour. The axis need not hold the first tenth of a curve, where losses are high. Beside the
picture are its numbers, as CSV.
"""

import argparse
import math
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.pictures import check_picture, colours, save, save_numbers
from fairseq_ext.training_logs import name_variants, read_log

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EXAMPLE = """\
  fairseq-ext curves checkpoints/study/*/seed-* --out curves.png
  fairseq-ext curves checkpoints/study/hna/seed-1 --metric nll_loss --out curves.svg"""

KINDS = {"train_inner": "training", "train": "training", "valid": "validation"}
EARLY = 0.1  # share of a curve that may leave the axis


class Curve(NamedTuple):
    """Values over updates; the kind is "training", "validation" or another validation's name."""

    variant: str
    run: str
    kind: str
    updates: list[int]
    values: list[float]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder with a train.log")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help=".png, .svg, .pdf")
    parser.add_argument("--metric", default="loss", help="as it is named in the log; default: loss")


def run(given: argparse.Namespace) -> None:
    check_picture(given.out)
    found = read_curves(given.runs, given.metric)
    save(draw_curves(found, given.metric), given.out)
    save_numbers(records(found, given.metric), given.out)


def read_curves(runs: Sequence[Path], metric: str) -> list[Curve]:
    """All curves of a metric; raises UsageError if a run has no log or the metric is not in it."""
    curves = []
    for run, variant in zip(runs, name_variants(runs), strict=True):
        found, names = _values(run, metric)
        if not found:
            what = f"no finite {metric}" if metric in names else f"no {metric}"
            others = ", ".join(sorted(names - {metric}))
            raise UsageError(f"{run} has {what} in its log; it has {others}")
        if "train_inner" in found:
            found.pop("train", None)  # an epoch: too coarse
        for kind, points in found.items():
            columns = map(list, zip(*points, strict=True))
            curves.append(Curve(variant, str(run), KINDS.get(kind, kind), *columns))
    return curves


def _values(run: Path, metric: str) -> tuple[dict[str, list[tuple[int, float]]], set[str]]:
    """(update, value) by the kind of line, and the names of all metrics."""
    found: dict[str, list[tuple[int, float]]] = {}
    names: set[str] = set()
    for kind, update, values in read_log(run):
        names |= values.keys()
        if math.isfinite(values.get(metric, math.nan)):
            found.setdefault(kind, []).append((update, values[metric]))
    return found, names


def records(curves: Sequence[Curve], metric: str) -> list[dict[str, Any]]:
    return [
        {
            "variant": curve.variant,
            "run": curve.run,
            "kind": curve.kind,
            "update": update,
            metric: value,
        }
        for curve in curves
        for update, value in zip(curve.updates, curve.values, strict=True)
    ]


def draw_curves(curves: Sequence[Curve], metric: str) -> "Figure":
    """One plot of all curves: a colour for each variant, a style for each kind of line."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot(xlabel="updates", ylabel=metric)
    shown = colours(curve.variant for curve in curves)
    styles = _styles({curve.kind for curve in curves})
    for curve in curves:
        axes.plot(curve.updates, curve.values, color=shown[curve.variant], **styles[curve.kind])
    _limit(axes, curves)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    keys = [axes.plot([], [], color=c, lw=4, label=name)[0] for name, c in shown.items()]
    keys += [axes.plot([], [], color="0.4", label=k, **s)[0] for k, s in styles.items()]
    axes.legend(handles=keys, frameon=False)
    return figure


def _styles(kinds: set[str]) -> dict[str, dict]:
    styles = {"training": {"lw": 1, "alpha": 0.6}} if "training" in kinds else {}
    lines = zip(sorted(kinds - {"training"}), cycle(["-", "--", ":", "-."]), strict=False)
    return styles | {kind: {"lw": 2, "ls": line, "marker": "o", "ms": 4} for kind, line in lines}


def _limit(axes: "Axes", curves: Sequence[Curve]) -> None:
    """Limits that hold every value after the early ones."""
    late = [
        value
        for curve in curves
        for update, value in zip(curve.updates, curve.values, strict=True)
        if update >= EARLY * curve.updates[-1]
    ]
    margin = 0.05 * (max(late) - min(late))
    if margin:
        axes.set_ylim(min(late) - margin, max(late) + margin)
    last = max(curve.updates[-1] for curve in curves)
    axes.set_xlim(0, 1.02 * last)  # whole markers at the end
