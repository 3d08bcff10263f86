"""A filter of parallel text: pairs left out for their lengths, and pairs held out to validate.

Lengths are in tokens, separated by white space; pairs are left out as in Moses'
clean-corpus-n.perl. Each VIEW is a folder of the same text in another form; lengths are measured
in the first VIEW.
"""

import math
import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, TextIO

from tqdm import tqdm

from fairseq_ext.errors import UsageError
from fairseq_ext.files import atomic_writer, list_files, rename_when_complete
from fairseq_ext.prepare.check import read_parallel
from fairseq_ext.prepare.step import number_from, step_parser

Views = dict[Path, Path]  # folder to read -> folder to write
HELD_OUT = "valid"
RATIO = 1.5  # of lengths, where only the longest one is given


class Limits(NamedTuple):
    """Lengths of pairs that are kept.

    Attributes:
        longest: tokens of a side, at most.
        ratio: length of the longer side in lengths of the shorter one, at most.
    """

    longest: float
    ratio: float

    def allow(self, source: str, target: str) -> bool:
        """Return whether a pair is within the limits and no side is empty."""
        shorter, longer = sorted((len(source.split()), len(target.split())))
        return shorter > 0 and longer <= self.longest and longer <= self.ratio * shorter


def filter_part(
    part: str, languages: Sequence[str], views: Views, limits: Limits | None, every: int
) -> Counter[str | None]:
    """Write the pairs of a part, in every view, to the same part or to `valid`.

    Args:
        part: name of the files, without their endings.
        languages: endings of the files.
        views: folders.
        limits: None keeps all pairs.
        every: of so many pairs of train that are kept, one is held out; 0 holds out none.

    Returns:
        How many pairs went to each part; to None, how many were left out.

    Raises:
        UsageError: files of the part have different numbers of lines, no pair is left, or none is
            held out.
    """
    names = [(folder, language) for folder in views for language in languages]
    pairs = read_parallel([folder / f"{part}.{language}" for folder, language in names])
    counts: Counter[str | None] = Counter()
    files: dict[str, list[TextIO]] = {}
    kept, every = 0, every if part == "train" else 0
    with ExitStack() as stack:
        for lines in tqdm(pairs, part, unit=" pairs"):
            if limits and not limits.allow(*lines[:2]):
                counts[None] += 1
                continue
            kept += 1
            destination = HELD_OUT if every and kept % every == 0 else part
            counts[destination] += 1
            if destination not in files:
                paths = [views[folder] / f"{destination}.{language}" for folder, language in names]
                files[destination] = [stack.enter_context(atomic_writer(path)) for path in paths]
            for file, line in zip(files[destination], lines, strict=True):
                file.write(f"{line}\n")
    if not counts[part] or (every and not counts[HELD_OUT]):
        raise UsageError(
            f"of the {counts.total()} pairs of {part}, {counts[part]} are left and "
            f"{counts[HELD_OUT]} held out; give more text or other limits"
        )
    return counts


def filter_parts(
    languages: Sequence[str], views: Views, parts: Sequence[str], limits: Limits | None, every: int
) -> dict[str, Counter[str | None]]:
    """Filter parts, hold pairs of train out, and copy all other files.

    Returns:
        The counts of `filter_part` for each part.

    Raises:
        UsageError: a part is missing in a language, or there is one already that is to be held out.
    """
    first = next(iter(views))
    files = [first / f"{part}.{language}" for part in parts for language in languages]
    if missing := [file for file in files if not file.exists()]:
        raise UsageError(
            f"{missing[0]} is missing; give the part {missing[0].stem} in both languages, or other "
            "--parts"
        )
    if every and (held_out := first / f"{HELD_OUT}.{languages[0]}").exists():
        raise UsageError(
            f"--every {every} makes the part {HELD_OUT}, and there is {held_out}; leave one "
            "of both out"
        )
    for folder, out in views.items():
        out.mkdir(parents=True, exist_ok=True)
        for path in list_files(folder):
            if path.stem not in parts:
                with rename_when_complete(out.resolve() / path.name) as copy:
                    shutil.copy(path, copy)
    return {part: filter_part(part, languages, views, limits, every) for part in parts}


def main(arguments: Sequence[str] | None = None) -> None:
    """Filter the parts of a corpus, and print how many pairs each has now."""
    parser = step_parser("bitext", __doc__)
    parser.add_argument("views", nargs="+", metavar="VIEW=OUT", help="folders")
    parser.add_argument("--languages", nargs=2, required=True, metavar="LANGUAGE")
    parser.add_argument("--parts", nargs="+", default=["train"], help="default: train")
    parser.add_argument(
        "--longest", type=number_from(1), help="tokens of a sentence; default: any number"
    )
    parser.add_argument(
        "--ratio", type=float, help="of lengths; default: 1.5 with --longest, else any number"
    )
    parser.add_argument(
        "--every", type=number_from(0), default=0, help="of so many pairs, one for valid"
    )
    args = parser.parse_args(arguments)
    if args.ratio is not None and not args.ratio >= 1:
        parser.error(f"argument --ratio: {args.ratio} is no number from 1 upwards")
    limits = None
    if args.longest or args.ratio:
        limits = Limits(args.longest or math.inf, args.ratio or RATIO)
    folders = [view.partition("=")[::2] for view in args.views]
    if wrong := [v for v, both in zip(args.views, folders, strict=True) if not all(both)]:
        parser.error(f"argument VIEW=OUT: '{wrong[0]}' is not VIEW=OUT, two folders")
    views = {Path(source): Path(destination) for source, destination in folders}
    results = filter_parts(args.languages, views, args.parts, limits, args.every)
    for part, counts in results.items():
        kept = ", ".join(f"{n:,} {name}" for name, n in counts.items() if name)
        print(f"{part}: {counts.total():,} pairs, of them {kept}, {counts[None]:,} left out")


if __name__ == "__main__":
    main()
