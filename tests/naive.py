"""Naive attention: loops over sentences and heads, with the twins of tests/mechanisms/."""

from types import SimpleNamespace

import torch
from mechanism_cases import find_case
from torch import Tensor


def normalise(
    kind: str,
    scores: Tensor,
    masked: Tensor,
    absent: Tensor,
    *,
    u: Tensor | float = 0.5,
    sweeps: int = 1,
) -> Tensor:
    """Weights [T, S] of one sentence and head.

    Args:
        kind: the name of a normaliser, which has no other options than `u` and `sweeps`.
        scores: [T, S]. masked: [T, S] bool. absent: [T] bool, padded queries.
    """
    part = SimpleNamespace(u=lambda: [u], sweeps=sweeps)
    return find_case("normaliser", kind).twin(scores, masked, absent, part, 0)


def rows(e: Tensor) -> Tensor:
    return torch.stack([row / row.sum() for row in e])


def softmax_rows(scores: Tensor, masked: Tensor) -> Tensor:
    """Weights [T, S] of one map."""
    return rows(torch.where(masked, 0, scores.exp()))


def multi_head(twin, module, x: Tensor, padding: Tensor) -> Tensor:
    """[B, T, C] -> [B, T, C] with the projections of an attention module and the twin of its
    normaliser; padding [B, S] bool is that of the keys and of the queries."""
    heads, normaliser = module.num_heads, module.groups[0].normaliser

    def split(y: Tensor) -> Tensor:
        return y.view(*y.shape[:2], heads, -1).transpose(1, 2)

    q, k, v = (split(p(x)) for p in (module.q_proj, module.k_proj, module.v_proj))
    out = torch.zeros_like(q)
    for b in range(q.size(0)):
        for h in range(heads):
            scores = q[b, h] @ k[b, h].T / q.size(-1) ** 0.5
            masked = padding[b].expand_as(scores)
            out[b, h] = twin(scores, masked, padding[b], normaliser, h) @ v[b, h]
    return module.out_proj(out.transpose(1, 2).flatten(2))
