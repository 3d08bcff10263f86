"""Annotated Gigaword for headlines, as prepared by Rush et al. (2015), to parallel text.

Languages are `article` and `title`. Training and validation parts mark rare words as <unk>, which
is fairseq's own symbol, the test part as UNK: both become the word unk.
"""

import argparse
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from tqdm import tqdm

from fairseq_ext.errors import UsageError
from fairseq_ext.files import list_files, read_lines, read_lines_replacing_returns, write_lines
from fairseq_ext.prepare.check import check_parallel
from fairseq_ext.prepare.file_search import find
from fairseq_ext.prepare.manifest import INPUTS

SIDES = ("article", "title")
# As harvardnlp/sent-summary has them, then two other versions of them.
FILES = {
    "train": {
        "article": "train.article.txt|train.src.txt",
        "title": "train.title.txt|train.tgt.txt",
    },
    "valid": {
        "article": "valid.article.filter.txt|dev.src.txt",
        "title": "valid.title.filter.txt|dev.tgt.txt",
    },
    "test": {
        "article": "input.txt|test.src.txt|test1951.jsonl",
        "title": "task1_ref0.txt|test.tgt.txt|test1951.jsonl",
    },
}
REFERENCES = "test.title"
RARE = re.compile(r"(?<!\S)(?:<unk>|UNK)(?!\S)")
WORD = "unk"


def normal(line: str) -> str:
    """Words in single spaces, rare ones as `WORD`."""
    return " ".join(RARE.sub(WORD, line).split())


def sentences(path: Path, side: str) -> Iterator[str]:
    """The articles or titles of a file: a line each, or JSON lines with `text` and `summaries`."""
    for number, line in enumerate(read_lines_replacing_returns(path), 1):
        yield normal(line if ".jsonl" not in path.name else _field(line, side, path, number))


def _field(line: str, side: str, path: Path, number: int) -> str:
    try:
        example = json.loads(line)
        return example["text"] if side == "article" else example["summaries"][0]
    except (ValueError, KeyError, IndexError, TypeError):
        raise UsageError(
            f"{path}, line {number}: has no text and summaries; give JSON lines with both"
        ) from None


def sample(lines: Iterable[str], size: int, of: int) -> Iterator[str]:
    """So many lines, spread evenly over all, or all if there are not more."""
    if of <= size:
        return iter(lines)
    wanted = {number * of // size for number in range(size)}
    return (line for number, line in enumerate(lines) if number in wanted)


def extract(folder: Path, out: Path, valid: int) -> None:
    """Write out/PART.article and out/PART.title; what is there already is kept.

    Args:
        valid: pairs for validation, at most.

    Raises:
        UsageError: a file is missing or malformed.
    """
    each = {part: find([names[side] for side in SIDES], [folder]) for part, names in FILES.items()}
    found = {
        (part, side): path for part in each for side, path in zip(SIDES, each[part], strict=True)
    }
    size = check_parallel(found["valid", "article"], found["valid", "title"]).lines
    for (part, side), path in found.items():
        if (to := out / f"{part}.{side}").exists():
            continue
        lines = sentences(path, side)
        if part == "valid":
            lines = sample(lines, valid, size)
        write_lines(to, tqdm(lines, to.name, unit=" lines"))
    write_lines(out.with_name(INPUTS), map(str, dict.fromkeys(found.values())))


def truncate(folder: Path, limits: dict[str, int]) -> None:
    """Cut the lines of each side's files to so many tokens, but for the titles of the test part.

    These are references, with which titles of any length are compared.
    """
    for path in list_files(folder):
        if path.name != REFERENCES:
            limit = limits[path.suffix[1:]]
            shown = tqdm(read_lines(path), f"cutting {path.name}", unit=" lines")
            write_lines(path, (" ".join(islice(line.split(), limit)) for line in shown))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m fairseq_ext.prepare.gigaword", description=__doc__
    )
    verbs = parser.add_subparsers(required=True, dest="verb", metavar="VERB")
    verb = verbs.add_parser("extract", help="files of the corpus to OUT/PART.SIDE")
    verb.add_argument("folder", type=Path, metavar="FOLDER")
    verb.add_argument("out", type=Path, metavar="OUT")
    verb.add_argument("--valid", type=int, default=10_000, metavar="N", help="pairs, at most")
    verb = verbs.add_parser("truncate", help="lines of FOLDER/PART.SIDE to so many tokens")
    verb.add_argument("folder", type=Path, metavar="FOLDER")
    verb.add_argument("--positions", type=int, nargs=2, required=True, metavar="N")
    given = parser.parse_args(arguments)
    if given.verb == "extract":
        extract(given.folder, given.out, given.valid)
    else:
        kept = (positions - 1 for positions in given.positions)  # </s> takes one
        truncate(given.folder, dict(zip(SIDES, kept, strict=True)))


if __name__ == "__main__":
    main()
