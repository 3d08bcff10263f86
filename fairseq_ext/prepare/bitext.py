"""A filter of parallel text: pairs left out for their lengths, and pairs held out.

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
from fairseq_ext.files import atomic_writer, count_lines, list_files, rename_when_complete
from fairseq_ext.prepare.check import read_parallel
from fairseq_ext.prepare.step import number_from, step_parser

Views = dict[Path, Path]  # folder to read -> folder to write
VALID, TEST = "valid", "test"
RATIO = 1.5  # of lengths, where only the longest one is given


class HoldOut(NamedTuple):
    """Pairs of the training text that become other parts.

    Attributes:
        every: of so many pairs that are kept, the last one validates; 0: none does.
        last: so many pairs at the end test, of whatever lengths.
    """

    every: int = 0
    last: int = 0


NONE = HoldOut()


class Limits(NamedTuple):
    """Lengths of pairs that are kept.

    Attributes:
        longest: tokens of a side, at most.
        ratio: length of the longer side in lengths of the shorter one, at most.
    """

    longest: float
    ratio: float

    def find_reason(self, source: str, target: str) -> str | None:
        """Return why a pair is left out; None if it is kept."""
        shorter, longer = sorted((len(source.split()), len(target.split())))
        if not shorter:
            return "an empty side"
        if longer > self.longest:
            return f"over {self.longest} tokens"
        if longer > self.ratio * shorter:
            return f"a side over {self.ratio} times the other"
        return None


class Counts(NamedTuple):
    """Numbers of pairs of a part.

    Attributes:
        kept: by the part that they are in now.
        left_out: by the reason.
    """

    kept: Counter[str]
    left_out: Counter[str]

    def __str__(self) -> str:
        kept = ", ".join(f"{n:,} {name}" for name, n in self.kept.items())
        reasons = ", ".join(f"{n:,} for {reason}" for reason, n in self.left_out.items())
        left_out = f"{self.left_out.total():,} left out{reasons and f' ({reasons})'}"
        total = self.kept.total() + self.left_out.total()
        return f"{total:,} pairs, of them {kept or 'none'}, {left_out}"


def filter_part(
    part: str,
    languages: Sequence[str],
    views: Views,
    limits: Limits | None,
    held_out: HoldOut = NONE,
) -> Counts:
    """Write the pairs of a part, in every view, to the same part or to one that is held out.

    Args:
        part: name of the files, without their endings.
        languages: endings of the files.
        views: folders.
        limits: None keeps all pairs.
        held_out: pairs for other parts.

    Raises:
        UsageError: files of the part have different numbers of lines, no pair is left, or none is
            held out.
    """
    names = [(folder, language) for folder in views for language in languages]
    paths = [folder / f"{part}.{language}" for folder, language in names]
    last = count_lines(paths[0]) - held_out.last
    if last <= 0 < held_out.last:
        raise UsageError(
            f"--test-last is {held_out.last} and the text has {last + held_out.last} pairs; give a "
            "smaller number, or more text"
        )
    counts = Counts(Counter(), Counter())
    files: dict[str, list[TextIO]] = {}
    with ExitStack() as stack:
        for number, lines in enumerate(tqdm(read_parallel(paths), part, unit=" pairs")):
            tested = held_out.last and number >= last
            if not tested and limits and (reason := limits.find_reason(*lines[:2])):
                counts.left_out[reason] += 1
                continue
            validates = held_out.every and (counts.kept.total() + 1) % held_out.every == 0
            destination = TEST if tested else VALID if validates else part
            counts.kept[destination] += 1
            if destination not in files:
                out = [views[folder] / f"{destination}.{language}" for folder, language in names]
                files[destination] = [stack.enter_context(atomic_writer(path)) for path in out]
            for file, line in zip(files[destination], lines, strict=True):
                file.write(f"{line}\n")
        _check_enough(part, counts, held_out)
    return counts


def _check_enough(part: str, counts: Counts, held_out: HoldOut) -> None:
    """Raise UsageError if a part is empty."""
    if not counts.kept[part]:
        remedy = "give more text, or other limits (--longest, --ratio)"
    elif held_out.every and not counts.kept[VALID]:
        remedy = f"--every {held_out.every} holds none out: give a smaller number, or more text"
    else:
        return
    raise UsageError(f"{part} has {counts}; {remedy}")


def filter_parts(
    languages: Sequence[str],
    views: Views,
    parts: Sequence[str],
    limits: Limits | None,
    held_out: HoldOut = NONE,
) -> dict[str, Counts]:
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
    for flag, size, part in (("every", held_out.every, VALID), ("test-last", held_out.last, TEST)):
        if size and (file := first / f"{part}.{languages[0]}").exists():
            raise UsageError(
                f"--{flag} {size} makes the part {part}, and there is {file}; leave one of both out"
            )
    for folder, out in views.items():
        out.mkdir(parents=True, exist_ok=True)
        for path in list_files(folder):
            if path.stem not in parts:
                with rename_when_complete(out.resolve() / path.name) as copy:
                    shutil.copy(path, copy)
    own = {"train": held_out}
    return {p: filter_part(p, languages, views, limits, own.get(p, NONE)) for p in parts}


def main(arguments: Sequence[str] | None = None) -> None:
    """Filter the parts of a corpus, and print how many pairs each has now."""
    parser = step_parser("bitext", __doc__)
    add = parser.add_argument
    add("views", nargs="+", metavar="VIEW=OUT", help="folders")
    add("--languages", nargs=2, required=True, metavar="LANGUAGE")
    add("--parts", nargs="+", default=["train"], help="default: train")
    add("--longest", type=number_from(1), help="tokens of a sentence; default: any number")
    add("--ratio", type=float, help="of lengths; default: 1.5 with --longest, else any number")
    add("--every", type=number_from(0), default=0, help="of so many pairs, one for valid")
    add("--test-last", type=number_from(0), default=0, metavar="N", help="the last N pairs test")
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
    held_out = HoldOut(args.every, args.test_last)
    for part, counts in filter_parts(args.languages, views, args.parts, limits, held_out).items():
        print(f"{part}: {counts}")


if __name__ == "__main__":
    main()
