"""The naive twin: attention from the papers' definitions, with loops, in the obvious way."""

import math

import torch
from torch import Tensor


def normalise(
    kind: str,
    scores: Tensor,
    blocked: Tensor,
    absent: Tensor,
    *,
    u: Tensor | float = 0.5,
    sweeps: int = 1,
) -> Tensor:
    """Weights [T, S] of one sentence and head.

    Args:
        kind: "softmax", "doubly", "hybrid" or "sinkhorn".
        scores: [T, S]. blocked: [T, S] bool. absent: [T] bool, padded queries.
    """
    e = torch.where(blocked, torch.zeros_like(scores), scores.exp())
    if kind == "hybrid":
        doubly, softmax = (normalise(n, scores, blocked, absent) for n in ("doubly", "softmax"))
        return u * doubly + (1 - u) * softmax
    for _ in range({"softmax": 0, "doubly": 1, "sinkhorn": sweeps}[kind]):
        columns = []
        for j in range(e.size(1)):
            total = sum(e[i, j] for i in range(e.size(0)) if not absent[i])
            columns.append(e[:, j] / total if total.item() > 0 else e[:, j])
        e = rows(torch.stack(columns, 1))
    return rows(e)


def rows(e: Tensor) -> Tensor:
    return torch.stack([row / row.sum() for row in e])


def attend(kind: str, q: Tensor, k: Tensor, v: Tensor, padding: Tensor, **options) -> Tensor:
    """[B, H, T, D] self-attention; padding [B, S] bool is that of the keys and of the queries."""
    out = torch.zeros_like(q)
    for b in range(q.size(0)):
        for h in range(q.size(1)):
            scores = q[b, h] @ k[b, h].T / q.size(-1) ** 0.5
            blocked = padding[b].expand_as(scores)
            u = options.get("u", 0.5)
            u = u[h] if isinstance(u, Tensor) else u
            w = normalise(kind, scores, blocked, padding[b], u=u, sweeps=options.get("sweeps", 1))
            out[b, h] = w @ v[b, h]
    return out


def multi_head(kind: str, module, x: Tensor, padding: Tensor, **options) -> Tensor:
    """[B, T, C] -> [B, T, C] with the projections of an attention module."""
    heads = module.num_heads

    def split(y: Tensor) -> Tensor:
        return y.view(*y.shape[:2], heads, -1).transpose(1, 2)

    parts = [split(p(x)) for p in (module.q_proj, module.k_proj, module.v_proj)]
    out = attend(kind, *parts, padding, **options)
    return module.out_proj(out.transpose(1, 2).flatten(2))


def gaussian(
    queries: int, keys: int, offset: float, sigma: float = 1.0, ratio: float = 1.0, causal=False
) -> Tensor:
    """[T, S] weights of a hard-coded head (You et al. 2020), densities as they are."""
    weights = torch.zeros(queries, keys, dtype=torch.float64)
    for i in range(queries):
        for j in range(keys):
            away = (j - (ratio * i + offset)) / sigma
            if not (causal and j > i):
                weights[i, j] = math.exp(-0.5 * away**2) / (sigma * math.sqrt(2 * math.pi))
    return weights
