"""Command-line arguments that the verbs of analysis share, and their checks."""

import argparse
from collections.abc import Callable, Iterable, Iterator
from math import inf
from pathlib import Path
from typing import Any

from fairseq_ext.analysis.heatmaps import LABELS
from fairseq_ext.analysis.inspector import MAX_TOKENS, ModelInspector
from fairseq_ext.analysis.loading import check_there, short_name
from fairseq_ext.analysis.recording import SITES
from fairseq_ext.errors import UsageError
from fairseq_ext.files import check_writable

MOST = 10**15


def number(text: str) -> int:
    """Return a whole number that counts something; raise ArgumentTypeError for a larger one."""
    if abs(int(text)) > MOST:
        raise argparse.ArgumentTypeError(f"{text} is too large; give a number up to {MOST}")
    return int(text)


NUMBER: dict[str, Any] = {"type": number, "metavar": "N"}
SHOWN_TOKENS = f"show the first N tokens of a longer sentence; default: {LABELS}"
SENTENCE = "source text to draw maps of, instead of a split"

SHARED: dict[str, dict[str, Any]] = {
    "checkpoints": {"nargs": "+", "type": Path, "metavar": "CHECKPOINT"},
    "--data": {"type": Path, "metavar": "DATA_BIN", "help": "default: what the checkpoint names"},
    "--split": {"default": "valid", "help": "default: valid"},
    "--limit": NUMBER | {"help": "the first N sentences; default: all"},
    "--max-tokens": NUMBER | {"default": MAX_TOKENS, "help": f"default: {MAX_TOKENS}"},
    "--out": {"type": Path, "required": True, "metavar": "DIR"},
    "--site": {"choices": SITES, "default": "encoder", "help": "default: encoder"},
    "--sentence": {"metavar": "TEXT", "help": SENTENCE},
    "--index": NUMBER | {"help": "sentence of the split, from 0; default: 0"},
    "--lowercase": {"action": "store_true", "help": "for models of such text"},
    "--tokens": NUMBER | {"default": LABELS, "help": SHOWN_TOKENS},
}
"""Arguments that several verbs have, with the options of `add_argument`."""

OF_A_SPLIT = ("checkpoints", "--data", "--split", "--limit", "--max-tokens", "--out")


def add(parser: argparse._ActionsContainer, *names: str, **changes: Any) -> None:
    """Add shared arguments, in this order, with these options changed in all of them."""
    for name in names:
        parser.add_argument(name, **SHARED[name] | changes)


def add_sentence(parser: argparse.ArgumentParser, split: str) -> None:
    """Add the choice of one sentence, and of how many of its tokens are shown."""
    sentence = parser.add_mutually_exclusive_group()
    add(sentence, "--sentence")
    add(sentence, "--split", default=split, help=f"default: {split}")
    add(parser, "--index", "--tokens")


def check_at_least(args: argparse.Namespace, **least: int) -> None:
    """Raise UsageError unless each of these numbers is missing or at least as large as given."""
    for name, lowest in least.items():
        value = getattr(args, name)
        if value is not None and value < lowest:
            raise UsageError(f"--{name.replace('_', '-')} is {value} and must be at least {lowest}")


def check_deviation(args: argparse.Namespace, name: str) -> None:
    """Raise UsageError unless a number is finite and not negative."""
    if not 0 <= getattr(args, name) < inf:
        raise UsageError(f"--{name} is {getattr(args, name):g}; give a number from 0 upwards")


def check_split(args: argparse.Namespace) -> None:
    """Raise UsageError for numbers that are too small, or a folder that cannot be written."""
    check_at_least(args, limit=1, max_tokens=1)
    check_writable(args.out, 0)


def check_sentence(args: argparse.Namespace) -> None:
    """Raise UsageError if the choice of a sentence contradicts itself."""
    check_at_least(args, tokens=1)
    check_split_alone(args, "index")


def check_split_alone(args: argparse.Namespace, name: str) -> None:
    """Raise UsageError if there is --sentence and a choice of sentences of the split."""
    value = getattr(args, name)
    if args.sentence is not None and value is not None:
        raise UsageError(
            f"--{name} {value} is of a split, and --sentence is given; leave one of both out"
        )


def open_inspectors(
    args: argparse.Namespace, open_one: Callable[[Path, Path | None], Any] = ModelInspector
) -> Iterator[Any]:
    """Yield the model of each checkpoint, one in memory at a time, with distinct titles."""
    check_there(args.checkpoints)  # before a pass of the first one
    for checkpoint in args.checkpoints:
        yield title_distinctly(open_one(checkpoint, args.data), args.checkpoints)


def title_distinctly(inspector: Any, checkpoints: Iterable[Path]) -> Any:
    """Return a model with its whole path in the title if others of these have its short name."""
    name = short_name(inspector.checkpoint)
    if sum(short_name(checkpoint) == name for checkpoint in checkpoints) > 1:
        inspector.title = inspector.title.replace(f", {name}", f", {inspector.checkpoint}")
    return inspector
