"""Long passages as windows that overlap, and answers as spans of their pieces."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np


class Window(NamedTuple):
    """Some pieces of a passage: those from `first` up to `last`."""

    first: int
    last: int


def windows(length: int, room: int, stride: int) -> Iterator[Window]:
    """Windows of at most `room` of `length` pieces, each `stride` after the one before, or half of
    the room if that is less: they overlap."""
    first, stride = 0, max(1, min(stride, room // 2))
    while True:
        last = min(first + room, length)
        yield Window(first, last)
        if last >= length:
            return
        first += stride


def span(offsets: np.ndarray, start: int, end: int) -> tuple[int, int] | None:
    """First and last piece of the characters from `start` up to `end`; None if no piece has any."""
    touching = np.flatnonzero((offsets[:, 1] > start) & (offsets[:, 0] < end))
    return (int(touching[0]), int(touching[-1])) if len(touching) else None


def best_span(starts: np.ndarray, ends: np.ndarray, longest: int) -> tuple[float, int, int]:
    """The highest sum of scores of the first and the last of at most `longest` places."""
    sums = starts[:, None] + ends[None, :]
    allowed = np.triu(np.ones_like(sums, bool)) & ~np.triu(np.ones_like(sums, bool), longest)
    sums = np.where(allowed, sums, -np.inf)
    first, last = np.unravel_index(int(sums.argmax()), sums.shape)
    return float(sums[first, last]), int(first), int(last)
