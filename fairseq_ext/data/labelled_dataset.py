"""Data set of labelled examples: batches of token rows, one or several for each example."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from fairseq.data import FairseqDataset, data_utils
from torch import Tensor

from fairseq_ext.data.examples import Example
from fairseq_ext.data.rows import Row

IGNORED = -100  # a target that counts for nothing, as in torch's cross-entropy
BUCKET = 8  # tokens: rows in a batch differ in length by fewer, mostly


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


class LabelledDataset(FairseqDataset):
    """Data set that makes new batches of items of similar length in every epoch.

    Args:
        segments: the model has embeddings of segments.
    """

    def __init__(self, items: Sequence[Item], *, pad: int, segments: bool, seed: int) -> None:
        super().__init__()
        self.items, self.pad, self.segments, self.seed = items, pad, segments, seed
        self.epoch = 1
        self.sizes = np.array([max(len(row.tokens) for row in item.rows) for item in items])
        self.counts = np.array([len(item.rows) for item in items])

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[int, Item]:
        return int(index), self.items[index]

    def num_tokens(self, index: int) -> int:
        """Return the tokens of all rows of an item."""
        return int(self.sizes[index] * self.counts[index])

    def size(self, index: int) -> int:
        """Return the tokens of the longest row of an item."""
        return int(self.sizes[index])

    def ordered_indices(self) -> np.ndarray:
        """Return a new order in every epoch, in which neighbours have similar lengths."""
        order = np.random.default_rng((self.seed, self.epoch)).permutation(len(self))
        return order[np.argsort(self.sizes[order] // BUCKET, kind="stable")]

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, on which the order depends."""
        self.epoch = epoch

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        """Whether batches stay as they are: they do not."""
        return False

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


def _padded(rows: Sequence[np.ndarray], value: int) -> Tensor:
    return data_utils.collate_tokens([torch.from_numpy(row) for row in rows], value)


def _targets(targets: Sequence[Any]) -> Tensor:
    if isinstance(targets[0], float):  # float32 would be rounded to the 16 bits of a model
        return torch.tensor(targets, dtype=torch.float64)
    if isinstance(targets[0], int):
        return torch.tensor(targets)
    return _padded([row for target in targets for row in target], IGNORED)
