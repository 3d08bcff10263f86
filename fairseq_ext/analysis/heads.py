r"""Describe attention heads over a split: entropy, distance, similarity, fit to patterns.

Numbers are means over all queries that are no padding: entropy in nats; distance in tokens between
a query and the keys it attends to; similarity 1 - JS / log 2 to the other heads of the layer (JS:
Jensen-Shannon divergence, as in Clark et al. 2019); and for each pattern of attention guidance the
share of a row that lies where the pattern wants it, beside its chance level, which even attention
to all keys has. Rows for which a pattern wants nothing are left out (nan if the dictionary has none
of its symbols). Weights are taken as shares of their row, since
rows of sinks, mixed heads and hard-coded heads do not sum to one; those below 0 count as 0.

Example:
  fairseq-ext heads checkpoints/study/{una,dna}/seed-1/checkpoint_best.pt \
    --data data-bin/multi30k.en-de --split test --out heads
"""

import argparse
import math
from collections.abc import Sequence
from math import ceil
from typing import Any

from matplotlib.figure import Figure

from fairseq_ext.analysis import arguments
from fairseq_ext.analysis.heatmaps import arrange, draw_numbers
from fairseq_ext.analysis.inspector import ModelInspector
from fairseq_ext.analysis.recording import SITES
from fairseq_ext.analysis.statistics import (
    CHANCE,
    SENTENCES,
    HeadStatistics,
    collect,
    label_rows,
    list_sites,
)
from fairseq_ext.evaluation.pictures import announce, new_figure, remove, save, write_rows

PLACE = ("model", "site", "layer", "head", SENTENCES)
NAME = "heads"
UNBOUNDED = ("entropy", "distance")
UNITS = {"entropy": "nats", "distance": "tokens", "similarity": "1 − JS / log 2"}
"""Units of statistics; all others are shares of attention that lie on a pattern."""
ACROSS = 5  # panels


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `fairseq-ext heads`."""
    arguments.add(parser, *arguments.OF_A_SPLIT)


def run(args: argparse.Namespace) -> None:
    """Write the table and a picture of each site."""
    arguments.check_split(args)
    rows = []
    for inspector in arguments.open_inspectors(args):
        statistics = new_statistics(inspector)
        collect(inspector, args, statistics)
        rows += label_rows(inspector.title, statistics)
    write(rows, args)
    announce(args.out)


def find_periods(inspector: ModelInspector) -> list[str]:
    """Return the symbols that count as full stop in a model's dictionaries.

    These are the usual ones, the training's own (--ag-period) and, where symbols
    are a tokeniser's numbers, the numbers of both.
    """
    periods = [".", "\u2581.", "\u0120.", *getattr(inspector.criterion, "ag_period", "").split()]
    if inspector.codec.has_number_symbols:
        numbers = map(inspector.codec.vocabulary.tokenizer.token_to_id, periods)
        periods += [str(number) for number in numbers if number is not None]
    return list(dict.fromkeys(periods))


def new_statistics(inspector: ModelInspector) -> HeadStatistics:
    """Return a collector for a model, with its dictionaries."""
    dictionaries = {"encoder": inspector.source}
    if inspector.translates:
        target = inspector.task.target_dictionary
        dictionaries |= {"cross": inspector.source, "decoder": target}
    return HeadStatistics(dictionaries, find_periods(inspector))


def write(rows: Sequence[dict[str, Any]], args: argparse.Namespace) -> None:
    """Write the rows of all heads and a picture of each site."""
    write_rows(rows, args.out / NAME, split=args.split)
    remove(args.out / f"{NAME}_{site}.png" for site in SITES)
    for site in list_sites(rows):
        save(draw(rows, site), args.out / f"{NAME}_{site}.png")


def draw(rows: Sequence[dict[str, Any]], site: str) -> Figure:
    """Draw a panel for each model and statistic: layers down, heads across."""
    own = [row for row in rows if row["site"] == site]
    models = list(dict.fromkeys(row["model"] for row in own))
    names = [name for name in own[0] if name not in PLACE and not name.endswith(CHANCE)]
    shape = max(row["layer"] for row in own) + 1, max(row["head"] for row in own) + 1
    down = ceil(len(names) / ACROSS)
    width, height = ACROSS * max(2.0, 0.2 * shape[1]), down * max(1.5, 0.2 * shape[0]) + 0.5
    figure = new_figure(width, height * len(models))
    parts = figure.subfigures(len(models), 1, squeeze=False)[:, 0]
    for part, model in zip(parts, models, strict=True):
        panels = part.subplots(down, ACROSS, squeeze=False).flat
        ours = [row for row in own if row["model"] == model]
        for axes, name in zip(panels, names, strict=False):
            numbers = arrange(ours, name, *map(range, shape))
            highest = max(row[name] for row in own) if name in UNBOUNDED else 1
            image = draw_numbers(axes, numbers, highest)
            bar = part.colorbar(image, ax=axes)
            bar.ax.tick_params(labelsize=6)
            bar.set_label(UNITS.get(name, "share of attention"), fontsize=6)
            pattern = f"pattern {name}, chance {ours[0].get(name + CHANCE, math.nan):.2f}"
            axes.set_title(name if name in UNITS else pattern, fontsize=8)
            axes.set_xlabel("head", fontsize=6)
            axes.set_ylabel("layer", fontsize=6)
        for axes in list(part.axes)[len(names) : down * ACROSS]:
            axes.remove()
        sentences = f"{ours[0][SENTENCES]:,} sentences"
        part.suptitle(f"{model}: heads of {SITES[site]}, {sentences}", fontsize=8)
    return figure
