"""Checks made before any work: two files are a parallel corpus, a folder has room."""

import argparse
import gzip
import logging
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from io import BufferedIOBase
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from fairseq_ext.errors import UsageError

logger = logging.getLogger(__name__)

MB = 1_000_000


class Counts(NamedTuple):
    """Lines, tokens (parted by white space) of each side, lines that are empty on a side."""

    lines: int
    tokens: tuple[int, int]
    empty: int


def opened(path: Path) -> BufferedIOBase:
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}; correct the path")
    if path.is_dir() or not path.exists():
        problem = "is a folder, not a file" if path.is_dir() else "there is no such file"
        raise UsageError(f"{path}: {problem}; give a text file, plain or .gz")
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")


def decoded(line: bytes, where: str) -> str:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{where}: byte {error.start + 1} (0x{line[error.start]:02x}) is not valid UTF-8; "
            "convert the file to UTF-8"
        ) from None
    if "\r" in text.removesuffix("\n").removesuffix("\r"):
        raise UsageError(
            f"{where}: holds a carriage return, where fairseq would begin a new line; remove it"
        )
    return text


def lines_of(path: Path) -> Iterator[str]:
    """The lines of a text file (plain or .gz), one at a time, without their ends.

    Raises UsageError, naming file and line, for what cannot be read or is not UTF-8, and for a
    carriage return within a line.
    """
    number = 0
    try:
        with opened(path) as stream:
            for number, line in enumerate(stream, 1):
                yield decoded(line, f"{path}, line {number}").rstrip("\r\n")
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{path}: cannot be read after line {number} ({reason})") from error


def check_parallel(a: Path, b: Path) -> Counts:
    """Read both files through, as a stream; raise UsageError unless they are a parallel corpus.

    A line that is empty on a side is no error: such lines are counted, with one warning.
    """
    lines, tokens, empty, first = [0, 0], [0, 0], 0, 0
    for pair in zip_longest(lines_of(a), lines_of(b)):
        sizes = [len(text.split()) if text is not None else 0 for text in pair]
        for side, text in enumerate(pair):
            lines[side] += text is not None
            tokens[side] += sizes[side]
        if None not in pair and 0 in sizes:
            empty, first = empty + 1, first or lines[0]
    if lines[0] != lines[1]:
        raise UsageError(
            f"{a} has {lines[0]} lines and {b} has {lines[1]}: they must have the same number, "
            "each line of one the translation of that line of the other"
        )
    if not lines[0]:
        raise UsageError(f"{a} and {b} are empty; give a corpus of at least one line")
    if empty:
        logger.warning("%s, %s: %d lines have an empty side, first line %d", a, b, empty, first)
    return Counts(lines[0], (tokens[0], tokens[1]), empty)


def check_writable(folder: Path, needed_bytes: int) -> int:
    """Bytes free in ``folder``, or in the nearest parent that exists.

    Raises UsageError if no file can be made there or fewer than ``needed_bytes`` are free.
    """
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise UsageError(f"{folder}: {there} is a file; give a folder")
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise UsageError(
            f"{folder}: cannot write in {there} ({error.strerror}); give a folder you may write to"
        ) from error
    free = shutil.disk_usage(there).free
    if free < needed_bytes:
        raise UsageError(
            f"{folder}: {free / MB:.0f} MB are free and {needed_bytes / MB:.0f} MB are needed; "
            "make room or give another folder"
        )
    return free


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m fairseq_ext.data.check", description=__doc__)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="pairs of files")
    given = parser.parse_args(arguments)
    if len(given.files) % 2:
        parser.error("give two files for each corpus")
    for a, b in zip(given.files[::2], given.files[1::2], strict=True):
        counts = check_parallel(a, b)
        print(f"{a}, {b}: {counts.lines} lines, {counts.tokens[0]} and {counts.tokens[1]} tokens")


if __name__ == "__main__":
    main()
