"""The loss of attention guidance, computed without the patterns' matrices.

Deshpande & Narasimhan 2020, "Guiding Attention for Self-Supervised Learning with Transformers".

For a row h that sums to s, ||h - p||^2 is sum h^2 - 2 h[t] + 1 if p is 1 at t, and
sum h^2 + (1 - 2 s) / n if p is 1/n everywhere. s is 1 for softmax, and not after dropout, with a
sink, or where maps of heads are mixed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from fairseq_ext.mechanisms.guidance.patterns import PATTERNS, View
from fairseq_ext.mechanisms.guidance.plan import GuidedHeads, PatternHeads
from fairseq_ext.mechanisms.kernels.guided import Targets, add_slopes, measure

REDUCTIONS = ("mean", "sum")

EDGES = ("uniform", "zero")
"""Targets of the last row of next and the first one of prev: 1/n (paper), 0 (released code)."""

Distance = Callable[[Sequence[Tensor]], Tensor]
"""maps [B, k, T, S] of L layers -> ||h - p||^2, [L, B, k, T]; at padded rows without meaning."""


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
        maps: (site, layer) -> recorded maps of the guided heads, [B, heads, T, S], or the distances
            of their rows, [B, heads, T]; see `GuidanceRecorder`. Layers dropped by LayerDrop are
            absent.
        site: of the maps to be guided.
        guided: the heads and their patterns.
        view: rows and columns of the maps.
        reduction: "mean", over rows, columns and the heads of a pattern, or "sum".
        edges: one of EDGES.
    """
    recorded = [maps[site, layer] for layer in guided.layers if (site, layer) in maps]
    if not recorded:
        return torch.zeros(len(view.queries), device=view.queries.device)
    measured = [each for each in recorded if each.dim() == 3]
    recorded = [each for each in recorded if each.dim() == 4]
    distances = [torch.stack(measured)] if measured else []
    if recorded:
        parts = [
            distance([each[:, part] for each in recorded])
            for part, distance in find_distances(guided, view, edges)
        ]
        distances.append(torch.cat(parts, 2))
    weights = head_weights(guided, reduction, view.tokens.device)
    layers = distances[0] if len(distances) == 1 else torch.cat(distances)
    rows = (weights * layers).sum((0, 2))
    return (rows * row_weights(view, reduction)).sum(1)


def head_weights(guided: GuidedHeads, reduction: str, device: torch.device) -> Tensor:
    """Return the weight of each guided head, [heads, 1]: 1, or for "mean" a share of a pattern."""
    counts = [each.stop - each.start for each in guided.patterns]
    shares = [1 / n if reduction == "mean" else 1.0 for n in counts]
    filled = (
        torch.full((n, 1), share, device=device) for n, share in zip(counts, shares, strict=True)
    )
    return torch.cat([*filled])


def row_weights(view: View, reduction: str) -> Tensor:
    """Return the weight of each row, [B, T]; padded rows have the weight 0.

    Real rows have the weight 1 for "sum", and 1 / (rows x columns of the sentence) for "mean".
    """
    if reduction == "sum":
        return view.queries.float()
    real = view.queries.sum(1, keepdim=True) * view.keys.sum(1, keepdim=True)
    return view.queries / real.clamp(min=1)


def find_distances(guided: GuidedHeads, view: View, edges: str) -> Iterator[tuple[slice, Distance]]:
    """Yield neighbouring guided heads and the distance of their maps to their patterns.

    Heads that look at one key each are taken together, whatever their patterns are, and so are
    layers: a step on a GPU waits for the operations to be issued, not for the numbers.
    """
    rows = [(each, _find_rows(each, guided, view)) for each in guided.patterns]
    for dtype, neighbours in groupby(rows, lambda pair: pair[1].dtype):
        if dtype.is_floating_point or dtype == torch.bool:
            build = _distance_to_matrix if dtype.is_floating_point else _distance_to_keys
            for (_, start, stop), target in neighbours:
                yield slice(start, stop), build(target)
        else:
            parts = [*neighbours]
            heads = slice(parts[0][0].start, parts[-1][0].stop)
            yield heads, _distance_to_targets(_join_targets(parts, view, edges))


def find_targets(guided: GuidedHeads, view: View, edges: str) -> Targets | None:
    """Return the keys that rows of the guided heads should look at, or None if it is not one each.

    Rows are those of the heads in the order of the patterns.
    """
    rows = [(each, _find_rows(each, guided, view)) for each in guided.patterns]
    single = all(target.dtype == torch.long for _, target in rows)
    return _join_targets(rows, view, edges) if single else None


def _join_targets(rows: Sequence[tuple[PatternHeads, Tensor]], view: View, edges: str) -> Targets:
    """Return the targets of neighbouring heads, whose patterns give an index, or -1 at an edge."""
    heads = [target[:, None].expand(-1, e.stop - e.start, -1) for e, target in rows]
    index = torch.cat(heads, 1)
    share = None if edges == "zero" else 1 / view.visible.clamp(min=1)[:, None]
    return Targets(index.clamp(min=0)[..., None], index >= 0, share)


def _find_rows(heads: PatternHeads, guided: GuidedHeads, view: View) -> Tensor:
    """Return what a pattern says of real rows and keys: see `patterns`."""
    if symbols := guided.symbol_ids[heads.pattern]:
        view = replace(view, marks=symbols)
    rows = PATTERNS[heads.pattern].rows(view)
    if rows.is_floating_point():
        return rows
    return rows & view.keys if rows.dtype == torch.bool else rows.where(view.queries, -1)


def _distance_to_targets(targets: Targets) -> Distance:
    """Return the distance to 1 at a key of each row, or to an edge."""
    return lambda maps: _TargetDistance.apply(*targets, *maps)


class _TargetDistance(torch.autograd.Function):
    """The distance of the maps [B, k, T, S] of layers to their targets, [L, B, k, T].

    Both ways stack the maps in memory of their own, which nothing keeps.
    """

    @staticmethod
    def forward(
        ctx: Any, keys: Tensor, exist: Tensor, share: Tensor | None, *maps: Tensor
    ) -> Tensor:
        ctx.save_for_backward(keys, exist, share, *maps)
        return measure(torch.stack(maps), Targets(keys, exist, share))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        keys, exist, share, *maps = ctx.saved_tensors
        twice = 2 * gradient
        slopes = torch.stack(maps).mul_(twice[..., None])
        slopes = add_slopes(slopes, twice, Targets(keys, exist, share))
        return None, None, None, *slopes.unbind()


def _distance_to_keys(keys: Tensor) -> Distance:
    """Return the distance to an equal share of each of some keys, [B, S] bool; 0 without one."""
    count = keys.sum(1, keepdim=True)[:, :, None]
    share = (keys / count[:, 0].clamp(min=1))[:, None, None]  # [B, 1, 1, S]

    def distance(maps: Sequence[Tensor]) -> Tensor:
        stacked = torch.stack([*maps])
        hit = (stacked * share).sum(-1)  # a matrix product would be in 16 bits under --amp
        squares = stacked.square().sum(-1)
        return torch.where(count > 0, squares - 2 * hit + 1 / count.clamp(min=1), 0)

    return distance


def _distance_to_matrix(rows: Tensor) -> Distance:
    """Return the distance to rows [B, T, S]."""
    return lambda maps: (torch.stack([*maps]) - rows[:, None]).square().sum(-1)
