"""Labelled examples as rows of tokens that fit into an encoder, and batches of these rows.

A row is `<s> a </s>` or `<s> a </s> b </s>`. Long passages become several rows, of windows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from fairseq.data import Dictionary, data_utils
from torch import Tensor

from fairseq_ext.data.examples import Example
from fairseq_ext.data.reordered import ReorderedDataset
from fairseq_ext.errors import UsageError

IGNORED = -100  # a target that counts for nothing, as in torch's cross-entropy


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
        tokens, segments, first = [np.array([self.bos])], [0], []
        for number, (part, length, end) in enumerate(zip(parts, kept, ends, strict=True)):
            first.append(len(segments))
            tokens += [part[:length], np.full(end, self.eos)]
            segments += [number] * (length + end)
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
    stride = max(1, min(stride, room // 2))
    for first in range(0, max(0, length - room) + stride, stride):
        yield Window(first, min(first + room, length))


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


@dataclass(frozen=True)
class Item:
    """An example as the model reads it.

    Attributes:
        target: a number, or an array for each row; None if the example has no label.
        extra: whatever the task needs to turn scores into an answer.
    """

    example: Example
    rows: Sequence[Row]
    target: Any = None
    extra: Any = None


class LabelledDataset(ReorderedDataset):
    """Data set of items, whose size is the number of tokens of their longest row.

    Args:
        segments: the model has embeddings of segments.
    """

    def __init__(self, items: Sequence[Item], *, pad: int, segments: bool, seed: int) -> None:
        super().__init__([max(len(row.tokens) for row in item.rows) for item in items], seed)
        self.items, self.pad, self.segments = items, pad, segments
        self.counts = np.array([len(item.rows) for item in items])

    def __getitem__(self, index: int) -> tuple[int, Item]:
        return int(index), self.items[index]

    def num_tokens(self, index: int) -> int:
        """Return the tokens of all rows of an item."""
        return int(self.sizes[index] * self.counts[index])

    def collater(self, samples: Sequence[tuple[int, Item]]) -> dict[str, Any]:
        """Return a batch of B items with R rows.

        It has "net_input" of [R, S], "counts" [B] (rows of each item), "target" [B], or [R, …]
        padded with IGNORED, and the items themselves.
        """
        if not samples:
            return {}
        items = [item for _, item in samples]
        rows = [row for item in items for row in item.rows]
        tokens = _padded([row.tokens for row in rows], self.pad)
        inputs = {"src_tokens": tokens}
        if self.segments:
            inputs["segments"] = _padded([row.segments for row in rows], 0)
        batch = {
            "id": torch.tensor([index for index, _ in samples]),
            "net_input": inputs,
            "counts": torch.tensor([len(item.rows) for item in items]),
            "items": items,
            "nsentences": len(items),
            "ntokens": int(tokens.ne(self.pad).sum()),
        }
        if all(item.target is not None for item in items):
            batch["target"] = _targets([item.target for item in items])
        return batch


def pad_batch(batch: dict[str, Any], length: int, pad: int) -> dict[str, Any]:
    """Return a batch whose rows, and targets of tokens, are padded on the right to a length.

    Args:
        batch: of a `LabelledDataset`.
        pad: the number of the padding symbol.
    """
    inputs = dict(batch["net_input"])
    missing = length - inputs["src_tokens"].size(1)
    for name, value in {"src_tokens": pad, "segments": 0}.items():
        if name in inputs:
            inputs[name] = F.pad(inputs[name], (0, missing), value=value)
    if "annotations" in inputs:  # [R, S, 3], of which padding has none
        inputs["annotations"] = F.pad(inputs["annotations"], (0, 0, 0, missing), value=-1)
    batch = {**batch, "net_input": inputs}
    if "target" in batch and batch["target"].dim() > 1:
        batch["target"] = F.pad(batch["target"], (0, missing), value=IGNORED)
    return batch


def _padded(rows: Sequence[np.ndarray], value: int) -> Tensor:
    return data_utils.collate_tokens([torch.from_numpy(row) for row in rows], value)


def _targets(targets: Sequence[Any]) -> Tensor:
    if isinstance(targets[0], float):  # float32 would be rounded to the 16 bits of a model
        return torch.tensor(targets, dtype=torch.float64)
    if isinstance(targets[0], int):
        return torch.tensor(targets)
    return _padded([row for target in targets for row in target], IGNORED)
