"""The base of data sets that make new batches of items of similar size in every epoch."""

from typing import Any

import numpy as np
from fairseq.data import FairseqDataset

BUCKET = 8  # items in a batch differ in size by less, mostly


class ReorderedDataset(FairseqDataset):
    """A data set with a new order in every epoch, in which neighbours have similar sizes.

    Args:
        sizes: [N], of the items.
        seed: on which the order depends.
    """

    def __init__(self, sizes: Any, seed: int) -> None:
        super().__init__()
        self.sizes, self.seed, self.epoch = np.array(sizes), seed, 1

    def __len__(self) -> int:
        return len(self.sizes)

    def size(self, index: int) -> int:
        """Return the size of an item."""
        return int(self.sizes[index])

    def num_tokens(self, index: int) -> int:
        """Return what --max-tokens counts of an item: its size."""
        return self.size(index)

    def ordered_indices(self) -> np.ndarray:
        """Return the order of this epoch."""
        order = np.random.default_rng((self.seed, self.epoch)).permutation(len(self))
        return order[np.argsort(self.sizes[order] // BUCKET, kind="stable")]

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, on which the order depends."""
        self.epoch = epoch

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        """Return that batches do not stay as they are."""
        return False
