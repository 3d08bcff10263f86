"""Features of several detectors for the pictures of each split, in files mapped into memory.

`check` only looks for the files. `convert` reads raw/SPLIT.jsonl of OUT, checks the features of all
pictures, and writes SPLIT.jsonl, views.txt, missing.txt and for each detector the files of
`PictureFeatures`. It continues what an interrupted one has written.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from fairseq_ext.data.examples import Field, Values, is_text, read
from fairseq_ext.data.picture_features import FeatureWriter
from fairseq_ext.errors import Unfinished, UsageError
from fairseq_ext.files import check_writable, list_files, write_lines
from fairseq_ext.prepare.feature_sources import FeatureSource
from fairseq_ext.prepare.feature_views import check_files, open_source, parse_views
from fairseq_ext.prepare.step import number_from, step_parser

NAMED = 5  # pictures that a message names
FIELDS = {
    "question_id": Field("a number", lambda value: type(value) is int),
    "image_id": Field("a number", lambda value: type(value) is int),
    "question": Field("a text", is_text),
}


class Limits(NamedTuple):
    """Numbers of boxes that a picture has at least, and at most."""

    least: int
    most: int


def read_splits(raw: Path) -> dict[str, list[Values]]:
    """Return the lines of raw/SPLIT.jsonl by split."""
    paths = [path for path in list_files(raw) if path.suffix == ".jsonl"]
    return {path.stem: [example.values for example in read(path, FIELDS)] for path in paths}


def find_missing(
    splits: Mapping[str, Sequence[Values]], sources: Mapping[str, FeatureSource], strict: bool
) -> dict[str, dict[str, set[int]]]:
    """Return the pictures that each view lacks, by split and view.

    Raises:
        UsageError: a view lacks all pictures of a split, or one of a split other than train, or, if
            `strict`, of train.
    """
    missing: dict[str, dict[str, set[int]]] = {}
    for split, items in splits.items():
        wanted = {item["image_id"] for item in items}
        for view, source in sources.items():
            lacking = wanted - source.pictures.keys()
            missing.setdefault(split, {})[view] = lacking
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
    return missing


def name_some(pictures: Iterable[int]) -> str:
    """Return the first numbers of pictures, as text."""
    ordered = sorted(pictures)
    return ", ".join(map(str, ordered[:NAMED])) + ", …" * (len(ordered) > NAMED)


def check_shapes(
    view: str, source: FeatureSource, pictures: Sequence[int], limits: Limits
) -> tuple[int, int]:
    """Check the features of a view's pictures, print what there is, and return boxes and C.

    Raises:
        UsageError: a picture has too few boxes, or boxes of another width than the first picture.
    """
    boxes = above = width = 0
    for image in tqdm(pictures, f"checking {view}", unit=" pictures"):
        count, own = _check_shape(source, image, limits.least)
        width = width or own
        if own != width:
            raise UsageError(
                f"{source.name_place(source.pictures[image])} has boxes of {own} numbers and other "
                f"pictures of {view} have {width}; give features of one detector"
            )
        boxes += min(count, limits.most)
        above += count > limits.most
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
    prefix: Path, source: FeatureSource, pictures: Iterable[int], width: int, most: int
) -> None:
    """Write the files of a split and view, unless they are there.

    Raises:
        Unfinished: a picture cannot be read; what was written is kept.
    """
    if Path(f"{prefix}.npy").exists():
        return
    with FeatureWriter(prefix, width) as writer:
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
    splits = read_splits(out / "raw")
    sources = {view: open_source(path) for view, path in views.items()}
    missing = find_missing(splits, sources, strict)
    kept = leave_out(splits, missing)
    for line in describe_missing(splits, missing, kept):
        print(line)
    wanted = {split: {item["image_id"] for item in items} for split, items in kept.items()}
    together = sorted(set().union(*wanted.values()))
    needed, width = check_features(sources, together, limits)
    written = [*out.glob("*.npy"), *out.glob(".*.npy.part")]
    check_writable(out, needed - sum(path.stat().st_size for path in written))
    write_texts(out, kept, missing, list(views))
    for split, images in wanted.items():
        for view, source in sources.items():
            ordered = [image for image in source.pictures if image in images]
            convert(out / f"{split}.{view}", source, ordered, width, limits.most)


def leave_out(
    splits: Mapping[str, Sequence[Values]], missing: Mapping[str, Mapping[str, set[int]]]
) -> dict[str, list[Values]]:
    """Return the questions about pictures that all views have; raise UsageError if none is."""
    kept = {}
    for split, items in splits.items():
        lacking: set[int] = set().union(*missing[split].values())
        kept[split] = [item for item in items if item["image_id"] not in lacking]
        if not kept[split]:
            raise UsageError(f"no picture of {split} is known to all detectors; add pictures")
    return kept


def describe_missing(
    splits: Mapping[str, Sequence[Values]],
    missing: Mapping[str, Mapping[str, set[int]]],
    kept: Mapping[str, Sequence[Values]],
) -> list[str]:
    """Return a line for each view that lacks pictures, and one on questions that are left out."""
    lines = []
    for split, views in missing.items():
        lines += [
            f"{split}: {view} lacks {len(lacking):,} pictures ({name_some(lacking)})"
            for view, lacking in views.items()
            if lacking
        ]
        if out := len(splits[split]) - len(kept[split]):
            lines.append(f"{split}: {out:,} questions about them are left out (see missing.txt)")
    return lines


def write_texts(
    out: Path,
    kept: Mapping[str, Sequence[Values]],
    missing: Mapping[str, Mapping[str, set[int]]],
    views: Sequence[str],
) -> None:
    """Write what is not a feature, and pieces/SPLIT, the words of questions, for the manifest."""
    for split, items in kept.items():
        write_lines(
            out / f"{split}.jsonl", (json.dumps(item, ensure_ascii=False) for item in items)
        )
        write_lines(out / "pieces" / split, (item["question"] for item in items))
    write_lines(out / "views.txt", views)
    lines = [
        f"{split} {view} {image}"
        for split, each in missing.items()
        for view, lacking in each.items()
        for image in sorted(lacking)
    ]
    if lines:
        write_lines(out / "missing.txt", lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the step."""
    parser = step_parser("vqa_features", __doc__)
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
    else:
        prepare(args.out, views, limits, args.strict)


if __name__ == "__main__":
    main()
