"""Rows of tokens that fit into an encoder: `<s> a </s>` or `<s> a </s> b </s>`, and windows."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from fairseq.data import Dictionary

from fairseq_ext.errors import UsageError


class Row(NamedTuple):
    """Tokens [n] and segments [n]; index of the first token of each part, and its length."""

    tokens: np.ndarray
    segments: np.ndarray
    first: list[int]
    kept: list[int]


class Rows:
    """Builder of rows that counts the examples it has to shorten.

    Args:
        room: largest number of tokens of a row.
        separators: number of </s> between two texts: 2 in RoBERTa, 1 in BERT.
        strict: refuse an example that would have to be shortened.

    Attributes:
        lost: positions of the shortened examples.
    """

    def __init__(self, dictionary: Dictionary, room: int, separators: int, strict: bool) -> None:
        self.bos, self.eos = dictionary.bos(), dictionary.eos()
        self.room, self.separators, self.strict = room, separators, strict
        self.lost: dict[str, None] = {}

    def space(self, parts: int) -> int:
        """Return how many tokens of so many parts, together, fit into a row."""
        return self.room - 2 - (parts - 1) * self.separators

    def make(self, parts: Sequence[np.ndarray], where: str, cut: int | None = None) -> Row:
        """Return a row of one or two parts, shortened at their ends, the longer part first.

        Args:
            where: position of the example, for errors.
            cut: index of the part that loses its end first instead.

        Raises:
            UsageError: the row is too long and the builder is strict.
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
        """Return a sentence that says how many of so many examples were shortened."""
        return (
            f"{len(self.lost)} of {examples} examples do not fit into {self.room} tokens and were "
            f"shortened (first {next(iter(self.lost))})"
        )

    def lose(self, where: str, why: str) -> None:
        """Count an example that is shortened, or raise UsageError if the builder is strict."""
        if self.strict:
            raise UsageError(f"{where} {why}; shorten it, give more room, or leave --strict out")
        self.lost[where] = None


def fit(lengths: Sequence[int], room: int, cut: int | None = None) -> list[int]:
    """Return how many tokens of each of one or two parts fit into `room` together."""
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


class Window(NamedTuple):
    """Pieces `first` up to `last` of a passage."""

    first: int
    last: int


def windows(length: int, room: int, stride: int) -> Iterator[Window]:
    """Yield overlapping windows of at most `room` of `length` pieces.

    Each begins `stride` pieces after the one before, or half of the room if that is less.
    """
    first, stride = 0, max(1, min(stride, room // 2))
    while True:
        last = min(first + room, length)
        yield Window(first, last)
        if last >= length:
            return
        first += stride


def span(offsets: np.ndarray, start: int, end: int) -> tuple[int, int] | None:
    """Return the first and last piece of characters `start` up to `end`, or None.

    Args:
        offsets: [n, 2] first character of each piece, and the one after its last.
    """
    touching = np.flatnonzero((offsets[:, 1] > start) & (offsets[:, 0] < end))
    return (int(touching[0]), int(touching[-1])) if len(touching) else None


def best_span(starts: np.ndarray, ends: np.ndarray, longest: int) -> tuple[float, int, int]:
    """Return the best score of a span of at most `longest` places, its first and its last place.

    Args:
        starts, ends: [n] scores of a span that starts, or ends, at each place.
    """
    sums = starts[:, None] + ends[None, :]
    allowed = np.triu(np.ones_like(sums, bool)) & ~np.triu(np.ones_like(sums, bool), longest)
    sums = np.where(allowed, sums, -np.inf)
    first, last = np.unravel_index(int(sums.argmax()), sums.shape)
    return float(sums[first, last]), int(first), int(last)
