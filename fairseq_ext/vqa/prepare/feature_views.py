"""Detectors and their published features, as --features NAME=PATH names them."""

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fairseq_ext.errors import UsageError
from fairseq_ext.vqa.prepare.feature_sources import FeatureSource, NumpySource, TsvSource
from fairseq_ext.vqa.prepare.hdf5_source import Hdf5Source

KINDS: dict[str, Callable[[Sequence[Path]], FeatureSource]] = {
    ".npy": NumpySource,
    ".h5": Hdf5Source,
    ".hdf5": Hdf5Source,
    ".tsv": TsvSource,
}
MOST_VIEWS = 3


def kind_of(path: Path) -> str:
    """Return the ending that tells the kind of a file, "" for another one; .tsv.0 is .tsv."""
    suffixes = [suffix for suffix in path.suffixes if not suffix[1:].isdigit()]
    return suffixes[-1].lower() if suffixes and suffixes[-1].lower() in KINDS else ""


def find_feature_files(path: Path) -> tuple[str, list[Path]]:
    """Return the kind of a file, or of the files in a folder and those below it, and the files.

    Raises:
        UsageError: there are none, or several kinds.
    """
    if not path.exists():
        raise UsageError(f"{path} is not there; give a folder of .npy files, HDF5 or TSV")
    found = defaultdict(list)
    for file in [path] if path.is_file() else _files_below(path):
        found[kind_of(file)].append(file)
    found.pop("", None)
    if len(found) != 1:
        kinds = " and ".join(sorted(found)) or "no .npy, .h5, .hdf5 or .tsv"
        raise UsageError(f"{path} has {kinds}; give a file, or a folder with files of one kind")
    return next(iter(found.items()))


def _files_below(folder: Path) -> list[Path]:
    walked = os.walk(folder, followlinks=True)
    return [Path(place, name) for place, _, names in sorted(walked) for name in sorted(names)]


def parse_views(texts: Sequence[str]) -> dict[str, Path]:
    """Return the path of each detector's features, by its name.

    Args:
        texts: NAME=PATH, the primary detector first.

    Raises:
        UsageError: there are none or too many, or a name has no meaning.
    """
    views: dict[str, Path] = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals or not path or not name.isidentifier():
            raise UsageError(
                f"--features is '{text}' and must be NAME=PATH, as in rcnn=/features/rcnn, with a "
                "name of letters, digits and _"
            )
        if name in views:
            raise UsageError(f"--features has {name} twice; give each detector a name of its own")
        views[name] = Path(path)
    if not 1 <= len(views) <= MOST_VIEWS:
        raise UsageError(
            f"--features names {len(views)} detectors; give 1 to {MOST_VIEWS}, the primary one "
            "first"
        )
    return views


def open_source(path: Path) -> FeatureSource:
    """Return the source of a detector's features; raise UsageError if it is damaged."""
    kind, files = find_feature_files(path)
    return KINDS[kind](files)


def check_files(views: Mapping[str, Path]) -> None:
    """Raise UsageError if features are missing; open all but TSV, which takes long."""
    for path in views.values():
        kind, files = find_feature_files(path)
        if kind != ".tsv":
            KINDS[kind](files)
