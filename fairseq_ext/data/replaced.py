"""Text in which some tokens have been replaced, the input of an ELECTRA discriminator."""

from typing import Any, NamedTuple

import numpy as np
import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_ext.data.sampled import SampledDataset
from fairseq_ext.errors import UsageError


class Replaced(NamedTuple):
    """Tokens [S], and labels [S]: 1 for a token that is not the original, else 0."""

    tokens: Tensor
    labels: Tensor


def unigram(dictionary: Dictionary) -> np.ndarray:
    """Return the share [V] of each word in the training text; special symbols have none.

    Raises:
        UsageError: the dictionary has no counts.
    """
    counts = np.array(dictionary.count, dtype=float)
    counts[: dictionary.nspecial] = 0
    if not counts.sum():
        raise UsageError(
            "dict.txt has no counts, from which replaced tokens are sampled; give the dictionary "
            "that fairseq-preprocess wrote for the training text"
        )
    return counts / counts.sum()


class ReplacedDataset(SampledDataset):
    """Data set that replaces a share of each item's tokens by words of the unigram distribution.

    A sampled word that equals the original counts as original. Special symbols stay.

    Args:
        blocks: data set of items [S] of tokens.
        share: share of the tokens to sample, rounded at random.
    """

    def __init__(self, blocks: Any, dictionary: Dictionary, *, share: float, seed: int) -> None:
        super().__init__(seed)
        self.blocks, self.share, self.nspecial = blocks, share, dictionary.nspecial
        self.cumulative = np.cumsum(unigram(dictionary))
        self.sizes = blocks.sizes

    def sample(self, random: np.random.Generator, index: int) -> Replaced:
        """Return an item with some tokens replaced."""
        original = self.blocks[index]
        words = np.flatnonzero(original.numpy() >= self.nspecial)
        chosen = random.choice(words, int(self.share * len(words) + random.random()), replace=False)
        sampled = np.searchsorted(self.cumulative, random.random(len(chosen)), side="right")
        tokens = original.clone()
        tokens[chosen] = torch.from_numpy(sampled.clip(max=len(self.cumulative) - 1))
        return Replaced(tokens, tokens.ne(original).long())
