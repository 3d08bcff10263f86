"""Feature vectors of the boxes in pictures, in a file that is mapped into memory.

A prefix such as "data-bin/vqa/train.rcnn" stands for two files. PREFIX.npy holds the boxes of all
pictures [boxes, C] in float16, one picture after the other. PREFIX.pictures.npy [pictures, 2] holds
the number of each picture and its first box in int64. Mapped pages belong to the file: the memory
that a process owns stays level, however large the files are.
"""

import io
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_ext.data.arrays import map_array
from fairseq_ext.data.files_in_use import FilesInUse
from fairseq_ext.errors import UsageError
from fairseq_ext.files import explain_disk_errors, rename_when_complete
from fairseq_ext.places import open_unlinked

AGAIN = "prepare the data again with scripts/prepare_vqa.sh"
BATCH = 256  # pictures after which what was written can be continued
TYPE = np.dtype("<f2")
ROW = np.dtype("<i8")


class PictureFeatures:
    """Features of the pictures of a split as one detector sees them, read when they are needed.

    Args:
        prefix: path of the two files, without their endings.

    Attributes:
        width: C, the length of a box's feature vector.

    Raises:
        UsageError: a file is missing, cut short, or does not fit the other one.
    """

    def __init__(self, prefix: Path) -> None:
        self.prefix = Path(prefix)
        boxes, pictures = (Path(f"{prefix}{ending}") for ending in (".npy", ".pictures.npy"))
        mapped: Any = map_array(boxes, AGAIN)
        rows = map_array(pictures, AGAIN)
        self._boxes = np.asarray(mapped)  # slices of a memmap itself are slow
        if self._boxes.ndim != 2 or self._boxes.dtype != TYPE:
            given = f"{self._boxes.dtype} {list(self._boxes.shape)}"
            raise UsageError(f"{boxes} holds {given}, and float16 [boxes, C] is needed; {AGAIN}")
        self.width = self._boxes.shape[1]
        if rows.ndim != 2 or rows.shape[1] != 2 or rows.dtype != ROW:
            given = f"{rows.dtype} {list(rows.shape)}"
            raise UsageError(
                f"{pictures} holds {given}, and int64 [pictures, 2] is needed; {AGAIN}"
            )
        ends = np.append(rows[1:, 1], len(self._boxes))
        if not len(rows) or rows[0, 1] != 0 or (ends <= rows[:, 1]).any():
            raise UsageError(
                f"{pictures} does not say where the pictures of {boxes.name} begin, of which one "
                f"of the two is cut short or of other data; {AGAIN}"
            )
        table = zip(*rows.T.tolist(), ends.tolist(), strict=True)
        self._spans = {image: (first, end) for image, first, end in table}
        if len(self._spans) != len(rows):
            raise UsageError(f"{pictures} has a picture twice; {AGAIN}")
        self._start = mapped.offset % mmap.ALLOCATIONGRANULARITY  # of the boxes, in what is mapped
        self._map: Any = mapped._mmap
        self._files_in_use = FilesInUse(boxes)
        self._map.madvise(mmap.MADV_RANDOM)  # read no more than `__getitem__` asks for

    def __len__(self) -> int:
        return len(self._spans)

    def __contains__(self, image: int) -> bool:
        return image in self._spans

    def __iter__(self) -> Iterator[int]:
        return iter(self._spans)

    def __getitem__(self, image: int) -> np.ndarray:
        """Return [N, C] float16, a read-only view of the file; raise KeyError if there is none.

        The system begins to read these boxes at once, and no others. By itself it reads page by
        page what is touched, with up to some MB around it.
        """
        self._files_in_use.check()
        first, end = self._spans[image]
        row = self._boxes.strides[0]
        begin = self._start + first * row
        page = begin - begin % mmap.PAGESIZE
        self._map.madvise(mmap.MADV_WILLNEED, page, self._start + end * row - page)
        return self._boxes[first:end]

    def count(self, image: int) -> int:
        """Return N, the number of boxes of a picture, without reading them."""
        first, end = self._spans[image]
        return end - first

    def __reduce__(self) -> tuple[Any, ...]:
        """Let another process map the file, and not receive a copy of it."""
        return PictureFeatures, (self.prefix,)


