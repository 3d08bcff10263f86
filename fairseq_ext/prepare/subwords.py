"""Joint byte-pair encoding of a folder of tokenised text: codes in subword-nmt's format, and text.

Codes are learned from the files train.* and applied to all files. Files that exist are kept.

The merges are those of subword-nmt (Sennrich et al. 2016), sooner: it searches all its pairs for
each merge. Here pairs wait in lists by their counts, which are worked off from the highest count
down: a merge never makes a pair that is more frequent than the merged one. Learning and applying
10,000 merges for 470,000 words takes 0.13 times as long as with subword-nmt (docs/results/,
benchmarks/recipes.py).
"""

import contextlib
import os
import tempfile
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from subword_nmt.apply_bpe import BPE
from tqdm import tqdm

from fairseq_ext.errors import UsageError
from fairseq_ext.files import read_lines, write_lines
from fairseq_ext.prepare.step import logger, map_files, number_from, read_with_progress, step_parser

Pair = tuple[str, str]  # symbols

VERSION = "#version: 0.2"  # of the format of codes
END = "</w>"  # of a word, in the symbol of its last character
FEWEST = 2  # occurrences of a pair that is merged


class _Words:
    """Words as lists of symbols, with the count of each pair and the words that it is in."""

    def __init__(self, vocabulary: Mapping[str, int]) -> None:
        self.words = [[*word[:-1], word[-1] + END] for word in vocabulary]
        self.counts = list(vocabulary.values())
        self.pairs: dict[Pair, int] = defaultdict(int)
        self.words_with: dict[Pair, set[int]] = defaultdict(set)
        for number, word in enumerate(self.words):
            for pair in zip(word, word[1:], strict=False):
                self.pairs[pair] += self.counts[number]
                self.words_with[pair].add(number)

    def merge(self, pair: Pair) -> list[Pair]:
        """Join a pair wherever it stands, and return the pairs whose counts change."""
        changes: dict[Pair, int] = defaultdict(int)
        for number in self.words_with.pop(pair):
            self._merge_in(number, pair, changes)
        self.pairs[pair] = changes[pair] = 0
        for other, change in changes.items():
            self.pairs[other] += change
        return [other for other, change in changes.items() if change]

    def _merge_in(self, number: int, pair: Pair, changes: dict[Pair, int]) -> None:
        """Join a pair in one word, and add the changes of its neighbours' counts."""
        word, count, (first, second) = self.words[number], self.counts[number], pair
        joined, place = first + second, 0
        while place < len(word) - 1:
            if word[place] == first and word[place + 1] == second:
                if place:
                    changes[word[place - 1], first] -= count
                    changes[word[place - 1], joined] += count
                    self.words_with[word[place - 1], joined].add(number)
                if place < len(word) - 2:
                    changes[second, word[place + 2]] -= count
                    changes[joined, word[place + 2]] += count
                    self.words_with[joined, word[place + 2]].add(number)
                word[place : place + 2] = [joined]
            place += 1


def learn_merges(vocabulary: Mapping[str, int]) -> Iterator[Pair]:
    """Yield merges, the most frequent pair first; of equal counts, the last in the alphabet.

    Args:
        vocabulary: the count of each word.
    """
    words = _Words(vocabulary)
    waiting: dict[int, list[Pair]] = defaultdict(list)
    for pair, count in words.pairs.items():
        waiting[count].append(pair)
    for count in range(max(waiting, default=0), FEWEST - 1, -1):
        ready = sorted({pair for pair in waiting.pop(count, ()) if words.pairs[pair] == count})
        while ready:
            pair = ready.pop()
            if words.pairs[pair] != count:  # a merge changed it
                continue
            yield pair
            for changed in words.merge(pair):
                if words.pairs[changed] == count:
                    insort(ready, changed)
                else:
                    waiting[words.pairs[changed]].append(changed)


def learn(paths: Iterable[Path], merges: int) -> Iterator[str]:
    """Yield the lines of a file of codes.

    There are fewer merges, with a warning, if no other pair occurs twice. Words are separated by
    spaces alone, as in subword-nmt and fastBPE.
    """
    lines = read_with_progress("reading", *paths)
    words = Counter(word for line in lines for word in line.split(" ") if word)
    pairs = tqdm(islice(learn_merges(words), merges), "learning", merges, unit=" merges")
    codes = [" ".join(pair) for pair in pairs]
    yield from (VERSION, *codes)
    if len(codes) < merges:
        logger.warning("of %d merges, the training text gives %d", merges, len(codes))


def best_tool() -> str:
    """Return "fastbpe" if fastBPE is installed; subword-nmt splits words into the same pieces."""
    return "fastbpe" if find_spec("fastBPE") else "subword-nmt"


def splitter(codes: Path, tool: str) -> partial[list[str]]:
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
    parser.add_argument("--merges", type=number_from(1), required=True)
    parser.add_argument("--bpe", choices=TOOLS, default=best_tool(), help="default: %(default)s")
    args = parser.parse_args(arguments)
    split = splitter(args.codes, args.bpe)
    if not args.codes.exists():
        if not (texts := sorted(args.text.glob("train.*"))):
            raise UsageError(
                f"{args.text} has no train.LANGUAGE to learn codes from; give a folder"
            )
        write_lines(args.codes, learn(texts, args.merges))
    map_files(args.text, args.out, "splitting", lambda language: split)


if __name__ == "__main__":
    main()
