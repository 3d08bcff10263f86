"""The loss of attention guidance, computed without the patterns' matrices.

Deshpande & Narasimhan 2020, "Guiding Attention for Self-Supervised Learning with Transformers".

For a row h that sums to s, ||h - p||^2 is sum h^2 - 2 h[t] + 1 if p is 1 at t, and
sum h^2 + (1 - 2 s) / n if p is 1/n everywhere. s is 1 for softmax, and not after dropout, with a
sink, or where maps of heads are mixed.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fairseq_ext.guidance.patterns import PATTERNS, View
from fairseq_ext.guidance.plan import GuidedHeads

REDUCTIONS = ("mean", "sum")

EDGES = ("uniform", "zero")
"""Targets of the last row of next and the first one of prev: 1/n (paper), 0 (released code)."""

Distance = Callable[[Tensor, Tensor], Tensor]
"""(maps [B, k, T, S], their squares summed over keys [B, k, T]) -> ||h - p||^2, [B, k, T]."""


def sentence_losses(
    maps: Mapping[tuple[str, int], Tensor],
    site: str,
    guided: GuidedHeads,
    view: View,
    reduction: str,
    edges: str = "uniform",
) -> Tensor:
    """Return A_b = sum over layers and patterns of ||H - P||^2, over real rows and columns: [B].

    Args:
        maps: (site, layer) -> recorded maps of the guided heads, [B, heads, T, S]. Layers dropped
            by LayerDrop are absent.
        site: of the maps to be guided.
        guided: the heads and their patterns.
        view: rows and columns of the maps.
        reduction: "mean", over rows, columns and the heads of a pattern, or "sum".
        edges: one of EDGES.
    """
    distances = [distance_to(each.pattern, guided, view, edges) for each in guided.patterns]
    over_heads = torch.mean if reduction == "mean" else torch.sum
    rows = torch.zeros_like(view.queries, dtype=torch.float)
    layers = [maps[site, layer] for layer in guided.layers if (site, layer) in maps]
    for heads in layers:
        squares = heads.square().sum(-1)
        for (_, start, stop), distance in zip(guided.patterns, distances, strict=True):
            part = slice(start, stop)
            rows = rows + over_heads(distance(heads[:, part], squares[:, part]), 1)
    return (rows * row_weights(view, reduction)).sum(1)


def row_weights(view: View, reduction: str) -> Tensor:
    """Return the weight of each row, [B, T]; padded rows have the weight 0.

    Real rows have the weight 1 for "sum", and 1 / (rows x columns of the sentence) for "mean".
    """
    if reduction == "sum":
        return view.queries.float()
    real = view.queries.sum(1, keepdim=True) * view.keys.sum(1, keepdim=True)
    return view.queries / real.clamp(min=1)


def distance_to(pattern: str, guided: GuidedHeads, view: View, edges: str) -> Distance:
    """Return the distance of maps to a pattern; at padded rows it has no meaning."""
    rows = PATTERNS[pattern].rows(replace(view, marks=guided.symbol_ids[pattern]))
    if rows.is_floating_point():
        return _distance_to_matrix(rows)
    if rows.dtype == torch.bool:
        return _distance_to_keys(rows & view.keys)
    return _distance_to_index(rows.where(view.queries, -1), view, edges)


def _distance_to_index(index: Tensor, view: View, edges: str) -> Distance:
    has_target, target = (index >= 0)[:, None], index.clamp(min=0)[:, None, :, None]
    share = 1 / view.visible.clamp(min=1)[:, None]

    def distance(maps: Tensor, squares: Tensor) -> Tensor:
        hit = maps.gather(-1, target.expand(-1, maps.size(1), -1, -1)).squeeze(-1)
        edge = 0.0 if edges == "zero" else (1 - 2 * maps.sum(-1)) * share
        return squares + torch.where(has_target, 1 - 2 * hit, edge)

    return distance


def _distance_to_keys(keys: Tensor) -> Distance:
    count = keys.sum(1, keepdim=True)[:, :, None]
    share = (keys / count[:, 0].clamp(min=1))[:, None, None]  # [B, 1, 1, S]

    def distance(maps: Tensor, squares: Tensor) -> Tensor:
        hit = (maps * share).sum(-1)  # a matrix product would be in 16 bits under --amp
        return torch.where(count > 0, squares - 2 * hit + 1 / count.clamp(min=1), 0)

    return distance


def _distance_to_matrix(rows: Tensor) -> Distance:
    rows = rows[:, None]

    def distance(maps: Tensor, squares: Tensor) -> Tensor:
        return squares - 2 * (maps * rows).sum(-1) + rows.square().sum(-1)

    return distance
