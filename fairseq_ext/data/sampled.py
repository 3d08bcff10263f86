"""Data sets whose items are sampled in every epoch, the same ones when a training resumes."""

from typing import Any, NamedTuple

import numpy as np
from fairseq.data import BaseWrapperDataset, FairseqDataset


class SampledDataset(FairseqDataset):
    """Base of data sets whose items have several parts, sampled from seed, epoch and index alone.

    The data set itself yields the part "tokens"; `part` returns data sets of the others.

    Attributes:
        sizes: [N] upper bound of the tokens of each item.
    """

    sizes: np.ndarray

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed, self.epoch = seed, 1
        self._last: tuple[Any, Any] = (None, None)

    def sample(self, random: np.random.Generator, index: int) -> NamedTuple:
        """Return the parts of an item."""
        raise NotImplementedError

    def item(self, index: int) -> Any:
        """Return the parts of an item in this epoch; the item asked for last is cached."""
        key = self.seed, self.epoch, int(index)
        if self._last[0] != key:  # the parts of an item are asked for one after the other
            self._last = key, self.sample(np.random.default_rng(key), key[2])
        return self._last[1]

    def __getitem__(self, index: int) -> Any:
        return self.item(index).tokens

    def __len__(self) -> int:
        return len(self.sizes)

    def num_tokens(self, index: int) -> int:
        """Return an upper bound of the tokens of an item."""
        return self.sizes[index]

    size = num_tokens

    def part(self, name: str) -> "Part":
        """Return the data set of one part."""
        return Part(self, name)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, on which samples depend."""
        self.epoch = epoch

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        """Whether batches stay as they are: sizes do."""
        return True


class Part(BaseWrapperDataset):
    """Data set of one part of the items of a `SampledDataset`."""

    def __init__(self, dataset: SampledDataset, name: str) -> None:
        super().__init__(dataset)
        self.name = name

    def __getitem__(self, index: int) -> Any:
        return getattr(self.dataset.item(index), self.name)

    def collater(self, samples: list[Any]) -> Any:
        """Leave collating to torch's default, as fairseq does for a data set without one."""
        raise NotImplementedError
