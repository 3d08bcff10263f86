"""Items that are drawn by chance, anew in every epoch, the same after a resume."""

from typing import Any, NamedTuple

import numpy as np
from fairseq.data import BaseWrapperDataset, FairseqDataset


class SampledDataset(FairseqDataset):
    """Items with several parts, drawn from seed, epoch and index alone.

    As a data set it is that of the part "tokens"; `part` gives the others.

    Attributes:
        sizes: [N] tokens of each item, at most.
    """

    sizes: np.ndarray

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed, self.epoch = seed, 1
        self._drawn: tuple[Any, Any] = (None, None)

    def draw(self, random: np.random.Generator, index: int) -> NamedTuple:
        raise NotImplementedError

    def item(self, index: int) -> Any:
        key = self.seed, self.epoch, int(index)
        if self._drawn[0] != key:  # the parts of an item are asked for one after the other
            self._drawn = key, self.draw(np.random.default_rng(key), key[2])
        return self._drawn[1]

    def __getitem__(self, index: int) -> Any:
        return self.item(index).tokens

    def __len__(self) -> int:
        return len(self.sizes)

    def num_tokens(self, index: int) -> int:
        return self.sizes[index]

    size = num_tokens

    def part(self, name: str) -> "Part":
        return Part(self, name)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        return True  # sizes stay as they are


class Part(BaseWrapperDataset):
    """One part of the items of a :class:`SampledDataset`."""

    def __init__(self, dataset: SampledDataset, name: str) -> None:
        super().__init__(dataset)
        self.name = name

    def __getitem__(self, index: int) -> Any:
        return getattr(self.dataset.item(index), self.name)

    def collater(self, samples: list[Any]) -> Any:
        raise NotImplementedError  # torch's default is meant
