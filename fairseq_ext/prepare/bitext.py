"""Parallel text: pairs left out for their lengths, and pairs held out for validation.

Lengths are of tokens, parted by white space; pairs are left out as by Moses' clean-corpus-n.perl.
Each VIEW is a folder of the same text in another form; the lengths are those of the first.
"""

import argparse
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, TextIO

from tqdm import tqdm

from fairseq_ext.errors import UsageError
from fairseq_ext.files import atomic_writer, list_files, read_lines

Views = dict[Path, Path]  # what is read -> what is written
HELD_OUT = "valid"


class Limits(NamedTuple):
    """Pairs that are kept: tokens of each side, and how many times as long one side may be."""

    longest: int
    ratio: float

    def allow(self, source: str, target: str) -> bool:
        shorter, longer = sorted((len(source.split()), len(target.split())))
        return shorter > 0 and longer <= self.longest and longer <= self.ratio * shorter


class Choice:
    """Which part a pair goes to, if any.

    Args:
        limits: None: all are kept.
        every: of so many pairs that are kept, one is held out; 0: none.
    """

    def __init__(self, limits: Limits | None, every: int = 0) -> None:
        self.limits, self.every, self.kept = limits, every, 0

    def __call__(self, part: str, source: str, target: str) -> str | None:
        if self.limits and not self.limits.allow(source, target):
            return None
        self.kept += 1
        return HELD_OUT if self.every and self.kept % self.every == 0 else part


def deal(
    part: str, languages: Sequence[str], views: Views, choose: Callable[[str, str, str], str | None]
) -> Counter[str | None]:
    """Write each pair of a part, in every view, to the part that is chosen for it.

    Returns:
        How many pairs went to each part; None: left out.

    Raises:
        UsageError: files of a part have different numbers of lines.
    """
    names = [(folder, language) for folder in views for language in languages]
    read = [read_lines(folder / f"{part}.{language}") for folder, language in names]
    counts: Counter[str | None] = Counter()
    with ExitStack() as stack:
        files: dict[str, list[TextIO]] = {}
        try:
            for lines in tqdm(zip(*read, strict=True), part, unit=" pairs"):
                chosen = choose(part, *lines[:2])
                counts[chosen] += 1
                if chosen and chosen not in files:
                    paths = [views[folder] / f"{chosen}.{language}" for folder, language in names]
                    files[chosen] = [stack.enter_context(atomic_writer(path)) for path in paths]
                for file, line in zip(files.get(chosen or "", ()), lines, strict=bool(chosen)):
                    file.write(f"{line}\n")
        except ValueError as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(
                f"{names[0][0] / part}.* have different numbers of lines; prepare the corpus again"
            ) from error
    return counts


def sort(
    languages: Sequence[str], views: Views, parts: Sequence[str], limits: Limits | None, every: int
) -> dict[str, Counter[str | None]]:
    """Deal these parts, pairs held out of train alone; other files are copied.

    Returns:
        What `deal` returns, of each part that is there.

    Raises:
        UsageError: nothing of a part is left, or nothing is held out.
    """
    first = next(iter(views))
    there = [part for part in parts if (first / f"{part}.{languages[0]}").exists()]
    for folder, out in views.items():
        out.mkdir(parents=True, exist_ok=True)
        for path in list_files(folder):
            if path.stem not in there:
                shutil.copy(path, out)
    found = {
        part: deal(part, languages, views, Choice(limits, every if part == "train" else 0))
        for part in there
    }
    for part, counts in found.items():
        if not counts[part] or (every and part == "train" and not counts[HELD_OUT]):
            raise UsageError(
                f"of the {counts.total()} pairs of {part}, {counts[part]} are left and "
                f"{counts[HELD_OUT]} held out; give more text or other limits"
            )
    return found


def view(text: str) -> tuple[Path, Path]:
    read, _, written = text.partition("=")
    return Path(read), Path(written)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m fairseq_ext.prepare.bitext",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("views", nargs="+", type=view, metavar="VIEW=OUT", help="folders")
    parser.add_argument("--languages", nargs=2, required=True, metavar="LANGUAGE")
    parser.add_argument("--parts", nargs="+", default=["train"], help="default: train")
    parser.add_argument("--longest", type=int, help="tokens of a sentence; default: any number")
    parser.add_argument("--ratio", type=float, default=1.5, help="of lengths; default: 1.5")
    parser.add_argument("--every", type=int, default=0, help="of so many pairs, one for valid")
    given = parser.parse_args(arguments)
    limits = Limits(given.longest, given.ratio) if given.longest else None
    done = sort(given.languages, dict(given.views), given.parts, limits, given.every)
    for part, counts in done.items():
        kept = ", ".join(f"{n:,} {name}" for name, n in counts.items() if name)
        print(f"{part}: {counts.total():,} pairs, of them {kept}, {counts[None]:,} left out")


if __name__ == "__main__":
    main()
