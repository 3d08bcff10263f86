"""Features of several detectors for the pictures of each split, in files mapped into memory.

`check` only looks for the files. `convert` reads raw/SPLIT.jsonl of OUT, checks the features of all
pictures, and writes SPLIT.jsonl, views.txt, missing.txt and for each detector the files of
`PictureFeatures`. It continues what an interrupted one has written.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from fairseq_ext.errors import Unfinished, UsageError
from fairseq_ext.files import atomic_writer, check_writable, list_files, read_lines, write_lines
from fairseq_ext.places import hold
from fairseq_ext.prepare.step import number_from, step_parser
from fairseq_ext.vqa.picture_features import FeatureWriter, PictureFeatures
from fairseq_ext.vqa.prepare.feature_sources import FeatureSource
from fairseq_ext.vqa.prepare.feature_views import check_files, open_source, parse_views

NAMED = 5  # pictures that a message names

Pictures = Mapping[str, Counter[int]]  # split -> picture -> questions about it
Missing = Mapping[str, Mapping[str, set[int]]]  # split -> view -> pictures that the view lacks


class Limits(NamedTuple):
    """Numbers of boxes that a picture has at least, and at most."""

    least: int
    most: int


def read_pictures(raw: Path) -> dict[str, Counter[int]]:
    """Return how many questions of raw/SPLIT.jsonl are about each picture, by split."""
    return {
        path.stem: Counter(json.loads(line)["image_id"] for line in read_lines(path))
        for path in list_files(raw)
    }


def find_missing(
    pictures: Pictures, sources: Mapping[str, FeatureSource], strict: bool
) -> dict[str, dict[str, set[int]]]:
    """Return the pictures that each view lacks, by split and view.

    Raises:
        UsageError: a view lacks all pictures of a split, or one of a split other than train, or, if
            `strict`, of train; or no picture of a split is known to all views.
    """
    missing: dict[str, dict[str, set[int]]] = {}
    for split, wanted in pictures.items():
        missing[split] = {}
        for view, source in sources.items():
            missing[split][view] = lacking = wanted.keys() - source.pictures.keys()
            if len(lacking) == len(wanted):
                raise UsageError(
                    f"{view} has none of the {len(wanted)} pictures of {split} "
                    f"({name_some(lacking)}), its own are {name_some(source.pictures)}; give "
                    "features of these pictures"
                )
            if lacking and (strict or split != "train"):
                rest = "leave --strict out" if split == "train" else "add them, all are scored"
                raise UsageError(
                    f"{view} lacks {len(lacking)} of the {len(wanted)} pictures of {split} "
                    f"({name_some(lacking)}); {rest}"
                )
        if not wanted.keys() - unite(missing[split]):
            raise UsageError(f"no picture of {split} is known to all detectors; add pictures")
    return missing


def unite(views: Mapping[str, set[int]]) -> set[int]:
    """Return the pictures that any view lacks."""
    return set().union(*views.values())


def name_some(pictures: Iterable[int]) -> str:
    """Return the first numbers of pictures, as text."""
    ordered = sorted(pictures)
    return ", ".join(map(str, ordered[:NAMED])) + ", …" * (len(ordered) > NAMED)


def check_shapes(
    view: str, source: FeatureSource, pictures: Sequence[int], limits: Limits
) -> tuple[int, int]:
    """Check the features of a view's pictures, print what there is, and return boxes and C.

    Raises:
        UsageError: a picture has too few boxes, or boxes of another width than the first picture;
            or all look transposed.
    """
    boxes = above = width = 0
    counts = set()
    for image in tqdm(pictures, f"checking {view}", unit=" pictures"):
        count, own = _check_shape(source, image, limits.least)
        width = width or own
        if own != width:
            raise UsageError(
                f"{source.name_place(source.pictures[image])} has boxes of {own} numbers and other "
                f"pictures of {view} have {width}; give features of one detector"
            )
        counts.add(count)
        boxes += min(count, limits.most)
        above += count > limits.most
    if counts == {count} and width <= limits.most < count:
        raise UsageError(
            f"{view} has {count} boxes of {width} numbers in every picture, as if they were "
            f"transposed; give [boxes, C], or --boxes {limits.least},{count} if these are boxes"
        )
    cut = f"; {above:,} pictures have more than {limits.most} and lose the rest" if above else ""
    print(f"{view}: {boxes:,} boxes of {len(pictures):,} pictures, {width} numbers each{cut}")
    return boxes, width


def _check_shape(source: FeatureSource, image: int, least: int) -> tuple[int, int]:
    """Return the boxes of a picture and C; raise UsageError if there are too few."""
    shape, place = source.shape(image), source.name_place(source.pictures[image])
    if len(shape) != 2 or not shape[1]:
        raise UsageError(f"{place} has the shape {list(shape)}; give [boxes, C] for each picture")
    if shape[0] < least:
        raise UsageError(
            f"{place} has {shape[0]} boxes and --boxes asks for {least} at least; give less to "
            "--boxes, or extract more"
        )
    return shape


def check_features(
    sources: Mapping[str, FeatureSource], pictures: Sequence[int], limits: Limits
) -> tuple[int, int]:
    """Return the bytes that features will take, and C.

    Raises:
        UsageError: as in `check_shapes`, or views differ in width.
    """
    found = {view: check_shapes(view, each, pictures, limits) for view, each in sources.items()}
    widths = {width for _, width in found.values()}
    if len(widths) > 1:
        given = ", ".join(f"{view} {width}" for view, (_, width) in found.items())
        raise UsageError(
            f"boxes of the detectors differ in width ({given}); give detectors of one width, since "
            "multi-view attention adds their features"
        )
    width = widths.pop()
    return sum(boxes for boxes, _ in found.values()) * width * 2, width


def convert(
    prefix: Path, source: FeatureSource, pictures: Sequence[int], width: int, most: int
) -> None:
    """Write the files of a split and view, unless they are there with these pictures.

    Raises:
        Unfinished: a picture cannot be read; what was written is kept.
    """
    boxes = Path(f"{prefix}.npy")
    # again, if it continued what was begun with pictures that are not wanted any more
    while not (boxes.exists() and {*PictureFeatures(prefix)} == {*pictures}):
        boxes.unlink(missing_ok=True)
        with hold(prefix), FeatureWriter(prefix, width) as writer:
            for image in tqdm(pictures, f"writing {prefix.name}", unit=" pictures"):
                if image not in writer:
                    _copy_picture(writer, source, image, most)
            writer.complete()


def _copy_picture(writer: FeatureWriter, source: FeatureSource, image: int, most: int) -> None:
    try:
        writer.add(image, source.read(image)[:most])
    except Unfinished:
        raise
    except UsageError as error:
        raise Unfinished(
            f"{source.name_place(source.pictures[image])}: {error}; mend it, and the same command "
            "continues"
        ) from None


def prepare(out: Path, views: Mapping[str, Path], limits: Limits, strict: bool) -> None:
    """Write the prepared folder; see the module's docstring."""
    pictures = read_pictures(out / "raw")
    sources = {view: open_source(path) for view, path in views.items()}
    missing = find_missing(pictures, sources, strict)
    for line in describe_missing(pictures, missing):
        print(line)
    wanted = {split: each.keys() - unite(missing[split]) for split, each in pictures.items()}
    needed, width = check_features(sources, sorted(set().union(*wanted.values())), limits)
    check_writable(out, needed - sum(path.stat().st_size for path in list_written(out)))
    for split, images in wanted.items():
        copy_questions(out, split, images)
    write_lines(out / "views.txt", views)
    write_missing(out / "missing.txt", missing)
    for split, images in wanted.items():
        for view, source in sources.items():
            ordered = [image for image in source.pictures if image in images]
            convert(out / f"{split}.{view}", source, ordered, width, limits.most)


