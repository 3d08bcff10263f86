"""Text in which some tokens were replaced: what an ELECTRA discriminator reads."""

from typing import Any, NamedTuple

import numpy as np
import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_ext.data.sampled import SampledDataset
from fairseq_ext.errors import UsageError


class Replaced(NamedTuple):
    """[S] tokens, and 1 for each that is not the original, else 0."""

    tokens: Tensor
    labels: Tensor


def unigram(dictionary: Dictionary) -> np.ndarray:
    """[V] how often each word is in the training text; special symbols have no share.

    Raises:
        UsageError: the dictionary has no counts.
    """
    counts = np.array(dictionary.count, dtype=float)
    counts[: dictionary.nspecial] = 0
    if not counts.sum():
        raise UsageError(
            "dict.txt has no counts, from which replaced tokens are drawn; give the dictionary "
            "that fairseq-preprocess wrote for the training text"
        )
    return counts / counts.sum()


class ReplacedDataset(SampledDataset):
    """A share of the tokens of each item, replaced by words drawn from the unigram distribution.

    A word that happens to be the original counts as original. <s>, </s> and the other special
    symbols stay.

    Args:
        blocks: items [S] of tokens. share: of the tokens to draw anew, rounded at random.
    """

    def __init__(self, blocks: Any, dictionary: Dictionary, *, share: float, seed: int) -> None:
        super().__init__(seed)
        self.blocks, self.share, self.nspecial = blocks, share, dictionary.nspecial
        self.cumulative = np.cumsum(unigram(dictionary))
        self.sizes = blocks.sizes

    def draw(self, random: np.random.Generator, index: int) -> Replaced:
        original = self.blocks[index]
        words = np.flatnonzero(original.numpy() >= self.nspecial)
        chosen = random.choice(words, int(self.share * len(words) + random.random()), replace=False)
        drawn = np.searchsorted(self.cumulative, random.random(len(chosen)), side="right")
        tokens = original.clone()
        tokens[chosen] = torch.from_numpy(drawn.clip(max=len(self.cumulative) - 1))
        return Replaced(tokens, tokens.ne(original).long())
