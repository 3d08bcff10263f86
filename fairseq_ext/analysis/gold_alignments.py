"""Gold word alignments: parallel texts with their links, and the alignment error rate."""

import argparse
import re
from collections.abc import Sequence
from typing import NamedTuple

from fairseq_ext.errors import UsageError
from fairseq_ext.files import read_lines

LINK = re.compile(r"(\d+)([-p])(\d+)")

Link = tuple[int, int]
"""The indices of a source word and a target word, from 0."""


class GoldLinks(NamedTuple):
    """The links of a sentence pair; the possible links include the sure ones."""

    sure: set[Link]
    possible: set[Link]


class SentencePair(NamedTuple):
    """The words of a source and a target sentence, and their gold links."""

    source: list[str]
    target: list[str]
    gold: GoldLinks


def score_links(links: int, sure: int, possible: int, all_sure: int) -> dict[str, float]:
    """Return alignment error rate, precision and recall.

    Args:
        links: the number of predicted links.
        sure: how many of them are sure links.
        possible: how many of them are possible links.
        all_sure: the number of sure links.
    """
    return {
        "aer": 1 - (sure + possible) / max(1, links + all_sure),
        "precision": possible / max(1, links),
        "recall": sure / max(1, all_sure),
    }


def read_pairs(args: argparse.Namespace) -> list[SentencePair]:
    """Read the files of texts and links.

    Args:
        args: source, target, gold, lowercase, first_index, reversed; see `fairseq-ext align`.

    Raises:
        UsageError: the three files do not fit each other, or a link cannot be read.
    """
    files = args.source, args.target, args.gold
    texts = [list(read_lines(file)) for file in files]
    if len({*map(len, texts)}) > 1:
        counts = ", ".join(f"{f} has {len(t)}" for f, t in zip(files, texts, strict=True))
        raise UsageError(f"files differ in numbers of lines: {counts}; give parallel ones")
    pairs = []
    for number, (source, target, links) in enumerate(zip(*texts, strict=True), 1):
        if args.lowercase:
            source, target = source.lower(), target.lower()
        words = [word for word in source.split(" ") if word], [w for w in target.split(" ") if w]
        gold = _read_links(links, words, args, f"{args.gold}, line {number}")
        pairs.append(SentencePair(*words, gold))
    if args.first_index == 0 and not any(0 in link for p in pairs for link in p.gold.possible):
        raise UsageError(f"{args.gold} has no link with index 0; give --first-index 1")
    return pairs


def _read_links(
    line: str, words: Sequence[list[str]], args: argparse.Namespace, where: str
) -> GoldLinks:
    gold, first = GoldLinks(set(), set()), args.first_index
    for part in line.split():
        match = LINK.fullmatch(part)
        if not match:
            raise UsageError(f"{where}: '{part}' is no link; expected are such as 3-4 and 3p4")
        link = int(match[1]) - first, int(match[3]) - first
        link = link[::-1] if args.reversed else link
        if not all(0 <= i < len(side) for i, side in zip(link, words, strict=True)):
            source, target = (len(side) - 1 + first for side in words)
            raise UsageError(
                f"{where}: '{part}' is out of range; expected are source words {first} to {source} "
                f"and target words {first} to {target} (see --first-index, --reversed)"
            )
        gold.possible.add(link)
        if match[2] == "-":
            gold.sure.add(link)
    return gold
