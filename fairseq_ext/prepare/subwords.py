"""Joint byte-pair encoding of a folder of tokenised text: codes in subword-nmt's format, and text.

Codes are learned from the files train.* and applied to all files. Files that exist are kept.
"""

import contextlib
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from subword_nmt.apply_bpe import BPE
from tqdm import tqdm

from fairseq_ext.errors import UsageError
from fairseq_ext.files import read_lines, write_lines
from fairseq_ext.prepare import learn_bpe
from fairseq_ext.prepare.step import (
    BatchFunction,
    logger,
    map_files,
    read_with_progress,
    step_parser,
)

VERSION = "#version: 0.2"  # of the format of codes


def learn(paths: Iterable[Path], merges: int) -> Iterator[str]:
    """Yield the lines of a file of codes.

    There are fewer merges, with a warning, if no other pair occurs twice. Words are separated by
    spaces alone, as in subword-nmt and fastBPE.
    """
    lines = read_with_progress("reading", *paths)
    words = Counter(word for line in lines for word in line.split(" ") if word)
    yield VERSION
    learned = 0
    for pair in tqdm(islice(learn_bpe.learn(words), merges), "learning", merges, unit=" merges"):
        learned += 1
        yield " ".join(pair)
    if learned < merges:
        logger.warning("of %d merges, the training text gives %d", merges, learned)


def best_tool() -> str:
    """Return "fastbpe" if fastBPE is installed; subword-nmt splits words into the same pieces."""
    return "fastbpe" if find_spec("fastBPE") else "subword-nmt"


def splitter(codes: Path, tool: str) -> BatchFunction:
    """Return a function that splits words into pieces; all but the last of a word end with @@.

    Raises:
        UsageError: the tool is fastBPE, which is not installed.
    """
    if tool == "fastbpe" and not find_spec("fastBPE"):
        raise UsageError(
            "--bpe is fastbpe, which is not installed; install it with pip install fastBPE (it "
            "needs a C++ compiler), or give subword-nmt, which splits words alike"
        )
    return partial(TOOLS[tool], codes)


def _split_by_fastbpe(codes: Path, lines: list[str]) -> list[str]:
    return _load_fastbpe(codes).apply(lines)


def _split_by_subword_nmt(codes: Path, lines: list[str]) -> list[str]:
    bpe = _load_subword_nmt(codes)
    return [bpe.process_line(" ".join(filter(None, line.split(" ")))) for line in lines]


TOOLS = {"fastbpe": _split_by_fastbpe, "subword-nmt": _split_by_subword_nmt}


@cache  # each process loads codes once
def _load_subword_nmt(codes: Path) -> BPE:
    with codes.open(encoding="utf-8", newline="\n") as file:
        return BPE(file)


@cache
def _load_fastbpe(codes: Path) -> Any:
    """Load codes as fastBPE wants them: with a count behind each merge, and without the version."""
    from fastBPE import fastBPE

    with tempfile.NamedTemporaryFile("w", encoding="utf-8", newline="\n") as file, _silence():
        file.writelines(f"{merge} 1\n" for merge in islice(read_lines(codes), 1, None))
        file.flush()
        return fastBPE(file.name)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Silence standard error, to which fastBPE's C++ code writes."""
    copy = os.dup(2)
    with Path(os.devnull).open("wb") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(copy, 2)
        os.close(copy)


def main(arguments: Sequence[str] | None = None) -> None:
    """Learn codes unless they exist, and split a folder of text."""
    parser = step_parser("subwords", __doc__)
    parser.add_argument("text", type=Path, metavar="TEXT", help="folder of tokenised files")
    parser.add_argument("codes", type=Path, metavar="CODES", help="file of codes to learn")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder for split text")
    parser.add_argument("--merges", type=int, required=True)
    parser.add_argument("--bpe", choices=TOOLS, default=best_tool(), help="default: %(default)s")
    args = parser.parse_args(arguments)
    split = splitter(args.codes, args.bpe)
    if not args.codes.exists():
        write_lines(args.codes, learn(sorted(args.text.glob("train.*")), args.merges))
    map_files(args.text, args.out, "splitting", lambda language: split)


if __name__ == "__main__":
    main()