def list_written(out: Path) -> list[Path]:
    """Return the files of features that are there, complete or not."""
    return [*out.glob("*.npy"), *out.glob(".*.npy.part")]


def describe_missing(pictures: Pictures, missing: Missing) -> Iterator[str]:
    """Yield a line for each view that lacks pictures, and one on questions that are left out."""
    for split, views in missing.items():
        for view, lacking in views.items():
            if lacking:
                yield f"{split}: {view} lacks {len(lacking):,} pictures ({name_some(lacking)})"
        if questions := sum(pictures[split][image] for image in unite(views)):
            yield f"{split}: {questions:,} questions about them are left out (see missing.txt)"


def copy_questions(out: Path, split: str, images: Set[int]) -> None:
    """Write SPLIT.jsonl, and pieces/SPLIT, the words of the questions, for the manifest."""
    with (
        atomic_writer(out / f"{split}.jsonl") as questions,
        atomic_writer(out / "pieces" / split) as words,
    ):
        for line in read_lines(out / "raw" / f"{split}.jsonl"):
            item = json.loads(line)
            if item["image_id"] in images:
                questions.write(f"{line}\n")
                words.write(f"{item['question']}\n")


def write_missing(path: Path, missing: Missing) -> None:
    """Write a line SPLIT VIEW PICTURE for each picture that a view lacks, or no file."""
    lines = [
        f"{split} {view} {image}"
        for split, views in missing.items()
        for view, lacking in views.items()
        for image in sorted(lacking)
    ]
    if lines:
        write_lines(path, lines)
    else:
        path.unlink(missing_ok=True)  # of a command that was interrupted


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the step."""
    parser = step_parser("features", __doc__, "fairseq_ext.vqa.prepare")
    parser.add_argument("verb", choices=("check", "convert"), metavar="VERB")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder with raw/, to write to")
    parser.add_argument("--features", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--boxes", type=number_from(1), nargs=2, default=(10, 100), metavar="N")
    parser.add_argument("--strict", action="store_true", help="refuse training pictures missing")
    args = parser.parse_args(arguments)
    views, limits = parse_views(args.features), Limits(*args.boxes)
    if limits.least > limits.most:
        raise UsageError(f"--boxes is {limits.least},{limits.most}; give the smaller number first")
    if args.verb == "check":
        check_files(views)
        return
    try:
        prepare(args.out, views, limits, args.strict)
    except UsageError as error:
        if isinstance(error, Unfinished) or not list_written(args.out):
            raise
        raise Unfinished(
            f"{error}; features that were written are kept: run the same command again when this "
            f"is mended, or delete {args.out} to begin again"
        ) from None


if __name__ == "__main__":
    main()
