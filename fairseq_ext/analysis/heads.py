"""Describe attention heads over a split: entropy, distance, similarity, fit to patterns.

Means over all queries that are no padding: entropy in nats, distance in tokens between a query and
what it looks at, similarity 1 - JS / log 2 to the other heads of the layer (JS: Jensen-Shannon
divergence, as in Clark et al. 2019), and of each pattern of attention guidance the share of a row
that lies where the pattern wants it (rows for which it wants nothing are left out; nan if the
dictionary has none of its symbols). Rows of hard-coded heads need not sum to one, and are taken as
they are.
"""

import argparse
from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from fairseq_ext.analysis import streams
from fairseq_ext.analysis.statistics import HeadStatistics
from fairseq_ext.analysis.subjects import SITES, Subject
from fairseq_ext.evaluation.pictures import save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXAMPLE = """\
  fairseq-ext heads checkpoints/study/{una,dna}/seed-1/checkpoint_best.pt \\
    --data data-bin/multi30k.en-de --split test --out heads"""

PLACE = ("model", "site", "layer", "head")
NAME = "heads"
UNBOUNDED = ("entropy", "distance")  # what is no share
ACROSS = 5  # panels


def add_arguments(parser: argparse.ArgumentParser) -> None:
    streams.add_arguments(parser)


def run(given: argparse.Namespace) -> None:
    streams.check(given)
    rows = []
    for subject in streams.subjects(given):
        statistics = of(subject)
        streams.collect(subject, given, statistics)
        rows += [{"model": subject.title, **row} for row in statistics.rows()]
    write(rows, given)


def periods(subject: Subject) -> list[str]:
    """The usual symbols of a full stop, those that the training was told, and in a vocabulary of
    numbers those of its tokeniser."""
    found = [".", "\u2581.", "\u0120.", *getattr(subject.criterion, "ag_period", "").split()]
    if subject.by_id:
        numbers = map(subject.vocabulary.tokenizer.token_to_id, found)
        found += [str(number) for number in numbers if number is not None]
    return list(dict.fromkeys(found))


def of(subject: Subject) -> HeadStatistics:
    dictionaries = {"encoder": subject.source}
    if subject.translates:
        target = subject.task.target_dictionary
        dictionaries |= {"cross": subject.source, "decoder": target}
    return HeadStatistics(dictionaries, periods(subject))


def write(rows: Sequence[dict[str, Any]], given: argparse.Namespace) -> None:
    streams.write_rows(rows, given.out / NAME, split=given.split)
    for site in [site for site in SITES if any(row["site"] == site for row in rows)]:
        save(draw(rows, site), given.out / f"{NAME}_{site}.png")


def draw(rows: Sequence[dict[str, Any]], site: str) -> "Figure":
    """For each model a panel for each number: layers down, heads across."""
    from matplotlib.figure import Figure

    own = [row for row in rows if row["site"] == site]
    models = list(dict.fromkeys(row["model"] for row in own))
    names = [name for name in own[0] if name not in PLACE]
    shape = max(row["layer"] for row in own) + 1, max(row["head"] for row in own) + 1
    down = ceil(len(names) / ACROSS)
    width, height = ACROSS * max(2.0, 0.2 * shape[1]), down * max(1.5, 0.2 * shape[0]) + 0.5
    figure = Figure(figsize=(width, height * len(models)), layout="constrained")
    parts = figure.subfigures(len(models), 1, squeeze=False)[:, 0]
    for part, model in zip(parts, models, strict=True):
        every = part.subplots(down, ACROSS, squeeze=False).flat
        for axes, name in zip(every, names, strict=False):
            values = np.full(shape, np.nan)
            for row in own:
                if row["model"] == model:
                    values[row["layer"], row["head"]] = row[name]
            most = max(row[name] for row in own) if name in UNBOUNDED else 1
            image = axes.imshow(values, cmap="Blues", vmin=0, vmax=most, aspect="auto")
            part.colorbar(image, ax=axes).ax.tick_params(labelsize=6)
            axes.set_title(name, fontsize=8)
            axes.tick_params(labelsize=6)
            for axis in (axes.xaxis, axes.yaxis):
                axis.get_major_locator().set_params(integer=True)
        for axes in list(part.axes)[len(names) : down * ACROSS]:
            axes.remove()
        part.suptitle(f"{model}: layers and heads of {SITES[site]}", fontsize=8)
    return figure
