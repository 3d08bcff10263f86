"""A check that two files are a parallel corpus, made before any work with them."""

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple
from unicodedata import is_normalized

from tqdm import tqdm

from fairseq_ext.errors import UsageError
from fairseq_ext.files import read_lines
from fairseq_ext.prepare.step import logger, name_place, step_parser


class Counts(NamedTuple):
    """Size of a parallel corpus.

    Attributes:
        lines: pairs of lines.
        tokens: tokens of each side, separated by white space.
        empty: lines that are empty on a side.
    """

    lines: int
    tokens: tuple[int, int]
    empty: int


def read_parallel(
    files: Sequence[Path], read: Callable[[Path], Iterator[str]] = read_lines
) -> Iterator[tuple[str, ...]]:
    """Yield the lines of parallel files together, as a stream.

    Raises:
        UsageError: at the end, if a file has more lines than the first one, or fewer.
    """
    counts = [0] * len(files)
    for lines in zip_longest(*map(read, files)):
        counts = [count + (line is not None) for count, line in zip(counts, lines, strict=True)]
        if None not in lines:
            yield lines
    for file, number in zip(files[1:], counts[1:], strict=True):
        if number != counts[0]:
            raise UsageError(
                f"{files[0]} has {counts[0]} lines and {file} has {number}: they must have the "
                "same number, each line of one the translation of that line of the other"
            )


def check_parallel(a: Path, b: Path) -> Counts:
    """Read both files through, as a stream, and return how much they hold.

    A line that is empty on a side is no error: such lines are counted, with one warning.

    Raises:
        UsageError: the files have different numbers of lines, or none.
    """
    number, tokens, empty, first = 0, (0, 0), 0, 0
    apart, first_apart = 0, 0
    pairs = tqdm(read_parallel([a, b]), f"checking {a.name}", unit=" lines")
    for number, (source, target) in enumerate(pairs, 1):
        sizes = len(source.split()), len(target.split())
        tokens = tokens[0] + sizes[0], tokens[1] + sizes[1]
        if 0 in sizes:
            empty, first = empty + 1, first or number
        if not (is_normalized("NFC", source) and is_normalized("NFC", target)):
            apart, first_apart = apart + 1, first_apart or number
    if not number:
        files = (name_place(path, 1).removesuffix(", line 1") for path in (a, b))
        raise UsageError(f"{' and '.join(files)} are empty; give a corpus of at least one line")
    if empty:
        logger.warning("%d lines have an empty side, first %s", empty, name_place(a, first))
    if apart:
        logger.warning(
            "%d pairs of lines are not in Unicode's composed form (NFC), first %s; compose them, "
            "or else accents become words of their own",
            *(apart, name_place(a, first_apart)),
        )
    return Counts(number, tokens, empty)


def main(arguments: Sequence[str] | None = None) -> None:
    """Check pairs of files, and print their sizes."""
    parser = step_parser("check", __doc__)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="pairs of files")
    args = parser.parse_args(arguments)
    if len(args.files) % 2:
        parser.error("give two files for each corpus")
    for a, b in zip(args.files[::2], args.files[1::2], strict=True):
        counts = check_parallel(a, b)
        tokens = " and ".join(map(str, counts.tokens))
        print(f"{a.name}, {b.name}: {counts.lines} lines, {tokens} tokens")


if __name__ == "__main__":
    main()
