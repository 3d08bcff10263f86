"""Files: strict reading line by line, atomic writing, and room on a disk."""

import gzip
import io
import logging
import shutil
import tempfile
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from tokenize import TokenError
from typing import IO, TextIO, TypeVar

from fairseq_ext.bounds import iterate_lines, open_unpacked
from fairseq_ext.errors import Unfinished, UsageError, find_disk_error
from fairseq_ext.places import hold, is_device, private_folder

logger = logging.getLogger(__name__)

MB = 1_000_000
ARRAY_ERRORS = (ValueError, EOFError, SyntaxError, TokenError)
"""Errors from damaged files of numpy, whose header is the text of a Python object."""

POINTER = b"version https://git-lfs.github.com/spec/"
"""Beginning of a file that Git LFS leaves in the place of another one."""

T = TypeVar("T")


def check_not_pointer(path: Path) -> None:
    """Raise UsageError for a pointer of Git LFS in the place of a file."""
    if path.is_file():  # a pipe can be read only once
        with suppress(OSError), path.open("rb") as file:
            if file.read(len(POINTER)) == POINTER:
                raise UsageError(
                    f"{path} is a pointer of Git LFS, not the file itself; get that by `git lfs "
                    "pull` or `hf download`"
                )


def open_binary(path: Path) -> io.BufferedIOBase:
    """Open a file, plain or .gz, for reading bytes; raise UsageError if there is none."""
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}; correct the path")
    if path.is_dir() or not path.exists():
        problem = "is a folder, not a file" if path.is_dir() else "there is no such file"
        raise UsageError(f"{path}: {problem}; give a text file, plain or .gz")
    check_not_pointer(path)
    return open_unpacked(path, gzip.open) if path.suffix == ".gz" else path.open("rb")


def decode_utf8(line: bytes, where: str) -> str:
    """Return the text of a line with its end.

    Args:
        line: bytes in UTF-8.
        where: file and number of the line, for messages.

    Raises:
        UsageError: the line is not UTF-8, or holds U+0000.
    """
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{where}: byte {error.start + 1} (0x{line[error.start]:02x}) is not valid UTF-8; "
            "convert the file to UTF-8"
        ) from None
    if "\0" in text:
        raise UsageError(f"{where}: holds U+0000, which is no text; remove it or convert to UTF-8")
    return text


def decode_line(line: bytes, where: str) -> str:
    """Return what `decode_utf8` returns; raise UsageError for a carriage return within the line."""
    text = decode_utf8(line, where)
    check_line_end(line, where)
    return text


def check_line_end(line: bytes, where: str) -> None:
    """Raise UsageError for a carriage return within a line."""
    if b"\r" in line and b"\r" in line.removesuffix(b"\n").removesuffix(b"\r"):
        raise UsageError(f"{where}: holds a carriage return, a line end for fairseq; remove it")


def check_line_ends(path: Path) -> None:
    """Raise UsageError for a carriage return within a line of a text file; pipes are not read."""
    if path.is_file():
        with path.open("rb") as file:
            for number, line in enumerate(iterate_lines(file, str(path)), 1):
                check_line_end(line, f"{path}, line {number}")


def count_lines(path: Path) -> int:
    """Return the number of lines of a text file, the last one maybe without its end."""
    with path.open("rb") as file:
        return sum(1 for _ in file)


def decode_lines(
    stream: IO[bytes] | io.BufferedIOBase,
    name: str,
    decode: Callable[[bytes, str], str] = decode_line,
) -> Iterator[str]:
    """Yield lines of bytes as text, without line ends and byte order mark; see `read_lines`."""
    for number, line in enumerate(iterate_lines(stream, name), 1):
        line = line.removeprefix(BOM_UTF8) if number == 1 else line
        yield decode(line, f"{name}, line {number}").rstrip("\r\n")


def read_lines(path: Path, decode: Callable[[bytes, str], str] = decode_line) -> Iterator[str]:
    """Yield the lines of a text file, plain or .gz, without line ends and byte order mark.

    Raises:
        UsageError: the file is damaged, is not UTF-8, or holds U+0000 or a carriage return within a
            line. The message names file and line.
        Unfinished: the disk cannot be read.
    """
    number = 0
    try:
        with open_binary(path) as stream:
            for line in decode_lines(stream, str(path), decode):
                number += 1
                yield line
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None)
        raise (Unfinished if reason else UsageError)(
            f"{path}: cannot be read after line {number} ({reason or error})"
        ) from error


