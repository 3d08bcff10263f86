"""Plot a logged metric of training runs over updates.

Lines of training are thin, lines of validation thick; a single value is a point. Repetitions of a
variant (VARIANT/seed-N, VARIANT/fold-N) share a colour, and lines of earlier variants are wider, so
that equal lines are all seen. The first tenth of a curve, where losses are high, may leave the
axis. Beside the picture are its numbers, as CSV.

Example:
  fairseq-ext curves checkpoints/study/*/seed-* --out curves.png
  fairseq-ext curves checkpoints/study/hna/seed-1 --metric nll_loss --out curves.svg
"""

import argparse
import math
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation import pictures
from fairseq_ext.training_logs import name_variants, read_log

KINDS = {"train_inner": "training", "train": "training", "valid": "validation"}
EARLY = 0.1  # share of a curve that may leave the axis
WIDEST = 7.0  # points by which a line is wider than that of the last variant, at most


class Curve(NamedTuple):
    """Values over updates.

    Attributes:
        kind: "training", "validation", or the name of another validation subset.
    """

    variant: str
    run: str
    kind: str
    updates: list[int]
    values: list[float]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `fairseq-ext curves`."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder with a train.log")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help=".png, .svg, .pdf")
    parser.add_argument("--metric", default="loss", help="as it is named in the log; default: loss")


def run(args: argparse.Namespace) -> None:
    """Write the picture and its numbers."""
    pictures.check_picture(args.out)
    curves = read_curves(args.runs, args.metric)
    pictures.save(draw_curves(curves, args.metric), args.out, list_points(curves, args.metric))
    pictures.announce(args.out)


def read_curves(runs: Sequence[Path], metric: str) -> list[Curve]:
    """Return all curves of a metric.

    Raises:
        UsageError: a run has no log, or no finite value of the metric in it.
    """
    curves = []
    for run, variant in zip(runs, name_variants(runs), strict=True):
        points = read_points(run, metric)
        if not points:
            metrics = {name for record in read_log(run) for name in record.values}
            missing = f"no finite {metric}" if metric in metrics else f"no {metric}"
            others = ", ".join(sorted(metrics - {metric}))
            raise UsageError(f"{run} has {missing} in its log; it has {others}")
        if "train_inner" in points:
            points.pop("train", None)  # one value for each epoch is too coarse
        for kind, pairs in points.items():
            columns = map(list, zip(*pairs, strict=True))
            curves.append(Curve(variant, str(run), KINDS.get(kind, kind), *columns))
    return curves


def read_points(run: Path, metric: str) -> dict[str, list[tuple[int, float]]]:
    """Return (update, value) of a metric by the kind of log line; values are finite."""
    points: dict[str, list[tuple[int, float]]] = {}
    for kind, update, values in read_log(run):
        if math.isfinite(values.get(metric, math.nan)):
            points.setdefault(kind, []).append((update, values[metric]))
    return points


def list_points(curves: Sequence[Curve], metric: str) -> list[dict[str, Any]]:
    """Return a record for each point of each curve."""
    return [
        {"variant": variant, "run": run, "kind": kind, "update": update, metric: value}
        for variant, run, kind, updates, values in curves
        for update, value in zip(updates, values, strict=True)
    ]


def draw_curves(curves: Sequence[Curve], metric: str) -> "pictures.Figure":
    """Draw all curves in one plot: a colour for each variant, a style for each kind of line."""
    figure = pictures.new_figure(7, 4.2)
    axes = figure.add_subplot(xlabel="updates", ylabel=metric)
    colours = pictures.assign_colours(curve.variant for curve in curves)
    styles = _assign_styles({curve.kind for curve in curves})
    steps = dict(zip(reversed(colours), range(len(colours)), strict=True))
    for curve in curves:
        style = dict(styles[curve.kind], color=colours[curve.variant])
        wider = steps[curve.variant] * min(2.0, WIDEST / len(colours))
        style |= {"lw": style["lw"] + wider, "ms": style["ms"] + 2 * wider}
        pictures.plot_line(axes, curve.updates, curve.values, **style)
    _limit_axes(axes, curves)
    pictures.style_axes(axes)
    keys = [axes.plot([], [], color=c, lw=4, label=name)[0] for name, c in colours.items()]
    keys += [axes.plot([], [], color="0.4", label=k, **s)[0] for k, s in styles.items()]
    axes.legend(handles=keys, frameon=False)
    return figure


def _assign_styles(kinds: set[str]) -> dict[str, dict]:
    styles = {"training": {"lw": 1, "ms": 4}} if "training" in kinds else {}
    lines = zip(sorted(kinds - {"training"}), cycle(["-", "--", ":", "-."]), strict=False)
    return styles | {kind: {"lw": 2, "ls": line, "marker": "o", "ms": 4} for kind, line in lines}


def _limit_axes(axes: "pictures.Axes", curves: Sequence[Curve]) -> None:
    """Set limits that enclose every value after the early ones."""
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
    axes.set_xlim(0, 1.02 * last)  # the last marker is not cut
