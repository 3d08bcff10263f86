"""Bounds on what is read, so that a small file takes no end of memory, time or disk.

Each bound is far above what real text and models need.
"""

import bz2
import gzip
import io
import lzma
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from typing import IO

from fairseq_ext.errors import UsageError
from fairseq_ext.places import is_device

LONGEST_LINE = 64_000_000  # bytes; SQuAD is JSON in one line of 42 MB
MOST_BYTES = 100_000_000  # of JSON and of tokenisers
MOST_UNPACKED = 100  # bytes, for each one that is packed; text has about 4
FREE = 100_000_000  # bytes that may always be unpacked
CHUNK = 1 << 17  # bytes that are unpacked at once
PACKED: dict[bytes, Callable] = {b"\x1f\x8b": gzip.open, b"BZ": bz2.open, b"\xfd7": lzma.open}
"""The first two bytes of a packed file -> what unpacks it."""


def check_regular(path: Path, most: float = inf) -> None:
    """Raise UsageError for a device or a pipe, which may have no end, or more than `most` bytes."""
    if is_device(path):
        raise UsageError(f"{path} is a device or a pipe; give a file")
    if path.is_file() and path.stat().st_size > most:
        raise UsageError(f"{path} has more than {most / 1e6:.0f} MB; give a file of what is asked")


def iterate_lines(stream: IO[bytes] | io.BufferedIOBase, name: str) -> Iterator[bytes]:
    """Yield the lines of a stream; raise UsageError for one of more than `LONGEST_LINE` bytes."""
    number = 0
    while line := stream.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise UsageError(
                f"{name}, line {number}: has more than {LONGEST_LINE // 1_000_000} MB, as no line "
                "of text has; break it into lines, or give another file"
            )
        yield line


def check_unpacked(path: Path | str, packed: float, unpacked: int) -> None:
    """Raise UsageError if bytes of a file become so many more as those of no real file do."""
    if unpacked > FREE + MOST_UNPACKED * packed:
        raise UsageError(
            f"{path} has {packed / 1e6:.1f} MB that become {unpacked / 1e6:.0f} MB or more, as "
            "those of no real file do; give another file, or unpack it yourself"
        )


class Unpacked(io.RawIOBase):
    """Unpacked content of a file, within the bound of `check_unpacked`."""

    def __init__(self, stream: IO[bytes] | io.BufferedIOBase, path: Path) -> None:
        self.stream, self.path, self.size = stream, path, 0
        self.packed = path.stat().st_size if path.is_file() else inf

    def readable(self) -> bool:
        """Return that this can be read."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read bytes; raise UsageError beyond the bound."""
        data = self.stream.read(len(buffer))
        self.size += len(data)
        check_unpacked(self.path, self.packed, self.size)
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close the packed file too."""
        self.stream.close()
        super().close()


def open_unpacked(path: Path, unpack: Callable | None = None) -> io.BufferedReader:
    """Open the unpacked content of a file, by default as its first bytes tell."""
    if unpack is None:
        with path.open("rb") as file:
            unpack = PACKED.get(file.read(2), Path.open)
    return io.BufferedReader(Unpacked(unpack(path, "rb"), path), CHUNK)
