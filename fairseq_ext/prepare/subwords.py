"""Joint byte-pair encoding of a folder of tokenised text: codes of subword-nmt's format, and text.

Learned from the files train.*, applied to all. What is there already is kept.
"""

import argparse
import contextlib
import logging
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from subword_nmt.apply_bpe import BPE
from tqdm import tqdm

from fairseq_ext.errors import UsageError
from fairseq_ext.files import Lines, list_files, read_lines, write_lines
from fairseq_ext.prepare import learn_bpe
from fairseq_ext.prepare.process_pool import map_lines

logger = logging.getLogger(__name__)

VERSION = "#version: 0.2"  # of the format of codes
TOOLS = ("fastbpe", "subword-nmt")


def count_words(lines: Iterable[str]) -> Counter[str]:
    """Words are parted by spaces alone, as in subword-nmt and fastBPE."""
    return Counter(word for line in lines for word in line.split(" ") if word)


def learn(paths: Iterable[Path], merges: int) -> Iterator[str]:
    """The lines of a file of codes; fewer merges, with a warning, if no other pair occurs twice."""
    words: Counter[str] = Counter()
    for path in paths:
        words.update(count_words(tqdm(read_lines(path), f"reading {path.name}", unit=" lines")))
    yield VERSION
    learned = 0
    for pair in tqdm(islice(learn_bpe.learn(words), merges), "learning", merges, unit=" merges"):
        learned += 1
        yield " ".join(pair)
    if learned < merges:
        logger.warning("of %d merges, the training text gives %d", merges, learned)


def best_tool() -> str:
    """fastBPE if it is installed: both split words into the same pieces."""
    return "fastbpe" if find_spec("fastBPE") else "subword-nmt"


def splitter(codes: Path, tool: str) -> Callable[[Lines], Lines]:
    """Splits words of lines into pieces, of which all but the last of a word end with @@.

    Raises:
        UsageError: fastBPE is asked for and not installed.
    """
    if tool == "fastbpe" and not find_spec("fastBPE"):
        raise UsageError(
            "--bpe is fastbpe, which is not installed; install it with pip install fastBPE (it "
            "needs a C++ compiler), or give subword-nmt, which splits words alike"
        )
    return partial(_TOOLS[tool], str(codes))


def _fastbpe(codes: str, lines: Lines) -> Lines:
    return _loaded(codes, _load_fastbpe).apply(lines)


def _subword_nmt(codes: str, lines: Lines) -> Lines:
    bpe = _loaded(codes, _load_subword_nmt)
    return [bpe.process_line(" ".join(filter(None, line.split(" ")))) for line in lines]


_TOOLS = {"fastbpe": _fastbpe, "subword-nmt": _subword_nmt}
_LOADED: dict[tuple, Any] = {}


def _loaded(codes: str, load: Callable) -> Any:
    """Each process loads codes once."""
    if (codes, load) not in _LOADED:
        _LOADED[codes, load] = load(codes)
    return _LOADED[codes, load]


def _load_subword_nmt(codes: str) -> BPE:
    with Path(codes).open(encoding="utf-8", newline="\n") as file:
        return BPE(file)


def _load_fastbpe(codes: str):
    """It wants a count behind each merge, no version, and speaks to standard error."""
    from fastBPE import fastBPE

    with tempfile.NamedTemporaryFile("w", encoding="utf-8", newline="\n") as file, _silence():
        file.writelines(f"{merge} 1\n" for merge in islice(read_lines(Path(codes)), 1, None))
        file.flush()
        return fastBPE(file.name)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    kept = os.dup(2)
    with Path(os.devnull).open("wb") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m fairseq_ext.prepare.subwords", description=__doc__
    )
    parser.add_argument("text", type=Path, metavar="TEXT", help="folder of tokenised files")
    parser.add_argument("codes", type=Path, metavar="CODES", help="file of codes to learn")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder for split text")
    parser.add_argument("--merges", type=int, required=True)
    parser.add_argument("--bpe", choices=TOOLS, default=best_tool(), help="default: %(default)s")
    given = parser.parse_args(arguments)
    split = splitter(given.codes, given.bpe)
    if not given.codes.exists():
        write_lines(given.codes, learn(sorted(given.text.glob("train.*")), given.merges))
    for path in list_files(given.text):
        if not (out := given.out / path.name).exists():
            shown = tqdm(read_lines(path), f"splitting {path.name}", unit=" lines")
            write_lines(out, map_lines(split, shown))


if __name__ == "__main__":
    main()
