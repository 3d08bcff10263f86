"""Second passes: the sentences of a batch once more, with less attention (Wu et al. 2023).

What a pass keeps, m (1 keep, 0 mask), enters additively: logit = score + (m - 1) * 10,000.
Without that there would be no gradient to m.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_ext.attention.adversary import reverse_gradient
from fairseq_ext.attention.context import AttentionContext, Bias
from fairseq_ext.attention.normalisers import add_bias

MASK_SCALE = 1e4
"""How far a masked logit is pushed down. As the gradient of a logit to m it also weighs what an
adversary gains by divergence against what it pays for masked units."""

Biased = tuple[Tensor, Tensor | None]
"""What a `Bias` returns."""

LayerBias = Callable[[slice], Bias]
"""That of some heads of a layer."""


class UnitCounts(NamedTuple):
    """Units of attention in a layer, per sentence [B]: those kept, and all that there are.

    A unit is a query and a key, both no padding. Of masks for each head `kept` is the mean.
    """

    kept: Tensor
    units: Tensor


def keep_unmasked(keep: Tensor, scores: Tensor, closed: Tensor | None) -> Biased:
    """A row that keeps none of the keys it may look at is as if it were not masked; only its
    gradient remains. (ours)"""
    seen = keep.detach() if closed is None else torch.where(closed < 0, 0, keep.detach())
    return scores, add_bias((keep - seen.amax(-1, keepdim=True)) * MASK_SCALE, closed)


def keep_uniform(keep: Tensor, scores: Tensor, closed: Tensor | None) -> Biased:
    """Such a row is uniform over all keys, padding included. (released code, BERT)"""
    return scores * (keep >= 1), (keep - 1) * MASK_SCALE


def scores_alone(keep: Tensor, scores: Tensor, closed: Tensor | None) -> Biased:
    """Such a row is not masked, and neither is padding. (released code, RoBERTa)"""
    return scores, (keep - 1) * MASK_SCALE


EMPTY_ROWS = {"unmasked": keep_unmasked, "uniform": keep_uniform, "scores": scores_alone}


class SecondPass:
    """A pass that differs from the first one by dropout alone: the control of the others.

    Args:
        one_batch: rows of both passes are one larger batch; else one pass follows the other, which
            takes less memory.
        empty_rows: of EMPTY_ROWS, what happens to a query that keeps no key.
        padded_rows: count units of padded queries too, as the released code does.

    Attributes:
        first: the first layer that it differs in; those below are computed once.
        counts: layer -> Count of the last forward pass of a model.
    """

    first = 0

    def __init__(
        self,
        *,
        one_batch: bool = True,
        empty_rows: str = "unmasked",
        padded_rows: bool = False,
    ) -> None:
        self.one_batch, self.apply_mask, self.padded_rows = (
            one_batch,
            EMPTY_ROWS[empty_rows],
            padded_rows,
        )
        self.counts: dict[int, UnitCounts] = {}

    def bias(self, attention: Any, x: Tensor, context: AttentionContext) -> LayerBias | None:
        """What it adds in a layer, given the input [T, B, C] of its attention; None: nothing."""
        return None

    def masked(self, layer: int, keep: Tensor, context: AttentionContext) -> LayerBias:
        """The bias of what to keep, m [B, 1 or H, T, S], counted."""
        keep = self._real(keep, context)
        # activation checkpointing runs a layer twice; the first count carries the gradient
        self.counts.setdefault(layer, self._count(keep, context))
        shared = keep.size(1) == 1
        return lambda heads: partial(self.apply_mask, keep if shared else keep[:, heads])

    def _real(self, keep: Tensor, context: AttentionContext) -> Tensor:
        """Without padded keys."""
        if context.key_padding is None:
            return keep
        return keep.masked_fill(context.key_padding[:, None, None], 0)

    def _count(self, keep: Tensor, context: AttentionContext) -> UnitCounts:
        absent = None if self.padded_rows else context.query_padding
        kept = keep.mean(1).sum(-1)  # [B, T]
        if absent is not None:
            kept = kept.masked_fill(absent, 0)
        kept = kept.sum(-1)
        queries = _places(absent, context.queries, kept)
        return UnitCounts(kept, queries * _places(context.key_padding, context.keys, kept))


class AdversarialPass(SecondPass):
    """Adversaries choose; a loss on the pass, or on what it keeps, is ascended by them.

    Args:
        first: the first layer that has an adversary.
        sample: draw masks, instead of a threshold.
    """

    def __init__(self, first: int, sample: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.first, self.sample = first, sample

    def bias(self, attention: Any, x: Tensor, context: AttentionContext) -> LayerBias | None:
        if attention.adversary is None:
            return None
        keep = reverse_gradient(attention.adversary(x, self.sample))
        return self.masked(attention.layer, keep, context)


class BernoulliPass(SecondPass):
    """Chance chooses, in all layers, one mask for all heads of each.

    Args:
        rate: the probability that a unit is masked.
    """

    def __init__(self, rate: float, **options: Any) -> None:
        super().__init__(**options)
        self.rate = rate

    def bias(self, attention: Any, x: Tensor, context: AttentionContext) -> LayerBias:
        dtype = torch.promote_types(x.dtype, torch.float32)
        keep = torch.rand(
            (x.size(1), 1, context.queries, context.keys), dtype=dtype, device=x.device
        ).ge(self.rate)
        return self.masked(attention.layer, keep.to(dtype), context)


class MagnitudePass(SecondPass):
    """In each row of each head the largest scores are masked, in all layers.

    Args:
        share: of the keys that a row may attend to, rounded to whole ones.
    """

    def __init__(self, share: float, **options: Any) -> None:
        super().__init__(**options)
        self.share = share

    def bias(self, attention: Any, x: Tensor, context: AttentionContext) -> LayerBias:
        heads, kept = [], []  # of each group so far: how many, what they keep

        def largest(scores: Tensor, closed: Tensor | None) -> Biased:
            ranks = add_bias(scores.detach(), closed).argsort(-1, descending=True).argsort(-1)
            keys = scores.size(-1) if closed is None else closed.eq(0).sum(-1, keepdim=True)
            keep = ranks.ge(torch.as_tensor(self.share * keys).round()).to(scores.dtype)
            keep = self._real(keep.expand(x.size(1), -1, -1, -1), context)
            count = self._count(keep, context)
            heads.append(keep.size(1))
            kept.append(count.kept * keep.size(1))
            if sum(heads) == attention.num_heads:
                mean = torch.stack(kept).sum(0) / attention.num_heads
                self.counts.setdefault(attention.layer, count._replace(kept=mean))
            return self.apply_mask(keep, scores, closed)

        return lambda heads: largest


def _places(padding: Tensor | None, length: int, like: Tensor) -> Tensor:
    """[B] places that are no padding, as floats."""
    if padding is None:
        return torch.full_like(like, length)
    return (~padding).sum(-1).to(like.dtype)
