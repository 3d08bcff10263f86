"""Blockers: which keys a query may not attend to."""

from collections.abc import Callable
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_ext.attention.inputs import Frame

Blocker = Callable[[Frame], Tensor | None]
"""Frame -> bool, broadcastable to [B, h, T, S], True = may not be attended; or None."""


class Mask(NamedTuple):
    """Everything that is blocked: `blocked` or, not materialised, all keys after the query."""

    blocked: Tensor | None = None
    causal: bool = False


def padding(frame: Frame) -> Tensor | None:
    """[B, 1, 1, S]: padded keys."""
    return None if frame.key_padding is None else frame.key_padding[:, None, None]


def causal(frame: Frame) -> Tensor | None:
    """[T, S]: keys after the query."""
    if not frame.inputs.causal or frame.first + 1 >= frame.keys:
        return None
    queries = torch.arange(frame.first, frame.first + frame.queries, device=frame.device)
    return torch.arange(frame.keys, device=frame.device) > queries[:, None]


def given(frame: Frame) -> Tensor | None:
    """The mask that the caller passed in."""
    return frame.inputs.blocked


ALWAYS: tuple[Blocker, ...] = (padding, causal)
USUAL: tuple[Blocker, ...] = (*ALWAYS, given)


def block(blockers: tuple[Blocker, ...], frame: Frame) -> Mask:
    """The union of all blockers, computed once a forward pass.

    A query left without a key falls back to what padding and causality leave it; if that is nothing
    either (a sentence of padding, or padding on the left under a causal mask), it attends to
    everything: no NaN, and nothing reads its output.
    """
    key = (blockers, frame.queries, frame.keys)
    return frame.inputs.once(key, lambda: _union(blockers, frame))


def bias(blockers: tuple[Blocker, ...], frame: Frame, dtype: torch.dtype) -> Tensor | None:
    """`block` as a term of the scores, broadcastable to [B, h, T, S]; computed once as well."""

    def make() -> Tensor | None:
        mask = block(blockers, frame)
        blocked = causal(frame) if mask.causal else mask.blocked
        return None if blocked is None else as_bias(blocked, dtype)

    return frame.inputs.once((blockers, frame.queries, frame.keys, dtype), make)


def as_bias(blocked: Tensor, dtype: torch.dtype) -> Tensor:
    """0, or where blocked so low that exp leaves nothing; finite, for the sake of gradients."""
    zeros = torch.zeros(blocked.shape, dtype=dtype, device=blocked.device)
    return zeros.masked_fill_(blocked, torch.finfo(dtype).min / 8)


def _union(blockers: tuple[Blocker, ...], frame: Frame) -> Mask:
    masks = {blocker: mask for blocker in blockers if (mask := blocker(frame)) is not None}
    if set(masks) == {causal} and frame.queries == frame.keys:
        return Mask(causal=True)
    blocked: Tensor | None = None
    for some in (ALWAYS, tuple(masks)):  # the second time, all of them
        chosen = [masks[blocker] for blocker in some if blocker in masks]
        if chosen:
            union = reduce(torch.logical_or, chosen)
            instead = torch.zeros_like(union) if blocked is None else blocked
            blocked = torch.where(union.all(-1, keepdim=True), instead, union)
    return Mask(blocked)
