"""Doubly-normalised attention on a CPU: forward and backward without the map in memory.

With C the softmax of the scores over the queries, DNAS is W_ij = C_ij / r_i, r_i = sum_j C_ij, so

    [X, r] = C [V, 1],    O = X / r

and a key needs nothing of the other keys: they are taken a few at a time, their columns of C are
made, used and dropped, and made again for the gradient. A padded key is a row of zeros in [V, 1].
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_ext.attention.blockers import Mask

BUDGET = 4 << 20  # bytes of scores at a time: about what a core keeps in its cache
SMALLEST = 96 * 96  # scores a head; below, the plain form is faster
LEAST = 1e-30  # of r: below, 1 / r is not exact in float32

Block = tuple[slice, slice]


class Underflow(ArithmeticError):
    """A query lost every key by so much that its row has to be computed in log space."""


def suits(q: Tensor, k: Tensor, mask: Mask) -> bool:
    """Whether these [B, h, T, D] and [B, h, S, D] on this device are worth the kernel."""
    only_keys = mask.blocked is None or mask.blocked.shape[1:3] == (1, 1)
    large = q.size(2) * k.size(2) > SMALLEST
    exact = q.dtype in (torch.float32, torch.float64)
    return q.device.type == "cpu" and exact and large and only_keys and not mask.causal


def attend(
    q: Tensor, k: Tensor, v: Tensor, blocked: Tensor | None, query_padding: Tensor | None
) -> Tensor:
    """DNAS [B, h, T, D] with scores q k^T / sqrt(D); zero for padded queries.

    Args:
        q: [B, h, T, D]. k, v: [B, h, S, D].
        blocked: [B, 1, 1, S] bool, padded keys. query_padding: [B, T] bool.

    Raises:
        Underflow: in float32 the result would not be exact.
    """
    size, heads = q.shape, q.size(1)
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    absent = None if query_padding is None else query_padding.repeat_interleave(heads, 0)[:, None]
    present = (
        None if blocked is None else (~blocked[:, 0, 0]).repeat_interleave(heads, 0)[..., None]
    )
    return _Doubly.apply(q, k, v, absent, present).view(size)


class _Doubly(torch.autograd.Function):
    """O [G, T, D] of q [G, T, D], k and v [G, S, D], absent [G, 1, T], present [G, S, 1]."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, absent: Tensor | None, present: Tensor | None
    ) -> Tensor:
        values = torch.cat([v, torch.ones_like(v[..., :1])], -1)
        if present is not None:
            values *= present
        x = q.new_zeros(*q.shape[:2], values.size(-1))
        blocks = list(_blocks(q, k))
        for heads, keys in blocks:
            c = _columns(q, k, absent, (heads, keys))
            x[heads].baddbmm_(c.transpose(1, 2), values[heads, keys])
        r = x[..., -1:] if absent is None else x[..., -1:].masked_fill(absent.mT, 1.0)
        if r.min() < LEAST:
            raise Underflow
        out = x[..., :-1] / r
        kept = c if len(blocks) == 1 else None  # small enough to keep
        ctx.save_for_backward(q, k, values, absent, r, out, kept)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, k, values, absent, r, out, kept = ctx.saved_tensors
        scale = q.size(-1) ** -0.5
        dx = dout / r
        dx = torch.cat([dx, -(dx * out).sum(-1, keepdim=True)], -1)  # of [X, r]
        dq, dk, dvalues = torch.zeros_like(q), torch.empty_like(k), torch.empty_like(values)
        for heads, keys in _blocks(q, k):
            c = _columns(q, k, absent, (heads, keys)) if kept is None else kept
            v, dv = values[heads, keys], dvalues[heads, keys]
            torch.bmm(c, dx[heads], out=dv)
            column = (v * dv).sum(-1, keepdim=True)
            ds = torch.baddbmm(column, v, dx[heads].mT, beta=-1).mul_(c)
            torch.baddbmm(column, ds, q[heads], beta=0, alpha=scale, out=dk[heads, keys])
            dq[heads].baddbmm_(ds.mT, k[heads, keys], alpha=scale)
        return dq, dk, dvalues[..., :-1].mul_(values[..., -1:]), None, None  # 0 if padded


def _blocks(q: Tensor, k: Tensor) -> Iterator[Block]:
    """Heads and keys whose scores fit into the budget."""
    groups, keys, row = len(q), k.size(1), q.size(1) * q.element_size()
    heads = max(1, min(groups, BUDGET // (row * keys)))
    width = keys if heads > 1 else max(32, min(keys, BUDGET // row))
    for head in range(0, groups, heads):
        for key in range(0, keys, width):
            yield slice(head, head + heads), slice(key, key + width)


def _columns(q: Tensor, k: Tensor, absent: Tensor | None, block: Block) -> Tensor:
    """C of some heads and keys, transposed: [g, s, T]."""
    heads, keys = block
    zero = q.new_zeros(1, 1, 1)
    scores = torch.baddbmm(zero, k[heads, keys], q[heads].mT, beta=0, alpha=q.size(-1) ** -0.5)
    if absent is not None:
        scores.masked_fill_(absent[heads], -torch.inf)
    return scores.softmax(-1)
