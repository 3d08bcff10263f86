"""Command-line arguments that the verbs of analysis share, and their checks."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from fairseq_ext.analysis.heatmaps import LABELS
from fairseq_ext.analysis.inspector import MAX_TOKENS, ModelInspector
from fairseq_ext.analysis.loading import short_name
from fairseq_ext.errors import UsageError
from fairseq_ext.files import check_writable


def add_data(parser: argparse.ArgumentParser, default: str = "what the checkpoint names") -> None:
    """Add --data."""
    parser.add_argument("--data", type=Path, metavar="DATA_BIN", help=f"default: {default}")


def add_max_tokens(parser: argparse.ArgumentParser) -> None:
    """Add --max-tokens."""
    parser.add_argument(
        "--max-tokens", type=int, default=MAX_TOKENS, metavar="N", help=f"default: {MAX_TOKENS}"
    )


def add_folder(parser: argparse.ArgumentParser) -> None:
    """Add --out for a folder."""
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")


def add_split(parser: argparse.ArgumentParser, several: bool = True) -> None:
    """Add what a pass over a split needs: one checkpoint or several, the split and --out."""
    parser.add_argument("checkpoints", nargs="+" if several else 1, type=Path, metavar="CHECKPOINT")
    add_data(parser)
    parser.add_argument("--split", default="valid", help="default: valid")
    parser.add_argument(
        "--limit", type=int, metavar="N", help="the first N sentences; default: all"
    )
    add_max_tokens(parser)
    add_folder(parser)


def add_sentence(parser: argparse.ArgumentParser, split: str) -> None:
    """Add the choice of one sentence, and of how many of its tokens are shown."""
    sentence = parser.add_mutually_exclusive_group()
    sentence.add_argument("--sentence", metavar="TEXT", help="source text of maps")
    sentence.add_argument("--split", default=split, help=f"default: {split}")
    parser.add_argument("--index", type=int, metavar="N", help="of the split; default: 0")
    add_tokens(parser)


def add_tokens(parser: argparse.ArgumentParser) -> None:
    """Add --tokens."""
    parser.add_argument(
        "--tokens",
        type=int,
        default=LABELS,
        metavar="N",
        help=f"of a longer sentence the maps of the first N are shown; default: {LABELS}",
    )


def check_at_least(args: argparse.Namespace, **least: int) -> None:
    """Raise UsageError unless each of these numbers is missing or at least as large as given."""
    for name, lowest in least.items():
        value = getattr(args, name)
        if value is not None and value < lowest:
            flag = name.replace("_", "-")
            raise UsageError(f"--{flag} is {value} and must be at least {lowest}")


def check_split(args: argparse.Namespace) -> None:
    """Raise UsageError for numbers that are too small, or a folder that cannot be written."""
    check_at_least(args, limit=1, max_tokens=1)
    check_writable(args.out, 0)


def check_sentence(args: argparse.Namespace) -> None:
    """Raise UsageError if the choice of a sentence contradicts itself."""
    check_at_least(args, tokens=1)
    if args.sentence is not None and args.index is not None:
        raise UsageError(
            f"--index {args.index} is of a split, and --sentence is given; leave one of both out"
        )


def open_inspectors(args: argparse.Namespace) -> Iterator[ModelInspector]:
    """Yield the model of each checkpoint, one in memory at a time, with distinct titles."""
    names = [short_name(checkpoint) for checkpoint in args.checkpoints]
    for checkpoint, name in zip(args.checkpoints, names, strict=True):
        inspector = ModelInspector(checkpoint, args.data)
        if names.count(name) > 1:
            inspector.title = f"{inspector.name}, {checkpoint}"
        yield inspector
