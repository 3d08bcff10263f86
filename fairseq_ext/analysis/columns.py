r"""Plot how much attention each key receives, with DNA's lower bound.

For every key of a split this is what all queries of its sentence give it together (Ding et al.
2020, Figure 1). The picture has a histogram of the logarithms (natural) for each head. A key is
explained away if it receives less than --epsilon. Under doubly-normalised attention (DNA) no key
receives less than 1/S, S being the keys of its sentence (Theorem 2); the table says whether that
holds. Padding does not count. Of a model with multi-view attention (--task vqa), keys are the
boxes of a secondary view, queries those of the primary view, and layers are secondary views.

Example:
  fairseq-ext columns checkpoints/study/{una,dna}/seed-1/checkpoint_best.pt \
    --data data-bin/multi30k.en-de --split test --out columns
  fairseq-ext columns checkpoints/vqa/{una,dna}/seed-1/checkpoint_best.pt --out columns
"""

import argparse
import math
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from fairseq_ext.analysis import arguments
from fairseq_ext.analysis.checkpoint_kinds import open_inspector
from fairseq_ext.analysis.recording import SITES
from fairseq_ext.analysis.statistics import ColumnSums, collect, label_rows
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.pictures import (
    announce,
    assign_colours,
    new_figure,
    save,
    style_axes,
    write_rows,
)

NAME = "column_sums"

ModelSums = tuple[str, ColumnSums]
"""A model's title and its sums."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `fairseq-ext columns`."""
    arguments.add(parser, *arguments.OF_A_SPLIT)
    site = "default: encoder, or views if there is multi-view attention"
    arguments.add(parser, "--site", default=None, help=site)
    add = parser.add_argument
    add("--epsilon", type=float, default=math.exp(-20), metavar="E", help="default: exp(-20)")


def run(args: argparse.Namespace) -> None:
    """Write the table and the picture, and print a summary."""
    arguments.check_split(args)
    if not args.epsilon > 0:
        raise UsageError(f"--epsilon is {args.epsilon} and must be above 0")
    models = []
    for inspector in arguments.open_inspectors(args, open_inspector):
        args.site = args.site or inspector.main_site
        sums = ColumnSums(args.epsilon)
        collect(inspector, args, sums)
        if sums.range(args.site) is None:
            raise UsageError(f"{inspector.title} has no {SITES[args.site]}; give another --site")
        models.append((inspector.title, sums))
    rows = write(models, args)
    save(draw(models, args.site), args.out / f"{NAME}.png")
    print_summary(rows, args.site)
    announce(args.out)


def write(models: Sequence[ModelSums], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Write and return the rows of all heads; the JSON also has what the histograms show."""
    rows = [row for title, sums in models for row in label_rows(title, sums)]
    shares = [
        {"model": title, "site": site, "layer": layer, "shares": heads.tolist()}
        for title, sums in models
        for (site, layer), heads in sums.histograms().items()
    ]
    _, first = models[0]
    histograms = {"edges": first.edges(), "heads": shares}
    about = {"epsilon": first.epsilon, "split": args.split, "histograms": histograms}
    write_rows(rows, args.out / NAME, **about)
    return rows


def print_summary(rows: Sequence[dict[str, Any]], site: str) -> None:
    """Print for each model the share of keys explained away and the least of S times a sum."""
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model and row["site"] == site]
        if own:
            keys = sum(row["keys"] for row in own)  # of views: not equally many
            away = sum(row["explained_away"] * row["keys"] for row in own) / keys
            below = sum(row["below_bound"] * row["keys"] for row in own) / keys
            least = min(row["least_times_keys"] for row in own)
            print(
                f"{model}: {away:.2%} of the keys explained away, {below:.2%} get less than 1/S "
                f"(least sum x S: {least:.3g}), over {len(own)} heads of {SITES[site]}"
            )


def draw(models: Sequence[ModelSums], site: str) -> Figure:
    """Draw a row for each layer, a column for each model and a line for each head."""
    histograms = [sums.histograms() for _, sums in models]
    layers = sorted({layer for each in histograms for at, layer in each if at == site})
    figure = new_figure(1 + 4 * len(models), 1 + 1.3 * len(layers))
    panels = figure.subplots(len(layers), len(models), squeeze=False, sharex=True, sharey=True)
    for column, (title, sums), shares in zip(panels.T, models, histograms, strict=True):
        for layer, axes in zip(layers, column, strict=True):
            heads = shares.get((site, layer), ())
            colours = assign_colours(map(str, range(len(heads))))
            for head, (number, colour) in zip(heads, colours.items(), strict=True):
                edges, label = sums.edges(), f"head {number}"
                axes.stairs(head.tolist(), edges, color=colour, alpha=0.8, label=label)
            axes.axvline(math.log(sums.epsilon), color="0.5", lw=1, ls=":", label="epsilon")
            axes.set_yscale("symlog", linthresh=1e-3)
            style_axes(axes, grid=False)
        column[0].set_title(f"{title}\n{SITES[site]}", fontsize=9)
        column[-1].set_xlabel("log of what a key gets from all queries", fontsize=9)
    for layer, axes in zip(layers, panels[:, 0], strict=True):
        axes.set_ylabel(f"layer {layer}", fontsize=8)
    filled = [edge for _, sums in models for edge in sums.range(site) or ()]
    lowest = min([*filled, math.log(models[0][1].epsilon)])
    panels[0, 0].set_xlim(lowest - 1, max(filled) + 1)
    figure.supylabel("share of keys", fontsize=9)
    handles = [axes.get_legend_handles_labels() for axes in panels.flat]
    legend = {label: line for each in handles for line, label in zip(*each, strict=True)}
    columns = min(len(legend), 5 * len(models))
    figure.legend(legend.values(), legend, loc="outside lower center", ncols=columns, fontsize=8)
    return figure
