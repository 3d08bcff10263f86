"""Second passes: the sentences of a batch once more, with less attention.

Wu et al. 2023, "Adversarial Self-Attention", Eq. 5 to 8.

A pass keeps or masks units of attention by m (1 keep, 0 mask). m enters the logits additively,
logit = score + (m - 1) * 10,000, for without that there would be no gradient to m.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_ext.attention.context import AddedBias, AttentionContext, Bias, LayerBias
from fairseq_ext.attention.masks import add_bias
from fairseq_ext.mechanisms.second_pass.adversary import Ascent

MASK_SCALE = 1e4
"""The distance by which a masked logit is lowered.

As the gradient of a logit to m it also weighs what an adversary gains by divergence against what it
pays for masked units."""

BiasedScores = tuple[Tensor, Tensor | None]
"""Scores and mask, as a `Bias` returns them."""


class UnitCounts(NamedTuple):
    """Units of attention in a layer, for each sentence [B].

    A unit is a query and a key, both no padding.

    Attributes:
        kept: units that are not masked; the mean over heads, if these have masks of their own.
        units: all units.
    """

    kept: Tensor
    units: Tensor


def leave_empty_rows_unmasked(keep: Tensor, scores: Tensor, mask: Tensor | None) -> BiasedScores:
    """Mask units, but in a row that would keep no key change nothing but its gradient (ours)."""
    seen = keep.detach() if mask is None else torch.where(mask < 0, 0, keep.detach())
    return scores, add_bias((keep - seen.amax(-1, keepdim=True)) * MASK_SCALE, mask)


def make_empty_rows_uniform(keep: Tensor, scores: Tensor, mask: Tensor | None) -> BiasedScores:
    """Mask units; an empty row is uniform over all keys and padding (released code, BERT)."""
    return scores * (keep >= 1), (keep - 1) * MASK_SCALE


def leave_scores_to_empty_rows(keep: Tensor, scores: Tensor, mask: Tensor | None) -> BiasedScores:
    """Mask units; an empty row has its scores, also for padding (released code, RoBERTa)."""
    return scores, (keep - 1) * MASK_SCALE


EMPTY_ROWS: dict[str, Callable[[Tensor, Tensor, Tensor | None], BiasedScores]] = {
    "unmasked": leave_empty_rows_unmasked,
    "uniform": make_empty_rows_uniform,
    "scores": leave_scores_to_empty_rows,
}
"""Treatment of a query that keeps no key -> function of (m, scores, mask) that masks units."""

SCALING = ("uniform",)
"""Treatments that change the scores themselves."""


@dataclass(eq=False, kw_only=True)
class SecondPass:
    """A pass that differs from the first one by dropout alone: the control of the other passes.

    Args:
        one_batch: rows of both passes are one larger batch; else one pass follows the other, which
            takes less memory.
        empty_rows: a key of EMPTY_ROWS.
        padded_rows: count units of padded queries too, as the released code does.
        embedded_padding: None: states of padding begin as 0. As in the released code they begin as
            the embedding of padding, with positions that follow those of tokens ("bert") or with
            the position of padding ("roberta").

    Attributes:
        first: the first layer that differs; layers below are computed once for both passes.
        counts: layer -> UnitCounts of the last forward pass of a model.
    """

    first = 0
    one_batch: bool = True
    empty_rows: str = "unmasked"
    padded_rows: bool = False
    embedded_padding: str | None = None

    def __post_init__(self) -> None:
        self.apply_mask = EMPTY_ROWS[self.empty_rows]
        self.counts: dict[int, UnitCounts] = {}  # no field: fully_shard would copy it

    def bias(self, attention: Any, x: Tensor, context: AttentionContext) -> LayerBias | None:
        """Return the bias of a layer whose attention has the input x [T, B, C]; None if none."""
        return None

    def _mask_units(self, layer: int, keep: Tensor, context: AttentionContext) -> LayerBias:
        """Return the bias of m [B, 1 or H, T, S], after counting what it keeps."""
        keep = self._without_padding(keep, context)
        # activation checkpointing runs a layer twice; the first count carries the gradient
        self.counts.setdefault(layer, self._count(keep, context))
        shared = keep.size(1) == 1
        kind: Callable[..., Bias] = partial if self.empty_rows in SCALING else AddedBias
        return lambda heads: kind(self.apply_mask, keep if shared else keep[:, heads])

    def _without_padding(self, keep: Tensor, context: AttentionContext) -> Tensor:
        if context.key_padding is None:
            return keep
        return keep.masked_fill(context.key_padding[:, None, None], 0)

    def _count(self, keep: Tensor, context: AttentionContext) -> UnitCounts:
        padded, heads = None if self.padded_rows else context.query_padding, keep.size(1)
        if padded is None:
            kept = keep.sum((1, 2, 3))
        else:
            kept = keep.sum((1, 3)).masked_fill(padded, 0).sum(-1)

        def count_all() -> Tensor:
            queries = _count_real(padded, context.queries, kept)
            return queries * _count_real(context.key_padding, context.keys, kept)

        key = ("units", self.padded_rows, context.queries, context.keys, kept.dtype)
        units = context.inputs.cached(key, count_all)
        return UnitCounts(kept if heads == 1 else kept / heads, units)


@dataclass(eq=False)
class AdversarialPass(SecondPass):
    """A pass in which adversaries choose; they ascend a loss on the pass or on what it keeps.

    Args:
        first: the first layer that has an adversary.
        sample: draw masks, instead of a threshold.
    """

    first: int = 0
    sample: bool = False

    def bias(self, attention: Any, x: Tensor, context: AttentionContext) -> LayerBias | None:
        """Return the bias that the layer's adversary chooses; None if it has none."""
        if attention.adversary is None:
            return None
        keep = Ascent.apply(attention.adversary(x, self.sample))
        return self._mask_units(attention.layer, keep, context)


