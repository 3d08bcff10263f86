"""Checks made before any work: that two files are a parallel corpus."""

import argparse
import logging
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from fairseq_ext.errors import UsageError
from fairseq_ext.files import read_lines

logger = logging.getLogger(__name__)


class Counts(NamedTuple):
    """Lines, tokens (parted by white space) of each side, lines that are empty on a side."""

    lines: int
    tokens: tuple[int, int]
    empty: int


def require_equal(files: Sequence[Path], lines: Sequence[int]) -> None:
    """Raise UsageError unless all files have as many lines as the first one."""
    for file, number in zip(files[1:], lines[1:], strict=True):
        if number != lines[0]:
            raise UsageError(
                f"{files[0]} has {lines[0]} lines and {file} has {number}: they must have the same "
                "number, each line of one the translation of that line of the other"
            )


def check_parallel(a: Path, b: Path) -> Counts:
    """Read both files through, as a stream; raise UsageError unless they are a parallel corpus.

    A line that is empty on a side is no error: such lines are counted, with one warning.
    """
    lines, tokens, empty, first = [0, 0], [0, 0], 0, 0
    for pair in tqdm(
        zip_longest(read_lines(a), read_lines(b)), f"checking {a.name}", unit=" lines"
    ):
        sizes = [len(text.split()) if text is not None else 0 for text in pair]
        for side, text in enumerate(pair):
            lines[side] += text is not None
            tokens[side] += sizes[side]
        if None not in pair and 0 in sizes:
            empty, first = empty + 1, first or lines[0]
    require_equal([a, b], lines)
    if not lines[0]:
        raise UsageError(f"{a} and {b} are empty; give a corpus of at least one line")
    if empty:
        logger.warning("%s, %s: %d lines have an empty side, first line %d", a, b, empty, first)
    return Counts(lines[0], (tokens[0], tokens[1]), empty)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m fairseq_ext.prepare.check", description=__doc__
    )
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="pairs of files")
    given = parser.parse_args(arguments)
    if len(given.files) % 2:
        parser.error("give two files for each corpus")
    for a, b in zip(given.files[::2], given.files[1::2], strict=True):
        counts = check_parallel(a, b)
        print(f"{a}, {b}: {counts.lines} lines, {counts.tokens[0]} and {counts.tokens[1]} tokens")


if __name__ == "__main__":
    main()
