"""Look into a checkpoint: attention maps, explaining away, heads, trained weights, in one folder.

What is drawn of all sentences of a split is collected in one pass, batch by batch. Beside each
picture are its numbers, as CSV or JSON; maps.html has the maps of --sentence, or of the first
--sentences of the split, to choose from. The model may be for translation or RoBERTa-style, of this
plugin or fairseq's own.
"""

import argparse
from argparse import Namespace
from collections.abc import Sequence

from fairseq_ext.analysis import columns, heads, maps, pages, streams, weights
from fairseq_ext.analysis.heatmaps import draw_grids
from fairseq_ext.analysis.statistics import ColumnSums
from fairseq_ext.analysis.subjects import SITES, Subject
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.pictures import save

EXAMPLE = """\
  fairseq-ext analyse checkpoints/study/hna/seed-1/checkpoint_best.pt \\
    --data data-bin/multi30k.en-de --split test --out analysis
  fairseq-ext analyse checkpoints/mine/checkpoint_best.pt --limit 500 --out analysis"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    streams.add_arguments(parser, several=False)
    parser.add_argument("--sentence", action="append", metavar="TEXT", help="for maps; repeatable")
    parser.add_argument("--sentences", type=int, metavar="N", help="default: 1")
    maps.add_tokens(parser)


def run(given: argparse.Namespace) -> None:
    streams.check(given)
    check_sentences(given)
    (subject,) = streams.subjects(given)
    found = sentences(subject, given)
    sums, statistics = ColumnSums(), heads.of(subject)
    count = streams.collect(subject, given, sums, statistics)
    of_sentences(subject, found, given)
    print(f"{subject.title}: {count} sentences of {given.split}")
    of_columns(subject, sums, given)
    heads.write([{"model": subject.title, **row} for row in statistics.rows()], given)
    if trained := weights.trained(subject, subject.title):
        weights.write(trained, given.out)
    print(f"{given.out} has {', '.join(sorted(path.name for path in given.out.iterdir()))}")


def check_sentences(given: argparse.Namespace) -> None:
    if given.sentences is not None and given.sentences < 0:
        raise UsageError(f"--sentences is {given.sentences} and must be at least 0")
    maps.check_tokens(given)
    if given.sentence and given.sentences is not None:
        raise UsageError(
            f"--sentences {given.sentences} are of the split, and --sentence is given; leave one "
            "of both out"
        )


def sentences(subject: Subject, given: argparse.Namespace) -> list[maps.Maps]:
    """The maps of those that are given, or of the first ones of the split."""
    texts = [{"sentence": text} for text in given.sentence or ()]
    first = range(1 if given.sentences is None else given.sentences)
    texts = texts or [{"sentence": None, "split": given.split, "index": i} for i in first]
    return [maps.maps_of(subject, Namespace(**text, tokens=given.tokens)) for text in texts]


def of_sentences(subject: Subject, found: Sequence[maps.Maps], given: argparse.Namespace) -> None:
    """maps.html with one after the other; a picture of each site of each, and its numbers."""
    if not found:
        return
    grids = [{site: maps.grid(each, site) for site in each.sites} for each in found]
    for number, sites in enumerate(grids):
        maps.write([found[number]], given.out / f"maps_{number}.json")
        for site, grid in sites.items():
            save(draw_grids([grid], *maps.AXES[site]), given.out / f"maps_{number}_{site}.png")
    parts = [pages.maps_part([each]) for each in found]
    pages.write_page(given.out / "maps.html", f"Attention of {subject.title}", parts)


def of_columns(subject: Subject, sums: ColumnSums, given: argparse.Namespace) -> None:
    rows = [{"model": subject.title, **row} for row in sums.rows()]
    columns.write(rows, [(subject.title, sums)], given)
    for site in [site for site in SITES if any(row["site"] == site for row in rows)]:
        picture = given.out / f"{columns.NAME}_{site}.png"
        save(columns.draw([(subject.title, sums)], site), picture)
        for line in columns.summary(rows, site):
            print(line)
