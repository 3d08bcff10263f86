"""Faults of files: of each that a command reads, and of each that it writes."""

import gzip
import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .options import EITHER, REFUSED
from .process import CLOSED

FULL = "/dev/full"
PLACES = 10  # where files are cut
PICTURE = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + bytes(range(256))
BINARY = (".pt", ".idx", ".bin", ".npy", ".safetensors")
NEW = ("made", "out", "hydra")  # folders that the world does not have
LIMITS = (0, 1, 100, 1000, 10_000)
"""Bytes that a file may have on a full disk."""


class Fault(NamedTuple):
    """A fault of a file or a folder.

    Attributes:
        about: in words.
        make: makes it, given the path of the file.
        expected: what the command is to do.
        stdout: where its standard output goes; None is a pipe that is read.
        most_bytes: of a file that it may write; None is any number.
        limits: further fields of the process, such as the signal that it gets.
    """

    about: str
    make: Callable[[Path], None] = lambda path: None
    expected: str = EITHER
    stdout: str | None = None
    most_bytes: int | None = None
    limits: tuple[tuple[str, object], ...] = ()


def list_read(name: str, chance: random.Random) -> list[Fault]:
    """Return faults of a file that is read."""
    suffix = Path(name).suffix
    binary = suffix in BINARY
    strict = REFUSED if binary or suffix == ".json" else EITHER
    faults = [
        Fault("is missing", Path.unlink, REFUSED),
        Fault("is a folder", _make_folder, REFUSED),
        Fault("is a dangling link", _dangle, REFUSED),
        Fault("is empty", _write(b""), strict),
        Fault("is a picture", _write(PICTURE), REFUSED),
        Fault("is a line of text", _write(b"some text\n"), strict),
        Fault("is zeros", _write(bytes(1000)), REFUSED),
        Fault("is packed by gzip", _pack, strict),
    ]
    faults += [_cut(place, strict) for place in range(1, PLACES)]
    faults += [_flip(chance.randrange(1 << 30)) for _ in range(PLACES)]
    if not binary:
        faults += [
            Fault("begins with a BOM", _prepend(b"\xef\xbb\xbf")),
            Fault("is in UTF-16", _encode("utf-16"), REFUSED),
            Fault("is in Latin-1", _latin),
            Fault("has CRLF", _replace(b"\n", b"\r\n")),
            Fault("has CR", _replace(b"\n", b"\r")),
            Fault("has a line of 10 MB", _append(b"a " * 5_000_000 + b"\n")),
            Fault("has a word of 10 MB", _append(b"a" * 10_000_000 + b"\n")),
            Fault("has odd characters", _append("\u2028\u0085\x1c\x00\n".encode())),
            Fault("has empty lines", _replace(b"\n", b"\n\n")),
            Fault("is there twice", lambda path: path.write_bytes(path.read_bytes() * 2)),
        ]
    return faults


def list_written(name: str) -> list[Fault]:
    """Return faults of a path that is written; a name with a slash at its end is a folder."""
    new = name.partition("/")[0] in NEW
    faults = [
        Fault("below a file", _block, REFUSED if new else EITHER),
        Fault("below a link to nowhere", _dangle_parent),
        Fault("is a link to itself", _loop),
    ]
    faults += [Fault(f"on a disk with {n} bytes", most_bytes=n) for n in LIMITS]
    if name.endswith("/"):
        return [*faults, Fault("is a file", _write(b"old\n"), REFUSED)]
    return [
        *faults,
        Fault("is a folder", _make_folder, REFUSED),
        Fault("is /dev/full", lambda path: _link(path, FULL)),
        Fault("is a link", lambda path: _link(path, "target")),
        Fault("is a dangling link", lambda path: _link(path, "nowhere/at/all")),
        Fault("is there already", _write(b"old\n")),
    ]


PRINTED = [
    Fault("on /dev/full", stdout=FULL, expected=REFUSED),
    Fault("that is closed", stdout=CLOSED, expected=REFUSED),
    Fault("without a reader", stdout=""),
]
"""Faults of standard output."""


def list_accidents(chance: random.Random) -> list[Fault]:
    """Return what may happen to any command."""
    seconds, files = chance.uniform(0, 1.5), chance.randrange(5, 40)
    return [
        Fault("is interrupted", limits=(("signal", signal.SIGINT), ("after", seconds))),
        Fault("is terminated", limits=(("signal", signal.SIGTERM), ("after", seconds))),
        Fault(f"may open {files} files", limits=(("most_files", files),)),
        Fault("has little memory", limits=(("memory", chance.randrange(1 << 20, 50 << 20)),)),
        Fault("has its standard output closed", stdout=CLOSED),
    ]


def _write(data: bytes) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    return make


def _prepend(data: bytes) -> Callable[[Path], None]:
    return lambda path: _write(data + path.read_bytes())(path)


def _append(data: bytes) -> Callable[[Path], None]:
    return lambda path: _write(path.read_bytes() + data)(path)


def _replace(old: bytes, new: bytes) -> Callable[[Path], None]:
    return lambda path: _write(path.read_bytes().replace(old, new))(path)


def _encode(encoding: str) -> Callable[[Path], None]:
    return lambda path: _write(path.read_text("utf-8").encode(encoding))(path)


def _latin(path: Path) -> None:
    path.write_bytes(("\u00e4\u00f6 " + path.read_text("utf-8")).encode("latin-1", "replace"))


def _pack(path: Path) -> None:
    path.write_bytes(gzip.compress(path.read_bytes()))


def _cut(place: int, expected: str) -> Fault:
    def make(path: Path) -> None:
        os.truncate(path, path.stat().st_size * place // PLACES)

    return Fault(f"is cut at {place}/{PLACES}", make, expected)


def _flip(number: int) -> Fault:
    def make(path: Path) -> None:
        data = bytearray(path.read_bytes())
        bit = number % (8 * len(data))
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)

    return Fault(f"has another bit ({number})", make)


def _make_folder(path: Path) -> None:
    path.unlink(missing_ok=True)  # a command may read what it writes anew
    path.mkdir(parents=True)


def _dangle(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def _loop(path: Path) -> None:
    _link(path, path.name)


def _block(path: Path) -> None:
    first = _first_missing(path)
    first.parent.mkdir(parents=True, exist_ok=True)
    first.write_text("a file\n")


def _dangle_parent(path: Path) -> None:
    _first_missing(path).symlink_to("nowhere/at/all")


def _first_missing(path: Path) -> Path:
    """Return the first part of a path that is not there: its first folder, or the path itself."""
    if path.is_dir():
        shutil.rmtree(path)
    return next((part for part in reversed([path, *path.parents]) if not part.exists()), path)
