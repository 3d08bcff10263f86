"""Published features of the boxes in pictures: their form in general, .npy files, bottom-up TSV.

A source knows its pictures when it is opened, and reads the boxes of one picture at a time. What is
damaged is refused when a source is opened, or when the shape of a picture is asked for.
"""

import binascii
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from fairseq_ext.bounds import iterate_lines
from fairseq_ext.data.arrays import map_array
from fairseq_ext.errors import UsageError

NUMBER = re.compile(r"(\d+)$")  # COCO_train2014_000000000009 is picture 9
FIELDS = "image_id image_w image_h num_boxes boxes features".split()
CORNERS = 4  # coordinates of a box
AGAIN = "get it again"

Shape = tuple[int, ...]


class FeatureSource:
    """Base of sources: pictures by number, each with the place where it is read.

    Args:
        paths: files.

    Attributes:
        pictures: number -> place; in the order in which reading is fastest.

    Raises:
        UsageError: a file is damaged, or a picture comes twice.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.pictures: dict[int, Any] = {}
        for path in paths:
            for image, place in self.list_pictures(path):
                if image in self.pictures:
                    raise UsageError(
                        f"picture {image} comes twice ({self.name_place(self.pictures[image])} and "
                        f"{self.name_place(place)}); leave one of the two out"
                    )
                self.pictures[image] = place
        if not self.pictures:
            raise UsageError(f"{paths[0]} has no picture; give features of some")

    def list_pictures(self, path: Path) -> Iterator[tuple[int, Any]]:
        """Yield the number and place of each picture of a file."""
        raise NotImplementedError

    def name_place(self, place: Any) -> str:
        """Return a place in words, for messages."""
        raise NotImplementedError

    def read(self, image: int) -> np.ndarray:
        """Return the boxes of a picture [N, C]."""
        raise NotImplementedError

    def shape(self, image: int) -> Shape:
        """Return (N, C) without reading the boxes."""
        raise NotImplementedError


def find_number(name: str, where: object) -> int:
    """Return the number at the end of a name; raise UsageError if it has none."""
    if match := NUMBER.search(name):
        return int(match[1])
    raise UsageError(
        f"{where} has no number of a picture at the end of its name; name it as 9 or "
        "COCO_train2014_000000000009"
    )


class NumpySource(FeatureSource):
    """Source of .npy files, one for each picture."""

    def list_pictures(self, path: Path) -> Iterator[tuple[int, Path]]:
        """Yield the picture of a file, or nothing for Pythia's files about boxes."""
        if not path.stem.endswith("_info"):
            yield find_number(path.stem, path), path

    def name_place(self, place: Path) -> str:
        """Return the path."""
        return str(place)

    def read(self, image: int) -> np.ndarray:
        """Return the boxes of a picture [N, C]."""
        return np.array(map_array(self.pictures[image], AGAIN))

    def shape(self, image: int) -> Shape:
        """Return the shape, from the header of the file."""
        return map_array(self.pictures[image], AGAIN).shape


class TsvSource(FeatureSource):
    """Source of bottom-up TSV files, whose lines have the fields of `FIELDS`.

    `boxes` [N, 4] and `features` [N, C] are float32 in Base64. Every line is checked when the file
    is opened.
    """

    def list_pictures(self, path: Path) -> Iterator[tuple[int, Any]]:
        """Yield where the line of each picture begins, and its shape."""
        with (
            path.open("rb") as file,
            tqdm(total=path.stat().st_size, desc=f"checking {path.name}", unit="B") as bar,
        ):
            offset = 0
            for number, line in enumerate(iterate_lines(file, str(path)), 1):
                image, boxes = parse_line(line, f"{path}, line {number}")
                yield image, (path, offset, number, boxes.shape)
                offset += len(line)
                bar.update(len(line))

    def name_place(self, place: Any) -> str:
        """Return the file and the line."""
        return f"{place[0]}, line {place[2]}"

    def read(self, image: int) -> np.ndarray:
        """Return the boxes of a picture [N, C]."""
        path, offset, _, _ = place = self.pictures[image]
        with path.open("rb") as file:
            file.seek(offset)
            return parse_line(file.readline(), self.name_place(place))[1]

    def shape(self, image: int) -> Shape:
        """Return the shape that the check found."""
        return self.pictures[image][3]


def parse_line(line: bytes, where: str) -> tuple[int, np.ndarray]:
    """Return the number of a picture and its boxes [N, C] float32.

    Args:
        line: of a bottom-up TSV file.
        where: file and number of the line, for messages.

    Raises:
        UsageError: a field is missing or damaged.
    """
    values = line.rstrip(b"\r\n").split(b"\t")
    if len(values) != len(FIELDS):
        raise UsageError(
            f"{where}: has {len(values)} fields and {', '.join(FIELDS)} are needed; it may be cut "
            f"short: {AGAIN}"
        )
    fields = dict(zip(FIELDS, values, strict=True))
    try:
        image, count = int(fields["image_id"]), int(fields["num_boxes"])
    except ValueError:
        raise UsageError(f"{where}: image_id or num_boxes is no number; {AGAIN}") from None
    corners, features = (_decode(fields[name], name, where) for name in ("boxes", "features"))
    if count < 1 or len(corners) != CORNERS * count or len(features) % count or not len(features):
        raise UsageError(
            f"{where}: num_boxes is {count}, boxes have {len(corners)} numbers and features "
            f"{len(features)}, which do not fit; {AGAIN}"
        )
    return image, features.reshape(count, -1)


def _decode(field: bytes, name: str, where: str) -> np.ndarray:
    """Return the float32 numbers of a field."""
    try:
        return np.frombuffer(binascii.a2b_base64(field, strict_mode=True), "<f4")
    except ValueError as error:
        raise UsageError(f"{where}: {name} is damaged ({error}); {AGAIN}") from None
