"""A bar for each variant: the mean over its repetitions, and the standard error of that."""

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fairseq_ext.evaluation.layout import standard_error
from fairseq_ext.evaluation.pictures import COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOM = 0.15  # of the axis, below and above what is shown


def draw_bars(values: Mapping[str, Sequence[float]], title: str, baseline: str) -> "Figure":
    """The values of each variant's repetitions, with a line at the mean of the baseline.

    The axis does not begin at 0, so that small differences are seen.
    """
    from matplotlib.figure import Figure

    means = {name: statistics.mean(each) for name, each in values.items()}
    errors = {name: standard_error(each) or 0.0 for name, each in values.items()}
    figure = Figure(figsize=(1.6 + 0.9 * len(means), 4.2), layout="constrained")
    axes = figure.add_subplot(ylabel=title)
    colours = [COLOURS[name != baseline] for name in means]
    axes.bar(list(means), list(means.values()), 0.7, yerr=list(errors.values()), color=colours)
    axes.axhline(means[baseline], color=COLOURS[0], lw=1, ls="--")
    low = min(means[name] - errors[name] for name in means)
    high = max(means[name] + errors[name] for name in means)
    margin = ROOM * (high - low) or abs(high) * ROOM or 1.0
    axes.set_ylim(low - margin, high + margin)
    axes.spines[["top", "right"]].set_visible(False)
    for label in axes.get_xticklabels():
        label.set(rotation=30, horizontalalignment="right")
    return figure
