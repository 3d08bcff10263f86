"""Masks: which keys a query may not attend to. Boolean, True = may not be attended."""

from collections.abc import Callable
from functools import reduce
from math import ceil
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_ext.attention.context import AttentionContext
from fairseq_ext.attention.parts import Parts

MaskFunction = Callable[[AttentionContext], Tensor | None]
"""AttentionContext -> bool, broadcastable to [B, h, T, S], True = may not be attended; or None."""

Masks = tuple[MaskFunction, ...]

ALIGNED = 8  # elements of a row of a bias; torch's kernels copy others at each call


class Mask(NamedTuple):
    """A combined mask: `masked` or, not materialised, all keys after the query.

    Attributes:
        masked: bool, broadcastable to [B, h, T, S], or None.
        causal: keys after the query are masked, and nothing else is.
        bias: what is added to the scores, with all masks in it; then there is no other one.
    """

    masked: Tensor | None = None
    causal: bool = False
    bias: Tensor | None = None


def padding_mask(context: AttentionContext) -> Tensor | None:
    """Return [B, 1, 1, S], True at padded keys."""
    return None if context.key_padding is None else context.key_padding[:, None, None]


def causal_mask(context: AttentionContext) -> Tensor | None:
    """Return [T, S], True at keys after the query."""
    first, device = context.first_query, context.device
    if not context.inputs.causal or first + 1 >= context.keys:
        return None
    queries = torch.arange(first, first + context.queries, device=device)
    return torch.arange(context.keys, device=device) > queries[:, None]


def caller_mask(context: AttentionContext) -> Tensor | None:
    """Return the mask that the caller passed in."""
    return context.inputs.masked


BASIC_MASKS: Masks = (padding_mask, causal_mask)
DEFAULT_MASKS: Masks = (*BASIC_MASKS, caller_mask)

MASKS: Parts[MaskFunction] = Parts("mask", None)
"""Masks beside the default ones, by name; see `fairseq_ext.registry.register_mask`."""


def combined_mask(masks: Masks, context: AttentionContext, heads: slice) -> Mask:
    """Return the union of all masks, for some heads; computed once for each forward pass.

    A query left without a key gets the keys that padding and causality leave it. If these leave
    none either (a sentence of padding, or padding on the left under a causal mask), it attends to
    every key: the output has no NaN, and nothing reads it.
    """
    key = (masks, context.queries, context.keys)
    mask = context.inputs.cached(key, lambda: _union(masks, context))
    return mask._replace(masked=_select_heads(mask.masked, heads))


def combined_bias(
    masks: Masks, context: AttentionContext, heads: slice, dtype: torch.dtype
) -> Tensor | None:
    """Return the combined mask as a term of the scores, broadcastable to [B, h, T, S], or None."""

    def compute() -> Tensor | None:
        mask = combined_mask(masks, context, slice(None))
        masked = causal_mask(context) if mask.causal else mask.masked
        return None if masked is None else mask_to_bias(masked, dtype)

    key = (masks, context.queries, context.keys, dtype)
    return _select_heads(context.inputs.cached(key, compute), heads)


def mask_to_bias(masked: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 0, or where masked a number so low that exp gives 0.

    The number is finite, so that gradients are. Rows are in memory as torch's kernels want them.
    """
    low = torch.finfo(dtype).min / 8
    if torch.compiler.is_compiling():  # rows are aligned by it, in one graph for all sizes
        return torch.zeros_like(masked, dtype=dtype).masked_fill(masked, low)
    *rows, keys = masked.shape
    zeros = torch.zeros(*rows, ceil(keys / ALIGNED) * ALIGNED, dtype=dtype, device=masked.device)
    return zeros[..., :keys].masked_fill_(masked, low)


def as_bias(mask: Mask, dtype: torch.dtype) -> Tensor | None:
    """Return a mask, unless it is `causal`, as a term of the scores, or None."""
    return mask.bias if mask.masked is None else mask_to_bias(mask.masked, dtype)


def mask_future(queries: Tensor, keys: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the causal mask of q [B, h, T, D] and k [B, h, S, D] as a term of the scores."""
    size = queries.size(2), keys.size(2)
    return mask_to_bias(torch.ones(size, dtype=torch.bool, device=keys.device).triu(1), dtype)


def add_bias(scores: Tensor, bias: Tensor | None) -> Tensor:
    """Return `scores + bias`, or `scores` if there is no bias."""
    return scores if bias is None else scores + bias


def _select_heads(x: Tensor | None, heads: slice) -> Tensor | None:
    """Return the part [B, heads, T, S] of a mask or bias, which may lack the axis of heads."""
    if x is None or x.dim() < 4 or x.size(1) == 1:
        return x
    return x[:, heads]


def _union(masks: Masks, context: AttentionContext) -> Mask:
    computed = {mask: masked for mask in masks if (masked := mask(context)) is not None}
    computed = {mask: x[None] if x.dim() == 3 else x for mask, x in computed.items()}
    if set(computed) == {causal_mask} and context.queries == context.keys:
        return Mask(causal=True)
    basic = _join([computed[mask] for mask in BASIC_MASKS if mask in computed], None)
    return Mask(_join(list(computed.values()), basic))


def _join(masked: list[Tensor], fallback: Tensor | None) -> Tensor | None:
    """Return the union of masks, or the fallback (no mask) in rows that it would mask wholly."""
    if not masked:
        return fallback
    union = reduce(torch.logical_or, masked)
    some_left = ~union.all(-1, keepdim=True)
    return union & (some_left if fallback is None else some_left | fallback)
