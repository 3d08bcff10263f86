"""Text files: read strictly line by line, written under their names only when complete."""

import gzip
import logging
import shutil
import tempfile
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedIOBase
from itertools import islice
from pathlib import Path
from typing import TextIO

from fairseq_ext.errors import Unfinished, UsageError

logger = logging.getLogger(__name__)

MB = 1_000_000

Lines = list[str]


def opened(path: Path) -> BufferedIOBase:
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}; correct the path")
    if path.is_dir() or not path.exists():
        problem = "is a folder, not a file" if path.is_dir() else "there is no such file"
        raise UsageError(f"{path}: {problem}; give a text file, plain or .gz")
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")


def characters(line: bytes, where: str) -> str:
    """A line as it is; raises UsageError unless it is text in UTF-8."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{where}: byte {error.start + 1} (0x{line[error.start]:02x}) is not valid UTF-8; "
            "convert the file to UTF-8"
        ) from None
    if "\0" in text:
        raise UsageError(
            f"{where}: holds U+0000, which text never does; convert the file to UTF-8 or remove it"
        )
    return text


def decode_line(line: bytes, where: str) -> str:
    """As `characters`, of a line that holds no carriage return but in its end."""
    text = characters(line, where)
    if "\r" in text.removesuffix("\n").removesuffix("\r"):
        raise UsageError(
            f"{where}: holds a carriage return, where fairseq would begin a new line; remove it"
        )
    return text


def read_lines(path: Path, decode: Callable[[bytes, str], str] = decode_line) -> Iterator[str]:
    """The lines of a text file (plain or .gz), one at a time, without their ends and without a byte
    order mark.

    Raises:
        UsageError: naming file and line, for what is damaged, is not UTF-8 or holds U+0000, and for
            a carriage return within a line.
        Unfinished: the disk cannot be read.
    """
    number = 0
    try:
        with opened(path) as stream:
            for number, line in enumerate(stream, 1):
                line = line.removeprefix(BOM_UTF8) if number == 1 else line
                yield decode(line, f"{path}, line {number}").rstrip("\r\n")
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None)
        raise (Unfinished if reason else UsageError)(
            f"{path}: cannot be read after line {number} ({reason or error})"
        ) from error


def read_lines_replacing_returns(path: Path) -> Iterator[str]:
    """As `read_lines`, with spaces for carriage returns within lines; a warning counts these lines.

    Published corpora have some, as News Commentary.
    """
    count = 0
    for line in read_lines(path, characters):
        count += "\r" in line
        yield line.replace("\r", " ")
    if count:
        logger.warning("%s: %d lines hold carriage returns, which become spaces", path, count)


def batches(lines: Iterable[str], size: int) -> Iterator[Lines]:
    """Lists of ``size`` lines; the last one may be shorter."""
    lines = iter(lines)
    while batch := list(islice(lines, size)):
        yield batch


@contextmanager
def atomic_writer(path: Path) -> Iterator[TextIO]:
    """A text file to write, UTF-8 with line feeds as they are; named ``path`` at the end.

    A link stays, and what it points to is replaced; devices and pipes are written as they are.

    Raises:
        Unfinished: it cannot be written, as on a full disk; nothing of it is left.
    """
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            with path.open("w", encoding="utf-8", newline="") as file:
                yield file
        else:
            with _replaced(path.resolve()) as file:
                yield file
    except OSError as error:
        raise Unfinished(
            f"{path} cannot be written ({error.strerror}); make room or give another place, and "
            "run the same command again"
        ) from error


@contextmanager
def _replaced(path: Path) -> Iterator[TextIO]:
    part = path.with_name(f".{path.name}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with part.open("w", encoding="utf-8", newline="") as file:
            yield file
        part.replace(path)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """One line each; see `atomic_writer`."""
    with atomic_writer(path) as file:
        file.writelines(f"{line}\n" for line in lines)


def list_files(folder: Path) -> list[Path]:
    """Those of a folder, in the order of their names; not what is only begun."""
    return sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith("."))


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
