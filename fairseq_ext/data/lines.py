"""Lines of text files, plain or .gz, read strictly: UTF-8, parted by line feeds alone."""

import gzip
import zlib
from collections.abc import Iterable, Iterator
from io import BufferedIOBase
from itertools import islice
from pathlib import Path

from fairseq_ext.errors import UsageError

Lines = list[str]


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


def batches(lines: Iterable[str], size: int) -> Iterator[Lines]:
    """Lists of ``size`` lines; the last one may be shorter."""
    lines = iter(lines)
    while batch := list(islice(lines, size)):
        yield batch
