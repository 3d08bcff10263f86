"""Text that `fairseq-preprocess` binarised, checked when it is opened.

A split is PREFIX.idx, which says where each sentence begins, and PREFIX.bin, their numbers. fairseq
maps both into memory as they are: a file cut short or of another text is noticed late, by a
traceback, or never.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from fairseq.data import indexed_dataset

from fairseq_ext.errors import UsageError

MAPPED = indexed_dataset.MMapIndexedDataset.Index._HDR_MAGIC[:8]
PLAIN = indexed_dataset.IndexedDataset._HDR_MAGIC
HUFFMAN = indexed_dataset.HuffmanMMapIndex._HDR_MAGIC[:8]  # checked by fairseq alone
TYPES = indexed_dataset._code_to_dtype
CHUNK = 1 << 18  # numbers looked at together, which fit into a cache
AGAIN = "binarise the text again with fairseq-preprocess"


def list_subsets(folder: Path) -> list[str]:
    """Return the names of the splits in a folder, binarised or of labelled text."""
    files = [*folder.glob("*.idx"), *folder.glob("*.jsonl")] if folder.is_dir() else []
    return sorted({file.name.partition(".")[0] for file in files})


def describe_subsets(folder: Path) -> str:
    """Return "FOLDER has train, valid"."""
    return f"{folder} has {', '.join(list_subsets(folder)) or 'no binarised text'}"


def check_files(prefix: str) -> bool:
    """Return whether a split has its two files.

    Raises:
        UsageError: it has one of them, or something that is no file has the name of one.
    """
    files = [Path(f"{prefix}{ending}") for ending in (".idx", ".bin")]
    for file, other in zip(files, files[::-1], strict=True):
        if file.exists() and not file.is_file():
            raise UsageError(f"{file} is no file, and text belongs there; {AGAIN}")
        if other.exists() and not file.exists():
            raise UsageError(f"{file} is missing, and {other.name} is there; {AGAIN}")
    return files[0].exists()


def check_text(prefix: str, symbols: int | None) -> None:
    """Raise UsageError unless a split is whole, and made with a dictionary of this size.

    fairseq itself reads all of the text when it opens it, so that it need not be read from the disk
    once more: that takes 0.1 seconds for a GB, beside fairseq's 0.7.

    Args:
        prefix: the path of the split, without endings.
        symbols: the size of its dictionary, if it has one.
    """
    index, text = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
    with index.open("rb") as file:
        magic = file.read(8)
    if magic == HUFFMAN:
        return
    try:
        kind, count = {MAPPED: _read_mapped, PLAIN: _read_plain}[magic](index)
    except (KeyError, ValueError, struct.error):
        raise UsageError(
            f"{index} is damaged, or not what fairseq-preprocess writes; {AGAIN}"
        ) from None
    size = text.stat().st_size
    if size != count * kind.itemsize:
        raise UsageError(
            f"{text} has {size:,} bytes and {index.name} tells of {count * kind.itemsize:,}: one "
            f"of them is damaged, or of another text; {AGAIN}"
        )
    if not count:
        raise UsageError(f"{text} has no text; give text that is not empty to fairseq-preprocess")
    if symbols is not None:
        _check_range(text, kind, symbols, first=int(magic == PLAIN))  # which counts from 1


def _read_mapped(index: Path) -> tuple[np.dtype, int]:
    """Return the type of the numbers and how many there are; raise ValueError if it is damaged."""
    head = struct.Struct("<9sQBQ")
    with index.open("rb") as file:
        _, version, code, sentences = head.unpack(file.read(head.size))
    kind = np.dtype(TYPES[code])
    if version != 1 or index.stat().st_size != head.size + sentences * 12:
        raise ValueError(index)
    expected = 0
    for sizes, pointers in _read_sentences(index, head.size, sentences):
        ends = expected + np.cumsum(sizes, dtype=np.int64) * kind.itemsize
        if sizes.min() < 0 or pointers[0] != expected or (pointers[1:] != ends[:-1]).any():
            raise ValueError(index)
        expected = int(ends[-1])
    return kind, expected // kind.itemsize


def _read_sentences(
    index: Path, start: int, sentences: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the lengths of sentences, and where they begin, in chunks."""
    content = np.memmap(index, np.uint8, "r")
    middle = start + 4 * sentences
    for first in range(0, sentences, CHUNK):
        last = min(first + CHUNK, sentences)
        sizes = content[start + 4 * first : start + 4 * last].view(np.int32)
        yield sizes, content[middle + 8 * first : middle + 8 * last].view(np.int64)


def _read_plain(index: Path) -> tuple[np.dtype, int]:
    """Do what `_read_mapped` does for --dataset-impl lazy and cached."""
    head = struct.Struct("<8sQQQQQ")
    with index.open("rb") as file:
        _, version, code, width, sentences, sizes = head.unpack(file.read(head.size))
    kind = np.dtype(TYPES[code])
    numbers = 2 * (sentences + 1) + sizes
    if (version, width) != (1, kind.itemsize) or index.stat().st_size != head.size + 8 * numbers:
        raise ValueError(index)
    rest = np.memmap(index, np.int64, "r", offset=head.size)
    dimensions, offsets = rest[: sentences + 1], rest[sentences + 1 : 2 * (sentences + 1)]
    if (dimensions[0], offsets[0], dimensions[-1]) != (0, 0, sizes):
        raise ValueError(index)
    if (np.diff(dimensions) < 0).any() or (np.diff(offsets) < 0).any():
        raise ValueError(index)
    return kind, int(offsets[-1])


def _check_range(text: Path, kind: np.dtype, symbols: int, first: int) -> None:
    """Raise UsageError unless all numbers are those of symbols, counted from `first`."""
    numbers = np.memmap(text, kind, "r")
    for begin in range(0, len(numbers), CHUNK):
        part = numbers[begin : begin + CHUNK]
        for number in (part.min(), part.max()):
            if not first <= number < symbols + first:
                raise UsageError(
                    f"{text} has the number {number - first} and its dictionary {symbols} symbols: "
                    "it is damaged, or was made with another dictionary; give the one it was made "
                    f"with, or {AGAIN}"
                )