def numbered_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield "FILE:LINE" and the text of each line, as `read_lines` reads it."""
    for number, line in enumerate(read_lines(path), 1):
        yield f"{path}:{number}", line


def read_lines_replacing_returns(path: Path) -> Iterator[str]:
    """Yield lines as `read_lines` does, with spaces for carriage returns within lines.

    Some published corpora hold such lines, as News Commentary does. A warning counts them.
    """
    count = 0
    for line in read_lines(path, decode_utf8):
        count += "\r" in line
        yield line.replace("\r", " ")
    if count:
        logger.warning("%s: %d lines hold carriage returns, which become spaces", path, count)


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of `size` items, the last one maybe shorter; Python 3.12 has it in itertools."""
    items = iter(items)
    while batch := list(islice(items, size)):
        yield batch


@contextmanager
def atomic_writer(path: Path, keep_link: bool = True) -> Iterator[TextIO]:
    """Open a text file to write, which gets the name `path` only when it is complete.

    The encoding is UTF-8 and line feeds stay as they are. See `rename_when_complete`.
    """
    with (
        rename_when_complete(path, keep_link) as part,
        part.open("w", encoding="utf-8", newline="") as file,
    ):
        yield file


@contextmanager
def rename_when_complete(path: Path, keep_link: bool = True) -> Iterator[Path]:
    """Yield a hidden path to write a file or folder to, which gets the name `path` at the end.

    What had the name before is replaced then, and only then. If it is a link, what it points to is
    replaced, or with `keep_link` False the link. Devices and pipes are written directly. Folders
    above are made.

    Raises:
        Unfinished: it cannot be written, as on a full disk; nothing of it is left.
    """
    if is_device(path):  # before links are resolved: /dev/stdout may be one to no file
        with explain_disk_errors(path):
            yield path
        return
    target = path.resolve() if keep_link else path.absolute()
    with explain_disk_errors(path):
        target.parent.mkdir(parents=True, exist_ok=True)
        with private_folder(target.parent) as hidden:
            yield hidden / "new"
            _put(hidden / "new", target)


@contextmanager
def explain_disk_errors(path: Path) -> Iterator[None]:
    """Raise Unfinished, with the name of `path`, if it cannot be written in this context."""
    try:
        yield
    except Exception as error:
        cause = find_disk_error(error)
        if not isinstance(cause, OSError) or isinstance(cause, BrokenPipeError):
            raise
        kept = "what was there before is kept" if path.exists() else "nothing of it is left"
        raise Unfinished(
            f"{path} cannot be written ({cause.strerror or cause})"
            f"{'' if is_device(path) else f', {kept}'}; make room or give another place, and run "
            "the same command again"
        ) from error


def _put(part: Path, target: Path) -> None:
    """Rename a file or folder; a folder that has the name already is removed afterwards."""
    if not (part.is_dir() and target.is_dir()):
        part.replace(target)
        return
    old = part.parent.with_suffix(".old")
    target.replace(old)
    try:
        part.replace(target)
    except OSError:
        old.replace(target)
        raise
    remove(old)


def remove(path: Path) -> None:
    """Remove a file or folder, if there is one and that is possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path, replace: bool = False) -> Iterator[Path]:
    """Yield an empty folder to fill, which gets its name by `rename_when_complete`.

    Raises:
        UsageError: there is something of this name that is no empty folder; not with `replace`.
            Or another process makes it.
        Unfinished: as there.
    """
    if not replace and path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise UsageError(f"{path} is there already; delete it, or give another folder")
    with hold(path), rename_when_complete(path) as part:
        part.mkdir()
        yield part


def write_lines(path: Path, lines: Iterable[str], keep_link: bool = True) -> None:
    """Write each item as a line, by `atomic_writer`."""
    with atomic_writer(path, keep_link) as file:
        file.writelines(f"{line}\n" for line in lines)


def list_files(folder: Path) -> list[Path]:
    """Return the files of a folder sorted by name, without hidden ones (some are incomplete).

    Raises:
        UsageError: one is a link to nothing.
    """
    paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    if dangling := next((path for path in paths if path.is_symlink() and not path.exists()), None):
        raise UsageError(f"{dangling}: a link to a file that is not there; correct or delete it")
    return [path for path in paths if path.is_file()]


def check_place(path: Path, flag: str) -> None:
    """Raise UsageError if a file cannot be made at a path, which a flag gives."""
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"{flag} is {path}, which cannot be a file; give one in a folder")


def check_writable(folder: Path, needed_bytes: int) -> int:
    """Return the bytes that are free in `folder`, or in its nearest parent that exists.

    Raises:
        UsageError: no file can be made there, or fewer than `needed_bytes` are free.
    """
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise UsageError(f"{folder}: {existing} is a file; give a folder")
    try:
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as error:
        raise UsageError(
            f"{folder}: cannot write in {existing} ({error.strerror}); give another folder"
        ) from error
    free = shutil.disk_usage(existing).free
    if free < needed_bytes:
        raise UsageError(
            f"{folder}: {free / MB:.0f} MB are free and {needed_bytes / MB:.0f} MB are needed; "
            "make room or give another folder"
        )
    return free
