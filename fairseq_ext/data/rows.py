"""Rows of tokens that an encoder reads: `<s> a </s>`, `<s> a </s> b </s>`, within its length."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from fairseq.data import Dictionary

from fairseq_ext.errors import UsageError


class Row(NamedTuple):
    """Tokens [n] and their segments [n]; where the tokens of each part begin, and how many."""

    tokens: np.ndarray
    segments: np.ndarray
    first: list[int]
    kept: list[int]


class Rows:
    """Makes rows, and counts the examples of which not all can be read.

    Args:
        room: tokens of a row, at most.
        separators: how many </s> part two texts: 2 in RoBERTa, 1 in BERT.
        strict: refuse what would have to be shortened.

    Attributes:
        lost: where examples stand of which not all is read.
    """

    def __init__(self, dictionary: Dictionary, room: int, separators: int, strict: bool) -> None:
        self.bos, self.eos = dictionary.bos(), dictionary.eos()
        self.room, self.separators, self.strict = room, separators, strict
        self.lost: dict[str, None] = {}

    def space(self, parts: int) -> int:
        """Tokens of so many parts, together, that fit into a row."""
        return self.room - 2 - (parts - 1) * self.separators

    def make(self, parts: Sequence[np.ndarray], where: str, cut: int | None = None) -> Row:
        """One row of one or two parts; what is too long loses its end, the longer part first.

        Args:
            where: the example is, for errors.
            cut: the part that is to lose its end instead, as far as that is enough.

        Raises:
            UsageError: it is too long and that is refused.
        """
        lengths = [len(part) for part in parts]
        kept = fit(lengths, self.space(len(parts)), cut)
        if kept != lengths:
            self.lose(where, f"has {sum(lengths)} tokens, and a row has room for {sum(kept)}")
        ends = [self.separators] * (len(parts) - 1) + [1]
        tokens, segments, first, place = [np.array([self.bos])], [0], [], 1
        for number, (part, length, end) in enumerate(zip(parts, kept, ends, strict=True)):
            first.append(place)
            tokens += [part[:length], np.full(end, self.eos)]
            segments += [number] * (length + end)
            place += length + end
        return Row(np.concatenate(tokens), np.array(segments), first, kept)

    def report(self, examples: int) -> str:
        """How many of so many examples were not read whole, in words."""
        return (
            f"{len(self.lost)} of {examples} examples do not fit into {self.room} tokens and were "
            f"shortened (first {next(iter(self.lost))})"
        )

    def lose(self, where: str, why: str) -> None:
        """Count an example of which not all is read, or refuse it."""
        if self.strict:
            raise UsageError(f"{where} {why}; shorten it, give more room, or leave --strict out")
        self.lost[where] = None


def fit(lengths: Sequence[int], room: int, cut: int | None = None) -> list[int]:
    """How much of each of one or two parts fits into `room` together."""
    over = sum(lengths) - room
    if over <= 0:
        return list(lengths)
    if cut is not None:
        less = [n - min(n, over) if part == cut else n for part, n in enumerate(lengths)]
        return fit(less, room)
    if len(lengths) == 1:
        return [room]
    shorter = min(*lengths, room // 2)
    longer = room - shorter
    return [shorter, longer] if lengths[0] < lengths[1] else [longer, shorter]
