"""Published features of the boxes in pictures: HDF5, which the package h5py reads."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_ext.bounds import check_unpacked
from fairseq_ext.errors import UsageError
from fairseq_ext.extras import import_extra
from fairseq_ext.vqa.prepare.feature_sources import (
    AGAIN,
    CORNERS,
    FeatureSource,
    Shape,
    find_number,
)

TABLES = ("image_features", "features")  # data sets that hold all pictures
NUMBERS = ("image_ids", "image_id", "ids")
PLACES = ("boxes", "bbox", "bboxes", "image_bb")  # coordinates of boxes


class Hdf5Source(FeatureSource):
    """Source of HDF5 files, in one of two forms.

    Either each picture is a data set [N, C], or a group with a data set "features", whose name ends
    with the picture's number. Or one data set "features" or "image_features" has all pictures, and
    "image_ids", "image_id" or "ids" [P] their numbers: it is [P, K, C], with "num_boxes" [P] where
    pictures have fewer than K boxes; or [boxes, C], with "pos_boxes" [P, 2], the first box of each
    picture and the one after its last. Coordinates beside them, "boxes" [..., 4, N] in the place of
    [..., N, 4], say that features are [..., C, N]: these are read transposed.
    """

    def list_pictures(self, path: Path) -> Iterator[tuple[int, Any]]:
        """Yield a file, the name of a data set in it, and what of that a picture has."""
        file = _open_hdf5(path)
        file.visititems(lambda _, entry: _check_size(path, entry))
        table = next((file[name] for name in TABLES if name in file), None)
        if table is None:
            for name in file:
                yield find_number(name, f"{path}:{name}"), (file, name, slice(None), slice(None))
            return
        numbers = next((file[name] for name in NUMBERS if name in file), None)
        if numbers is None:
            raise UsageError(
                f"{path} has {table.name[1:]} and not the numbers of its pictures; add them as a "
                "data set image_ids (a pickle beside it is not read)"
            )
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
            raise UsageError(
                f"{path} has {numbers.name[1:]} that are no list of whole numbers; {AGAIN}"
            )
        yield from _list_table(file, table, numbers[:], path)

    def name_place(self, place: Any) -> str:
        """Return the file and the name of the data set."""
        return f"{place[0].filename}:{place[1]}"

    def read(self, image: int) -> np.ndarray:
        """Return the boxes of a picture [N, C]."""
        file, name, picture, boxes = self.pictures[image]
        try:
            entry = _find_data_set(file, name)
            flipped = _shape(entry) != entry.shape
            return (entry[picture].T if flipped else entry[picture])[boxes]
        except OSError as error:
            place = self.name_place(self.pictures[image])
            raise UsageError(f"{place} cannot be read ({error}); {AGAIN}") from None

    def shape(self, image: int) -> Shape:
        """Return the shape, without reading the boxes."""
        file, name, picture, boxes = self.pictures[image]
        entry = _find_data_set(file, name)
        shape = _shape(entry)
        if isinstance(picture, int):
            return boxes.stop, shape[2]
        if entry.ndim != 2:
            return shape
        return len(range(*picture.indices(shape[0]))), shape[1]


def _open_hdf5(path: Path) -> Any:
    h5py = import_extra("h5py", "hdf5", f"{path} is HDF5 and")
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise UsageError(f"{path} is cut short or damaged ({error}); {AGAIN}") from None


def _check_size(path: Path, entry: Any) -> None:
    """Raise UsageError for a data set whose shape says much more than the file can hold."""
    check_unpacked(path, path.stat().st_size, getattr(entry, "nbytes", 0))


def _find_data_set(file: Any, name: str) -> Any:
    """Return a data set, or the one of a group that holds features."""
    entry = file[name]
    found = entry if hasattr(entry, "ndim") else entry.get("features")
    if found is None:
        raise UsageError(
            f"{file.filename}:{name} is a group without a data set 'features'; give one with it"
        )
    return found


def _has_boxes_last(entry: Any) -> bool:
    """Return whether features are [..., C, N], as the coordinates of boxes beside them tell."""
    shapes = {getattr(entry.parent.get(name), "shape", ())[-2:] for name in PLACES}
    number, width = entry.shape[-2], entry.shape[-1]
    return (CORNERS, width) in shapes and (number, CORNERS) not in shapes


def _shape(entry: Any) -> Shape:
    """Return the shape of features with their boxes before C."""
    shape = entry.shape
    if len(shape) > 1 and _has_boxes_last(entry):
        return (*shape[:-2], shape[-1], shape[-2])
    return shape


def _list_table(
    file: Any, table: Any, numbers: np.ndarray, path: Path
) -> Iterator[tuple[int, Any]]:
    """Yield the pictures of a data set that holds all of them."""
    pictures, name, shape = len(numbers), table.name[1:], _shape(table)
    if table.ndim == 3 and len(table) == pictures:
        most = np.full(pictures, shape[1])
        counts = file["num_boxes"][:].reshape(-1) if "num_boxes" in file else most
        if len(counts) != pictures or (counts < 0).any() or (counts > shape[1]).any():
            raise UsageError(f"{path} has num_boxes that do not fit {name}; {AGAIN}")
        for row, (number, count) in enumerate(zip(numbers.tolist(), counts.tolist(), strict=True)):
            yield number, (file, name, row, slice(int(count)))
    elif table.ndim == 2 and "pos_boxes" in file and shape == table.shape:
        spans = file["pos_boxes"][:]
        if spans.shape != (pictures, 2) or (spans < 0).any() or (spans > len(table)).any():
            raise UsageError(f"{path} has pos_boxes that do not fit {name}; {AGAIN}")
        for number, (first, end) in zip(numbers.tolist(), spans.tolist(), strict=True):
            yield number, (file, name, slice(first, end), slice(None))
    else:
        raise UsageError(
            f"{path} has {name} of the shape {list(table.shape)} for {pictures} "
            "pictures; give [pictures, boxes, C], or [boxes, C] with pos_boxes"
        )
