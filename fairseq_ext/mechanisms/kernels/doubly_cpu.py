"""Doubly-normalised and hybrid attention on a CPU, without the map in memory.

This kernel is our own because it is measured to be better than the plain form of the paper: at 2048
tokens that takes 3.1 times as long as torch's fused softmax attention and 37 times its memory, this
one 1.1 times as long (HNA 1.4) with 1.04 times its memory (HNA 1.45, for two outputs).

With C the softmax of the scores over the queries, DNAS is D_ij = C_ij / r_i, r_i = sum_j C_ij, so

    X = C V,    r = C 1,    O = X / r

and a key needs nothing of the other keys: keys are taken a few at a time, and their columns of C
are computed, used and dropped, and computed again for the gradient. A padded key is a column of
zeros in C.

Softmax over the keys follows from the same C: with L_j the log-sum-exp of the scores over the
queries and w_j = exp(L_j), U_ij = C_ij w_j / l_i. HNAS needs two products with V:

    Y = C (w V),    l = C w,    O = u X / r + (1 - u) Y / l

For the gradient r and l are known, and one product is enough: with A_i = u / r_i and
B_i = (1 - u) / l_i, O = (C G) V, where C G is the product by elements with G_ij = A_i + B_i w_j.

Blocks are C transposed, [s, T], and sums over keys are kept transposed, too, as [D, T]: products of
matrices are most of the time, and these are the fastest form of them.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fairseq_ext.attention.derivatives import first_derivative_only
from fairseq_ext.attention.masks import Mask

BLOCK_BYTES = 1 << 20  # of scores at a time and thread: about what a core keeps in its cache
MIN_SCORES = 200 * 200  # scores a head; below, the plain form of DNAS is faster
HYBRID_PASSES = 3  # passes of the plain form of HNAS over the map, for one of DNAS
MIN_NORM = 1e-30  # of r and l: below, 1 / r is not exact in float32


class Inexact(ArithmeticError):
    """Error of scores so far apart that the weights have to be computed on logarithms."""


def supports(q: Tensor, k: Tensor, mask: Mask, hybrid: bool = False) -> bool:
    """Return whether the kernel takes these [B, H, T, D] and [B, H, S, D] and is worth its cost.

    It is in no compiled graph, which is the same for all sizes.
    """
    if torch.compiler.is_compiling():
        return False
    only_keys = mask.masked is None or mask.masked.shape[1:3] == (1, 1)
    scores = q.size(2) * k.size(2) if len(q) else 0
    large = scores * (HYBRID_PASSES if hybrid else 1) > MIN_SCORES
    exact = q.dtype in (torch.float32, torch.float64)
    return q.device.type == "cpu" and exact and large and only_keys and not mask.causal


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    masked: Tensor | None,
    query_padding: Tensor | None,
    u: Tensor | None = None,
) -> Tensor:
    """Return DNAS or HNAS, [B, H, T, D], with scores q k^T / sqrt(D); zero for padded queries.

    Args:
        q: [B, H, T, D], float32 or float64.
        k: [B, H, S, D].
        v: [B, H, S, D].
        masked: [B or 1, 1, 1, S] bool, padded keys.
        query_padding: [B, T] bool.
        u: [H], the share of DNAS in HNAS; None for DNAS.

    Raises:
        Inexact: scores lie too far apart.
    """
    size, heads = q.shape, q.size(1)
    if masked is not None:
        masked = masked.expand(size[0], -1, -1, -1)
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    absent = None if query_padding is None else query_padding.repeat_interleave(heads, 0)[:, None]
    present = None if masked is None else (~masked[:, 0, 0]).repeat_interleave(heads, 0)[..., None]
    share = None if u is None else u.to(q.dtype).repeat(size[0])[:, None, None]
    return _Columns.apply(q, k, v, share, absent, present).view(size)


class _Columns(torch.autograd.Function):
    """O [G, T, D] from P parts: X / r (DNAS), with u also Y / l (HNAS).

    Inputs are q [G, T, D], k and v [G, S, D], u [G, 1, 1], absent [G, 1, T], present [G, S, 1], for
    G = B * H heads.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        u: Tensor | None,
        absent: Tensor | None,
        present: Tensor | None,
    ) -> Tensor:
        parts = 1 if u is None else 2
        outs = q.new_empty(*q.shape[:2], parts, v.size(-1))
        norms = q.new_empty(len(q), parts, q.size(1))  # r, l
        w = None if u is None else torch.empty_like(v[..., :1])
        for heads, blocks in _blocks(q, k):
            x = q.new_empty(*norms[heads].shape[:2], v.size(-1), q.size(1)).flatten(1, 2)
            for keys in blocks:
                scores = _scores(q, k, absent, heads, keys)
                if w is not None:
                    highest = scores.amax(-1, keepdim=True)
                c = torch.softmax(scores, -1, out=scores)
                values = v[heads, keys]
                ones = torch.ones_like(values[..., :1])
                if present is not None:
                    ones = present[heads, keys].to(values)
                    values = values * ones
                if w is not None:
                    logs = highest - c.amax(-1, keepdim=True).log()  # L
                    if keys.start == 0:
                        top = logs.amax(1, keepdim=True)
                    w[heads, keys] = (logs - top).exp()
                    weights = w[heads, keys]
                    values = torch.cat([values, values * weights], -1)
                    ones = torch.cat([ones, ones * weights], -1)
                beta = float(keys.start > 0)
                x.baddbmm_(values.mT, c, beta=beta)
                norms[heads].baddbmm_(ones.mT, c, beta=beta)
            if absent is not None:
                norms[heads].masked_fill_(absent[heads], 1)
            x = x.unflatten(1, (parts, -1)).permute(0, 3, 1, 2)
            torch.div(x, norms[heads].mT[..., None], out=outs[heads])
        if not (norms.min() >= MIN_NORM and norms.max() <= 1 / MIN_NORM):
            raise Inexact
        ctx.save_for_backward(q, k, v, u, absent, present, w, norms, outs)
        return outs[:, :, 0] if u is None else torch.lerp(outs[:, :, 1], outs[:, :, 0], u)

    @staticmethod
    @first_derivative_only("doubly-normalised attention on a CPU")
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, u, absent, present, w, norms, outs = ctx.saved_tensors
        scale = q.size(-1) ** -0.5
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        delta = torch.empty_like(norms)
        shares = (1 if u is None else torch.cat([u, 1 - u], 1)) / norms  # A, B
        for heads, blocks in _blocks(q, k):
            delta[heads] = (dout[heads, :, None] * outs[heads]).sum(-1).mT
            a, n = shares[heads], delta[heads] * shares[heads]
            do = dout[heads] * a.mT if w is None else dout[heads]
            dqt = q.new_empty(len(do), q.size(-1), q.size(1))
            for keys in blocks:
                c = _scores(q, k, absent, heads, keys)
                torch.softmax(c, -1, out=c)
                if present is not None:
                    c *= present[heads, keys]
                values, dvalues = v[heads, keys], dv[heads, keys]
                if w is None:
                    torch.bmm(c, do, out=dvalues)
                    column = (values * dvalues).sum(-1, keepdim=True) - c @ n.mT
                    ds = (n + column).baddbmm_(values, do.mT, beta=-1).mul_(c)
                else:
                    weights = w[heads, keys]
                    g = torch.addcmul(a[:, :1], a[:, 1:], weights)
                    ds = c * g
                    torch.bmm(ds, do, out=dvalues)
                    torch.bmm(values, do.mT, out=ds).mul_(c)
                    # the softmax of C subtracts the part of Y, too: the gradient of w adds it again
                    column = ds @ a[:, :1].mT - c @ n[:, :1].mT
                    ds *= g
                    rest = torch.addcmul(column, n[:, 1:], weights, out=g).add_(n[:, :1])
                    ds -= rest.mul_(c)
                torch.baddbmm(column, ds, q[heads], beta=0, alpha=scale, out=dk[heads, keys])
                dqt.baddbmm_(k[heads, keys].mT, ds, beta=float(keys.start > 0), alpha=scale)
            dq[heads] = dqt.mT
        du = None if u is None else (delta[:, 0] - delta[:, 1]).sum(1)[:, None, None]
        return dq, dk, dv, du, None, None


def _blocks(q: Tensor, k: Tensor) -> Iterator[tuple[slice, list[slice]]]:
    """Yield heads, and blocks of their keys, whose scores fit into the budget."""
    groups, keys, row = len(q), k.size(1), q.size(1) * q.element_size()
    budget = BLOCK_BYTES * torch.get_num_threads()
    heads = max(1, min(groups, budget // (row * keys)))
    width = keys if heads > 1 else max(32, min(keys, budget // row))
    for head in range(0, groups, heads):
        yield slice(head, head + heads), [slice(at, at + width) for at in range(0, keys, width)]


def _scores(q: Tensor, k: Tensor, absent: Tensor | None, heads: slice, keys: slice) -> Tensor:
    """Return the scores of some heads and keys, transposed: [g, s, T]."""
    zero = q.new_zeros(1, 1, 1)
    scores = torch.baddbmm(zero, k[heads, keys], q[heads].mT, beta=0, alpha=q.size(-1) ** -0.5)
    return scores if absent is None else scores.masked_fill_(absent[heads], -torch.inf)
