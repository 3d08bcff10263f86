"""Parallel text from Annotated Gigaword for headlines, as prepared by Rush et al. (2015).

Languages are `article` and `title`. Training and validation parts mark rare words as <unk>, which
is fairseq's own symbol, the test part as UNK: both become the word unk.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

from fairseq_ext.errors import UsageError
from fairseq_ext.files import list_files, read_lines_replacing_returns, write_lines
from fairseq_ext.prepare.check import check_parallel
from fairseq_ext.prepare.extract import find
from fairseq_ext.prepare.step import number_from, read_with_progress, record_inputs, step_parser

SIDES = ("article", "title")
# Names of each side's file in harvardnlp/sent-summary, then in two other versions of it.
FILES = {
    "train": ("train.article.txt|train.src.txt", "train.title.txt|train.tgt.txt"),
    "valid": ("valid.article.filter.txt|dev.src.txt", "valid.title.filter.txt|dev.tgt.txt"),
    "test": ("input.txt|test.src.txt|test1951.jsonl", "task1_ref0.txt|test.tgt.txt|test1951.jsonl"),
}
REFERENCES = "test.title"
RARE = re.compile(r"(?<!\S)(?:<unk>|UNK)(?!\S)")


def normalise(line: str) -> str:
    """Return the words of a line in single spaces, with rare ones as "unk"."""
    return " ".join(RARE.sub("unk", line).split())


def sentences(path: Path, side: str) -> Iterator[str]:
    """Yield the articles or titles of a file of plain lines, or of JSON lines.

    Raises:
        UsageError: a line of JSON has no keys `text` and `summaries`.
    """
    for number, line in enumerate(read_lines_replacing_returns(path), 1):
        try:
            if ".jsonl" in path.name:
                example = json.loads(line)
                line = example["text"] if side == "article" else example["summaries"][0]
        except (ValueError, KeyError, IndexError, TypeError, RecursionError):
            where = f"{path}, line {number}"
            raise UsageError(f"{where}: has no text and summaries; give both") from None
        yield normalise(line)


def sample(lines: Iterable[str], size: int, total: int) -> Iterator[str]:
    """Return `size` of `total` lines, spread evenly, or all lines if there are not more."""
    chosen = {number * total // size for number in range(size)}
    return (line for number, line in enumerate(lines) if number in chosen)


def extract(folder: Path, out: Path, valid: int) -> None:
    """Write out/PART.article and out/PART.title, and list the inputs; files that exist are kept.

    Args:
        folder: searched for the corpus.
        out: folder to write to.
        valid: pairs for validation, at most.

    Raises:
        UsageError: a file is missing or malformed.
    """
    files = {part: find(names, [folder]) for part, names in FILES.items()}
    size = check_parallel(*files["valid"]).lines
    # before a part is written: what changes from now on is newer
    record_inputs(out, (path for paths in files.values() for path in paths))
    for part, paths in files.items():
        for side, path in zip(SIDES, paths, strict=True):
            if not (written := out / f"{part}.{side}").exists():
                lines = sentences(path, side)
                chosen = sample(lines, valid, size) if part == "valid" else lines
                write_lines(written, tqdm(chosen, written.name, unit=" lines"))


def truncate(folder: Path, limits: dict[str, int]) -> None:
    """Cut the lines of all files to the tokens that their side may have, in place.

    Titles of the test part stay: they are references, which titles of any length are compared with.

    Args:
        folder: with files PART.SIDE.
        limits: tokens of each side.
    """
    for path in list_files(folder):
        if path.name != REFERENCES:
            limit = limits[path.suffix[1:]]
            lines = read_with_progress("cutting", path)
            write_lines(path, (" ".join(line.split()[:limit]) for line in lines))


def main(arguments: Sequence[str] | None = None) -> None:
    """Extract the corpus, or truncate its lines."""
    parser = step_parser("gigaword", __doc__)
    verbs = parser.add_subparsers(required=True, dest="verb", metavar="VERB")
    verb = verbs.add_parser("extract", help="files of the corpus to OUT/PART.SIDE")
    verb.add_argument("folder", type=Path, metavar="FOLDER")
    verb.add_argument("out", type=Path, metavar="OUT")
    verb.add_argument(
        "--valid", type=number_from(1), default=10_000, metavar="N", help="pairs, at most"
    )
    verb = verbs.add_parser("truncate", help="lines of FOLDER/PART.SIDE to so many tokens")
    verb.add_argument("folder", type=Path, metavar="FOLDER")
    verb.add_argument("--positions", type=number_from(2), nargs=2, required=True, metavar="N")
    args = parser.parse_args(arguments)
    if args.verb == "extract":
        extract(args.folder, args.out, args.valid)
    else:
        limits = (positions - 1 for positions in args.positions)  # </s> takes one
        truncate(args.folder, dict(zip(SIDES, limits, strict=True)))


if __name__ == "__main__":
    main()
