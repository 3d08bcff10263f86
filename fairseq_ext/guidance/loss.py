"""The loss of attention guidance, without the patterns' matrices.

For a row h that sums to one, ||h - p||^2 is sum h^2 - 2 h[t] + 1 if p is 1 at t, and
sum h^2 - 1/n if p is 1/n everywhere.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fairseq_ext.guidance.patterns import PATTERNS, View
from fairseq_ext.guidance.plan import GuidedHeads

REDUCTIONS = ("mean", "sum")

Distance = Callable[[Tensor, Tensor], Tensor]
"""(maps [B, k, T, S], their squares summed over keys [B, k, T]) -> ||h - p||^2, [B, k, T]."""


def sentence_losses(
    maps: Mapping[tuple[str, int], Tensor],
    site: str,
    guided: GuidedHeads,
    view: View,
    reduction: str,
) -> Tensor:
    """[B] A_b = sum over layers and patterns of ||H - P||^2, over real rows and columns.

    Args:
        maps: what a recorder heard of the guided heads, [B, heads, T, S], rows that sum to one.
        reduction: "mean", over rows, columns and the heads of a pattern, or "sum".
    """
    distances = [distance_to(guide.pattern, guided, view) for guide in guided.patterns]
    over_heads = torch.mean if reduction == "mean" else torch.sum
    rows = torch.zeros_like(view.queries, dtype=torch.float)
    for layer in guided.layers:
        if (site, layer) not in maps:  # LayerDrop
            continue
        heads = maps[site, layer]
        squares = heads.square().sum(-1)
        for guide, distance in zip(guided.patterns, distances, strict=True):
            ours = slice(guide.start, guide.stop)
            rows = rows + over_heads(distance(heads[:, ours], squares[:, ours]), 1)
    return (rows * row_weights(view, reduction)).sum(1)


def row_weights(view: View, reduction: str) -> Tensor:
    """[B, T] 1 for "sum"; for "mean" 1 / (rows x columns of the sentence); 0 for padded rows."""
    if reduction == "sum":
        return view.queries.float()
    real = view.queries.sum(1, keepdim=True) * view.keys.sum(1, keepdim=True)
    return view.queries / real.clamp(min=1)


def distance_to(pattern: str, guided: GuidedHeads, view: View) -> Distance:
    """How maps are compared with a pattern; what it says of padded rows has no meaning."""
    rows = PATTERNS[pattern].rows(replace(view, marks=guided.symbol_ids[pattern]))
    if rows.is_floating_point():
        return _to_matrix(rows)
    if rows.dtype == torch.bool:
        return _to_keys(rows & view.keys)
    return _to_index(rows.where(view.queries, -1), view)


def _to_index(index: Tensor, view: View) -> Distance:
    named, target = (index >= 0)[:, None], index.clamp(min=0)[:, None, :, None]
    uniform = 1 / view.visible.clamp(min=1)[:, None]

    def distance(maps: Tensor, squares: Tensor) -> Tensor:
        hit = maps.gather(-1, target.expand(-1, maps.size(1), -1, -1)).squeeze(-1)
        return squares + torch.where(named, 1 - 2 * hit, -uniform)

    return distance


def _to_keys(keys: Tensor) -> Distance:
    count = keys.sum(1, keepdim=True)[:, :, None]
    share = (keys[:, None] / count.clamp(min=1))[..., None]  # [B, 1, S, 1]

    def distance(maps: Tensor, squares: Tensor) -> Tensor:
        hit = (maps @ share.to(maps.dtype)).squeeze(-1)
        return torch.where(count > 0, squares - 2 * hit + 1 / count.clamp(min=1), 0)

    return distance


def _to_matrix(rows: Tensor) -> Distance:
    rows = rows[:, None]

    def distance(maps: Tensor, squares: Tensor) -> Tensor:
        return squares - 2 * (maps * rows).sum(-1) + rows.square().sum(-1)

    return distance
