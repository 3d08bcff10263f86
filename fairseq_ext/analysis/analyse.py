r"""Analyse a checkpoint: attention maps, explaining away, heads and trained weights in one folder.

Pictures of all sentences of a split come from one pass over it, batch by batch. Beside each picture
are its numbers, as CSV or JSON. maps.html has the maps of each --sentence, or of the first
--sentences of the split, to choose from. The model may be for translation or RoBERTa-style, of this
plugin or fairseq's own.

Example:
  fairseq-ext analyse checkpoints/study/hna/seed-1/checkpoint_best.pt \
    --data data-bin/multi30k.en-de --split test --out analysis
  fairseq-ext analyse checkpoints/mine/checkpoint_best.pt --limit 500 --out analysis
"""

import argparse
from argparse import Namespace
from collections.abc import Sequence

from fairseq_ext.analysis import arguments, columns, heads, sentence_maps, weights
from fairseq_ext.analysis.heatmaps import draw_grids
from fairseq_ext.analysis.inspector import ModelInspector
from fairseq_ext.analysis.recording import SITES
from fairseq_ext.analysis.sentence_maps import AXES, SentenceMaps
from fairseq_ext.analysis.statistics import ColumnSums, collect, label_rows, list_sites
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.pictures import announce, remove, save


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `fairseq-ext analyse`."""
    arguments.add(parser, "checkpoints", nargs=1)
    arguments.add(parser, *arguments.OF_A_SPLIT[1:])
    parser.add_argument("--sentence", action="append", metavar="TEXT", help="for maps; repeatable")
    parser.add_argument("--sentences", type=arguments.number, metavar="N", help="default: 1")
    arguments.add(parser, "--tokens")


def run(args: Namespace) -> None:
    """Fill the folder and print what it has."""
    arguments.check_split(args)
    arguments.check_at_least(args, sentences=0, tokens=1)
    arguments.check_split_alone(args, "sentences")
    (inspector,) = arguments.open_inspectors(args)
    sentences = read_sentences(inspector, args)
    sums, statistics = ColumnSums(), heads.new_statistics(inspector)
    count = collect(inspector, args, sums, statistics)
    write_sentences(inspector, sentences, args)
    print(f"{inspector.title}: {count} sentences of {args.split}")
    write_columns(inspector, sums, args)
    heads.write(label_rows(inspector.title, statistics), args)
    weights.remove(args.out)
    if trained := weights.read_checkpoint(inspector, inspector.title):
        weights.write(trained, args.out)
    announce(args.out)


def read_sentences(inspector: ModelInspector, args: Namespace) -> list[SentenceMaps]:
    """Return the maps of each --sentence, or of the first sentences of the split."""
    choices: list[dict] = [{"sentence": text} for text in args.sentence or ()]
    if args.sentences and args.sentences > (size := len(inspector.load_split(args.split))):
        raise UsageError(f"--sentences is {args.sentences} and {args.split} has {size}; give fewer")
    first = range(1 if args.sentences is None else args.sentences)
    choices = choices or [{"sentence": None, "split": args.split, "index": i} for i in first]
    wanted = [Namespace(**each, tokens=args.tokens) for each in choices]
    return [sentence_maps.read_maps(inspector, each) for each in wanted]


def write_sentences(
    inspector: ModelInspector, sentences: Sequence[SentenceMaps], args: Namespace
) -> None:
    """Write maps.html with all sentences, and for each its numbers and a picture of each site."""
    remove([*args.out.glob("maps_[0-9]*"), args.out / "maps.html"])
    if not sentences:
        return
    for number, maps in enumerate(sentences):
        sentence_maps.write_maps([maps], args.out / f"maps_{number}.json")
        for site in maps.sites:
            save(draw_grids([maps.grid(site)], *AXES[site]), args.out / f"maps_{number}_{site}.png")
    parts = [sentence_maps.maps_part([maps]) for maps in sentences]
    sentence_maps.write_page(args.out / "maps.html", f"Attention of {inspector.title}", parts)


def write_columns(inspector: ModelInspector, sums: ColumnSums, args: Namespace) -> None:
    """Write the column sums and a picture of each site, and print what they say."""
    models = [(inspector.title, sums)]
    rows = columns.write(models, args)
    remove(args.out / f"{columns.NAME}_{site}.png" for site in SITES)
    for site in list_sites(rows):
        save(columns.draw(models, site), args.out / f"{columns.NAME}_{site}.png")
        columns.print_summary(rows, site)
