"""Doubly-normalised and hybrid attention on a GPU by torch's flex_attention, instead of Triton.

DNAS is softmax attention in which each key j has a bias, minus the log-sum-exp of its scores over
the queries:

    L_j = log sum_i exp(s_ij)       D_ij = exp(s_ij - L_j) / sum_j' exp(s_ij' - L_j')

flex_attention returns such log-sums, and differentiates through them: one call with keys in the
place of queries gives L, a second one the output, and HNAS takes a third, without the bias. torch
compiles all of them into kernels that keep no map in memory.
"""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex

from fairseq_ext.attention.kernels import doubly_triton
from fairseq_ext.attention.masks import Mask

MIN_WIDTH = 16  # of a head; torch's kernels take no narrower ones


def supports(q: Tensor, k: Tensor, mask: Mask) -> bool:
    """Return whether flex_attention takes these [B, H, T, D] and [B, H, S, D] on their device."""
    has_log_sums = hasattr(torch_flex, "AuxRequest")  # since torch 2.9
    return q.device.type == "cuda" and has_log_sums and doubly_triton.fits(q, k, mask)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    masked: Tensor | None,
    query_padding: Tensor | None,
    u: Tensor | None = None,
) -> Tensor:
    """Return what `doubly_cpu.attend` returns, for inputs of any floating type."""
    batch, width = q.size(0), q.size(-1)
    queries = q.new_ones(batch, q.size(2), dtype=torch.bool)
    if query_padding is not None:
        queries = ~query_padding
    keys = q.new_ones(batch, k.size(2), dtype=torch.bool)
    if masked is not None:
        keys = ~masked[:, 0, 0].expand(batch, -1)
    q, k, v = (F.pad(x, (0, max(0, MIN_WIDTH - width))) for x in (q, k, v))
    out = _compiled()(q, k, v, queries, keys, u, width**-0.5)
    return out[..., :width].masked_fill(~queries[:, None, :, None], 0)


@cache
def _compiled() -> Any:
    """Return the attention, compiled for inputs of any length."""
    return torch.compile(_attend, dynamic=True)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, queries: Tensor, keys: Tensor, u: Tensor | None, scale: float
) -> Tensor:
    """Return DNAS or HNAS of real queries [B, T] and real keys [B, S]."""

    def of_real_queries(score: Tensor, b: Tensor, _: Tensor, __: Tensor, i: Tensor) -> Tensor:
        return torch.where(queries[b, i], score, -torch.inf)

    def of_real_keys(score: Tensor, b: Tensor, _: Tensor, __: Tensor, j: Tensor) -> Tensor:
        return torch.where(keys[b, j], score, -torch.inf)

    def minus_log_sums(score: Tensor, b: Tensor, h: Tensor, _: Tensor, j: Tensor) -> Tensor:
        return torch.where(keys[b, j], score - log_sums[b, h, j], -torch.inf)

    request = torch_flex.AuxRequest(lse=True)
    columns = q[..., :MIN_WIDTH]  # any values will do
    unread, aux = torch_flex.flex_attention(
        k, q, columns, of_real_queries, scale=scale, return_aux=request
    )
    assert aux.lse is not None  # as it was requested
    lse = aux.lse + 0 * unread[..., 0].float()  # torch 2.11 cannot differentiate the lse alone
    log_sums = lse.masked_fill(~queries.any(1)[:, None, None], 0)
    doubly = torch_flex.flex_attention(q, k, v, minus_log_sums, scale=scale)
    if u is None:
        return doubly
    softmax = torch_flex.flex_attention(q, k, v, of_real_keys, scale=scale)
    return torch.lerp(softmax.float(), doubly.float(), u.float()[:, None, None]).to(q.dtype)
