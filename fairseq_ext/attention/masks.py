"""Masks: which keys a query may not attend to. Boolean, True = may not be attended."""

from collections.abc import Callable
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_ext.attention.context import AttentionContext

MaskFunction = Callable[[AttentionContext], Tensor | None]
"""AttentionContext -> bool, broadcastable to [B, h, T, S], True = may not be attended; or None."""


class Mask(NamedTuple):
    """A combined mask: `masked` or, not materialised, all keys after the query."""

    masked: Tensor | None = None
    causal: bool = False


def padding_mask(context: AttentionContext) -> Tensor | None:
    """Return [B, 1, 1, S], True at padded keys."""
    return None if context.key_padding is None else context.key_padding[:, None, None]


def causal_mask(context: AttentionContext) -> Tensor | None:
    """Return [T, S], True at keys after the query."""
    if not context.inputs.causal or context.first_query + 1 >= context.keys:
        return None
    queries = torch.arange(
        context.first_query, context.first_query + context.queries, device=context.device
    )
    return torch.arange(context.keys, device=context.device) > queries[:, None]


def caller_mask(context: AttentionContext) -> Tensor | None:
    """Return the mask that the caller passed in."""
    return context.inputs.masked


BASIC_MASKS: tuple[MaskFunction, ...] = (padding_mask, causal_mask)
DEFAULT_MASKS: tuple[MaskFunction, ...] = (*BASIC_MASKS, caller_mask)


def combined_mask(masks: tuple[MaskFunction, ...], context: AttentionContext) -> Mask:
    """Return the union of all masks, computed once for each forward pass.

    A query left without a key gets the keys that padding and causality leave it. If these leave
    none either (a sentence of padding, or padding on the left under a causal mask), it attends to
    every key: the output has no NaN, and nothing reads it.
    """
    key = (masks, context.queries, context.keys)
    return context.inputs.cached(key, lambda: _union(masks, context))


def combined_bias(
    masks: tuple[MaskFunction, ...], context: AttentionContext, dtype: torch.dtype
) -> Tensor | None:
    """Return the combined mask as a term of the scores, broadcastable to [B, h, T, S]."""

    def make() -> Tensor | None:
        mask = combined_mask(masks, context)
        masked = causal_mask(context) if mask.causal else mask.masked
        return None if masked is None else mask_to_bias(masked, dtype)

    return context.inputs.cached((masks, context.queries, context.keys, dtype), make)


def mask_to_bias(masked: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 0, or where masked a number so low that exp gives 0.

    The number is finite, so that gradients are.
    """
    zeros = torch.zeros(masked.shape, dtype=dtype, device=masked.device)
    return zeros.masked_fill_(masked, torch.finfo(dtype).min / 8)


def _union(masks: tuple[MaskFunction, ...], context: AttentionContext) -> Mask:
    made = {mask: tensor for mask in masks if (tensor := mask(context)) is not None}
    if set(made) == {causal_mask} and context.queries == context.keys:
        return Mask(causal=True)
    masked: Tensor | None = None
    for some in (BASIC_MASKS, tuple(made)):  # the second time, all of them
        chosen = [made[mask] for mask in some if mask in made]
        if chosen:
            union = reduce(torch.logical_or, chosen)
            instead = torch.zeros_like(union) if masked is None else masked
            masked = torch.where(union.all(-1, keepdim=True), instead, union)
    return Mask(masked)