class FeatureWriter:
    """Writer of the two files of a prefix, which continues what an interrupted one has written.

    The files get their names when `complete` is called. Until then, boxes and pictures stand in
    hidden files beside them, which the next writer of the same prefix continues.

    Args:
        prefix: as for `PictureFeatures`.
        width: C.

    Raises:
        UsageError: what is to be continued has feature vectors of another length.
    """

    def __init__(self, prefix: Path, width: int) -> None:
        self.prefix, self.width = Path(prefix), width
        folder, name = self.prefix.parent, self.prefix.name
        folder.mkdir(parents=True, exist_ok=True)
        self._parts = folder / f".{name}.npy.part", folder / f".{name}.pictures.part"
        self._rows = self._continue()
        self._written = len(self._rows)  # rows that the file has
        self._done = {image for image, _ in self._rows}
        self._boxes = sum(count for _, count in self._rows)
        self._files = [path.open("r+b") for path in self._parts]
        sizes = len(_header((0, width), TYPE)) + self._boxes * width * 2, len(self._rows) * 16
        for file, size in zip(self._files, sizes, strict=True):
            file.truncate(size)
            file.seek(size)

    def _continue(self) -> list[tuple[int, int]]:
        """Return pictures, with their numbers of boxes, that are there in full."""
        for path in self._parts:
            open_unlinked(path, "ab").close()
        boxes, rows = self._parts
        header = _header((0, self.width), TYPE)
        if boxes.stat().st_size < len(header):
            boxes.write_bytes(header)
            rows.write_bytes(b"")
        if _read_width(boxes) != self.width:
            raise UsageError(
                f"{boxes} was begun with boxes of another width than {self.width}; delete it and "
                "run the same command again"
            )
        room = (boxes.stat().st_size - len(header)) // (2 * self.width)
        kept = np.fromfile(rows, ROW, 2 * (rows.stat().st_size // 16)).reshape(-1, 2)
        kept = kept[np.cumsum(kept[:, 1]) <= room]
        return [(image, count) for image, count in kept.tolist()]

    def __contains__(self, image: int) -> bool:
        return image in self._done

    def __len__(self) -> int:
        return len(self._done)

    def add(self, image: int, boxes: np.ndarray) -> None:
        """Append a picture.

        Args:
            image: number of the picture.
            boxes: [N, C], any type of float; stored as float16.

        Raises:
            UsageError: the picture is there already, has no boxes or boxes of another width, or
                numbers that float16 does not hold.
            Unfinished: the disk is full.
        """
        if image in self._done:
            raise UsageError(f"picture {image} comes twice; leave one of the two out")
        if boxes.ndim != 2 or boxes.shape[1] != self.width or not len(boxes):
            raise UsageError(
                f"picture {image} has boxes of the shape {list(boxes.shape)}; give "
                f"[N, {self.width}] with N from 1"
            )
        if boxes.dtype.kind not in "fiu":
            raise UsageError(f"picture {image} has {boxes.dtype} in its boxes; give numbers")
        with np.errstate(over="ignore"):
            stored = np.ascontiguousarray(boxes, TYPE)
        if not np.isfinite(stored).all():
            raise UsageError(
                f"picture {image} has features that are no numbers of 16 bits (NaN, or beyond "
                "65504); extract it again"
            )
        with explain_disk_errors(self._parts[0]):
            self._files[0].write(stored.tobytes())
            self._rows.append((image, len(stored)))
            self._done.add(image)
            self._boxes += len(stored)
            if len(self._rows) - self._written >= BATCH:
                self._flush()

    def _flush(self) -> None:
        """Write boxes, then the rows that say which there are."""
        self._files[0].flush()
        rows = np.array(self._rows[self._written :], ROW)
        self._files[1].write(rows.tobytes())
        self._files[1].flush()
        self._written = len(self._rows)

    def complete(self) -> None:
        """Give the files their names; raise UsageError if no picture was added."""
        if not self._rows:
            raise UsageError(f"{self.prefix} would have no picture; give features of some")
        counts = np.array(self._rows, ROW)
        rows = np.stack([counts[:, 0], np.cumsum(counts[:, 1]) - counts[:, 1]], 1)
        with explain_disk_errors(self._parts[0]):
            self._files[0].seek(0)
            self._files[0].write(_header((self._boxes, self.width), TYPE))
            self.close()
            with rename_when_complete(Path(f"{self.prefix}.pictures.npy")) as part:
                part.write_bytes(_header(rows.shape, ROW) + rows.tobytes())
            self._parts[0].replace(f"{self.prefix}.npy")
            self._parts[1].unlink()

    def close(self) -> None:
        """Write what is left, so that another writer can continue."""
        if not self._files[0].closed:
            self._flush()
            for file in self._files:
                file.close()

    def __enter__(self) -> "FeatureWriter":
        return self

    def __exit__(self, *_: object) -> None:
        with explain_disk_errors(self._parts[0]):
            self.close()


def _read_width(path: Path) -> int:
    """Return the last length of an array, from the header of its file."""
    with path.open("rb") as file:
        np.lib.format.read_magic(file)
        return np.lib.format.read_array_header_1_0(file)[0][-1]


def _header(shape: tuple[int, ...], kind: np.dtype) -> bytes:
    """Return the header of a .npy file; its length does not depend on the number of rows."""
    content = io.BytesIO()
    about = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(content, about)
    return content.getvalue()
