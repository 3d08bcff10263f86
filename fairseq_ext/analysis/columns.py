"""Draw how much attention keys get: explaining away (Ding et al. 2020, Figure 1).

Of every key of a split, what all queries of its sentence give it together. The picture has a
histogram of the logarithms (natural) for each head; a key is explained away if it gets less than
--epsilon. Under doubly-normalised attention no key gets less than 1/S, S being the keys of its
sentence (Theorem 2); the table says whether that holds. Padding does not count.
"""

import argparse
import math
from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

from fairseq_ext.analysis import streams
from fairseq_ext.analysis.statistics import ColumnSums
from fairseq_ext.analysis.subjects import SITES
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.pictures import COLOURS, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXAMPLE = """\
  fairseq-ext columns checkpoints/study/{una,dna}/seed-1/checkpoint_best.pt \\
    --data data-bin/multi30k.en-de --split test --out columns"""

NAME = "column_sums"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    streams.add_arguments(parser)
    parser.add_argument("--site", choices=SITES, default="encoder", help="default: encoder")
    parser.add_argument(
        "--epsilon", type=float, default=math.exp(-20), metavar="E", help="default: exp(-20)"
    )


def run(given: argparse.Namespace) -> None:
    streams.check(given)
    if not given.epsilon > 0:
        raise UsageError(f"--epsilon is {given.epsilon} and must be above 0")
    rows, found = [], []
    for subject in streams.subjects(given):
        sums = ColumnSums(given.epsilon)
        streams.collect(subject, given, sums)
        rows += [{"model": subject.title, **row} for row in sums.rows()]
        found.append((subject.title, sums))
    for title, sums in found:
        if sums.range(given.site) is None:
            raise UsageError(f"{title} has no {SITES[given.site]}; give another --site")
    write(rows, found, given)
    save(draw(found, given.site), given.out / f"{NAME}.png")
    for line in summary(rows, given.site):
        print(line)


def write(
    rows: Sequence[dict[str, Any]],
    found: Sequence[tuple[str, ColumnSums]],
    given: argparse.Namespace,
) -> None:
    """The table, and with the JSON what the histograms show."""
    shares = [
        {"model": title, "site": site, "layer": layer, "shares": heads.tolist()}
        for title, sums in found
        for (site, layer), heads in sums.histograms().items()
    ]
    _, first = found[0]
    histograms = {"edges": first.edges(), "heads": shares}
    about = {"epsilon": first.epsilon, "split": given.split, "histograms": histograms}
    streams.write_rows(rows, given.out / NAME, **about)


def summary(rows: Sequence[dict[str, Any]], site: str) -> list[str]:
    """For each model the share of keys that are explained away, and the least of S times a sum."""
    lines = []
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model and row["site"] == site]
        if own:
            away = sum(row["explained_away"] for row in own) / len(own)
            below = sum(row["below_bound"] for row in own) / len(own)
            least = min(row["least_times_keys"] for row in own)
            lines.append(
                f"{model}: {away:.2%} of the keys explained away, {below:.2%} get less than 1/S "
                f"(least sum x S: {least:.3g}), over {len(own)} heads of {SITES[site]}"
            )
    return lines


def draw(found: Sequence[tuple[str, ColumnSums]], site: str) -> "Figure":
    """A row for each layer, a column for each model, a line for each head."""
    from matplotlib.figure import Figure

    layers = sorted(
        {place[1] for _, sums in found for place in sums.histograms() if place[0] == site}
    )
    size = 1 + 4 * len(found), 1 + 1.3 * len(layers)
    figure = Figure(figsize=size, layout="constrained")
    every = figure.subplots(len(layers), len(found), squeeze=False, sharex=True, sharey=True)
    for column, (title, sums) in zip(every.T, found, strict=True):
        histograms, edges = sums.histograms(), sums.edges()
        for layer, axes in zip(layers, column, strict=True):
            heads = histograms.get((site, layer), ())
            for shares, colour in zip(heads, cycle(COLOURS), strict=False):
                axes.stairs(shares.tolist(), edges, color=colour, alpha=0.8)
            axes.axvline(math.log(sums.epsilon), color="0.5", lw=1, ls=":")
            axes.set_yscale("symlog", linthresh=1e-3)
            axes.spines[["top", "right"]].set_visible(False)
        column[0].set_title(title, fontsize=9)
    for layer, axes in zip(layers, every[:, 0], strict=True):
        axes.set_ylabel(f"layer {layer}", fontsize=8)
    seen = [edge for _, sums in found for edge in sums.range(site) or ()]
    every[0, 0].set_xlim(min([*seen, math.log(found[0][1].epsilon)]) - 1, max(seen) + 1)
    figure.supxlabel("log of what a key gets from all queries", fontsize=9)
    figure.supylabel("share of keys, a line for each head", fontsize=9)
    return figure