@dataclass(eq=False)
class BernoulliPass(SecondPass):
    """A pass in which chance chooses, in all layers, one mask for all heads of a layer.

    Args:
        rate: the probability that a unit is masked.
    """

    rate: float

    def bias(self, attention: Any, x: Tensor, context: AttentionContext) -> LayerBias:
        """Return the bias of a random mask."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        shape = x.size(1), 1, context.queries, context.keys
        keep = torch.rand(shape, dtype=dtype, device=x.device).ge(self.rate).to(dtype)
        return self._mask_units(attention.layer, keep, context)


@dataclass(eq=False)
class MagnitudePass(SecondPass):
    """A pass in which the largest scores in each row of each map are masked, in all layers.

    Args:
        share: of the keys that a row may attend to, rounded to whole ones.
    """

    share: float

    def bias(self, attention: Any, x: Tensor, context: AttentionContext) -> LayerBias:
        """Return the bias that masks the largest scores, once these are there."""
        heads, kept = [], []  # of each slice of maps so far: how many, what they keep

        def mask_largest(scores: Tensor, mask: Tensor | None) -> BiasedScores:
            ranks = add_bias(scores.detach(), mask).argsort(-1, descending=True).argsort(-1)
            keys = scores.size(-1) if mask is None else mask.eq(0).sum(-1, keepdim=True)
            keep = ranks.ge(torch.as_tensor(self.share * keys).round()).to(scores.dtype)
            keep = self._without_padding(keep.expand(x.size(1), -1, -1, -1), context)
            count = self._count(keep, context)
            heads.append(keep.size(1))
            kept.append(count.kept * keep.size(1))
            if sum(heads) == attention.num_maps:
                mean = torch.stack(kept).sum(0) / attention.num_maps
                self.counts.setdefault(attention.layer, count._replace(kept=mean))
            return self.apply_mask(keep, scores, mask)

        return lambda heads: mask_largest


def _count_real(padding: Tensor | None, length: int, like: Tensor) -> Tensor:
    """Return how many positions are no padding, [B], in the dtype of `like` [B]."""
    if padding is None:
        return torch.full_like(like, length)
    return (~padding).sum(-1).to(like.dtype)
