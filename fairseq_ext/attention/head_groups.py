"""Groups of heads: a layer's heads are contiguous groups, each with its own slots."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_ext.attention.context import AttentionContext
from fairseq_ext.attention.masks import DEFAULT_MASKS, MaskFunction, combined_bias, combined_mask
from fairseq_ext.attention.normalisers import FusedCall, Normaliser, Unnormalised
from fairseq_ext.attention.scorers import Gaussian, Scorer, dot_product
from fairseq_ext.errors import UsageError

RANDOM_LEVELS = 2**15  # values of a non-negative 16-bit integer


class HeadGroup(nn.Module):
    """A contiguous group of n heads that share what is in their slots.

    Attributes:
        learned: they have queries and keys; what they look at is learned.
        window: how many keys before a query they have to see, at least 1; None: all.
    """

    def __init__(
        self,
        n: int,
        *,
        normaliser: Normaliser,
        scorer: Scorer = dot_product,
        masks: tuple[MaskFunction, ...] = DEFAULT_MASKS,
    ) -> None:
        super().__init__()
        self.n, self.scorer, self.masks, self.normaliser = n, scorer, masks, normaliser
        self.window = scorer.window() if isinstance(scorer, Gaussian) else None
        self.learned = self.window is None

    def extra_repr(self) -> str:
        others = [repr(mask) for mask in self.masks if mask not in DEFAULT_MASKS]
        return ", ".join([f"n={self.n}", *others])

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        context: AttentionContext,
        heads: slice,
        observed: bool,
        dropout: float,
    ) -> tuple[Tensor, Tensor | None]:
        """Output [B, h, T, D] of some heads and, if observed, their weights [B, h, T, S].

        Args:
            q: [B, h, T, D]. k, v: [B, h, S, D]; q and k of no heads if these do not learn.
            heads: which heads of the group these are.
            dropout: probability, of weights that are learned.
        """
        if not observed and context.bias is None:
            out = self._fused(q, k, v, context, heads, dropout)
            if out is not None:
                return out, None
        scores = self.scorer(q, k, context, heads)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        closed = _of(combined_bias(self.masks, context, scores.dtype), heads)
        if context.bias is not None:
            scores, closed = context.bias(scores, closed)
        weights = self.normaliser.weights(scores, closed, context.query_padding, heads)
        used = weights.to(v.dtype)
        out = (drop_weights(used, dropout) if self.learned else used) @ v
        return out, weights.expand(len(v), -1, -1, -1) if observed else None

    def _fused(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        context: AttentionContext,
        heads: slice,
        dropout: float,
    ) -> Tensor | None:
        """The output without a map in memory; None if no kernel does this."""
        if isinstance(self.scorer, Gaussian):
            usual = self.masks == DEFAULT_MASKS and context.inputs.masked is None
            return self.scorer.fused(v, context, heads) if usual else None
        if self.scorer is not dot_product:
            return None
        mask = combined_mask(self.masks, context)
        mask = mask._replace(masked=_of(mask.masked, heads))
        return self.normaliser.fused(
            FusedCall(q, k, v, mask, context.query_padding, heads, dropout)
        )


def _of(masked: Tensor | None, heads: slice) -> Tensor | None:
    """What is masked for some heads of a group: [B, h or 1, T, S], or less."""
    if masked is None or masked.dim() < 4 or masked.size(1) == 1:
        return masked
    return masked[:, heads]


def build_gaussian_heads(
    offsets: Sequence[float], sigmas: Sequence[float], ratio: float = 1.0
) -> HeadGroup:
    """Hard-coded heads (You et al. 2020), one for each offset."""
    return HeadGroup(
        len(offsets), scorer=Gaussian(offsets, sigmas, ratio), normaliser=Unnormalised()
    )


class HeadSlice(NamedTuple):
    """Some heads of a group.

    Attributes:
        of_all, of_learned, of_group: which they are in the layer, among its heads that learn
            (empty if these do not) and in their group.
        observed: somebody wants their maps.
    """

    group: HeadGroup
    in_layer: slice
    in_projections: slice
    in_group: slice
    observed: bool


def head_slices(groups: Iterable[HeadGroup], heard: set[int]) -> Iterator[HeadSlice]:
    """Groups, cut where observed heads meet unobserved ones, so that the latter stay fused."""
    first = learned = 0
    for group in groups:
        for observed, run in groupby(range(first, first + group.n), heard.__contains__):
            heads = list(run)
            start, stop = heads[0] - first, heads[-1] + 1 - first
            in_projections = slice(learned + start, learned + stop) if group.learned else slice(0)
            in_layer = slice(heads[0], heads[-1] + 1)
            yield HeadSlice(group, in_layer, in_projections, slice(start, stop), observed)
        first += group.n
        learned += group.n if group.learned else 0


def check_groups(groups: Sequence[HeadGroup], num_heads: int, site: str) -> None:
    """Raises UsageError if they are not the heads of a layer, or one cannot stand at this site."""
    total = sum(group.n for group in groups)
    if total != num_heads:
        raise UsageError(f"{site} attention: groups of {total} heads in all for {num_heads} heads.")
    if site != "encoder" and any(group.normaliser.across_queries for group in groups):
        why = (
            "would let a token see the future" if site == "decoder" else "needs all queries at once"
        )
        raise UsageError(
            f"{site} attention cannot use a normaliser that looks across queries: it {why}; "
            "use softmax there."
        )


def drop_weights(weights: Tensor, rate: float) -> Tensor:
    """Return the weights, each zeroed with probability `rate` or else divided by 1 - rate.

    On a CPU, drawing random numbers takes most of the time of `F.dropout`, which draws 32 bits or
    more for each element. Here an element is dropped if a random 15-bit integer (a non-negative
    int16) is below rate * 2^15. The rate is thereby rounded to a multiple of 1/32768, and the
    weights that remain are scaled by the rounded rate, so that their expectation is exact.
    """
    if not rate or weights.device.type != "cpu":
        return F.dropout(weights, rate)
    dropped = round(rate * RANDOM_LEVELS)
    random = torch.empty(weights.shape, dtype=torch.int16).random_()
    kept = (random >= dropped).to(weights.dtype)
    return weights * kept.mul_(
        RANDOM_LEVELS / (RANDOM_LEVELS - dropped) if dropped < RANDOM_LEVELS else 0.0
    )
