"""Attention between words: maps between tokens, merged by the words that tokens belong to.

Attention to a word is the sum over its tokens; attention from a word is the mean over its tokens
(Clark et al. 2019, "What Does BERT Look At?").
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

Spans = Sequence[Sequence[int]]
"""The positions of each word's tokens in a sentence."""

Item = TypeVar("Item")


def build_membership(sentences: Sequence[Spans], tokens: int) -> Tensor:
    """Return [B, W, tokens] float32: 1 where a token belongs to a word, else 0.

    Rows beyond the words of a sentence are 0.
    """
    membership = np.zeros((len(sentences), max(map(len, sentences)), tokens), np.float32)
    for sentence, spans in enumerate(sentences):
        for word, span in enumerate(spans):
            membership[sentence, word, span] = 1
    return torch.from_numpy(membership)


def merge_tokens(maps: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return maps between words [B, H, R, C] from maps between tokens [B, H, T, S].

    Args:
        rows: [B, R, T] from `build_membership`.
        columns: [B, C, S] from `build_membership`. A word without tokens attends to nothing and
            receives nothing.
    """
    mean = rows / rows.sum(-1, keepdim=True).clamp(min=1)
    attending = torch.einsum("brt,bhts->bhrs", mean.to(maps), maps)
    return torch.einsum("bhrs,bcs->bhrc", attending, columns.to(maps))


def group_by_length(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Yield the indices of sentences of similar length, with at most `max_tokens` in a group.

    Padding counts. A sentence with more tokens is a group of its own.
    """
    group: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if group and (len(group) + 1) * lengths[index] > max_tokens:
            yield group
            group = []
        group.append(index)
    if group:
        yield group


def batch_by_length(
    items: Sequence[Item], lengths: Sequence[int], max_tokens: int, **progress: Any
) -> Iterator[list[Item]]:
    """Yield the items in groups of similar length, with a progress bar (options of tqdm)."""
    with tqdm(total=len(items), **progress) as bar:
        for group in group_by_length(lengths, max_tokens):
            yield [items[index] for index in group]
            bar.update(len(group))
