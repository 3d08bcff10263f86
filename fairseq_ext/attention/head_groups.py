"""Groups of heads: a layer's heads are contiguous groups, each with its own slots."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_ext.attention.context import AddedBias, AttentionContext, HeadCall
from fairseq_ext.attention.head_mixers import HeadMixer, check_shared_mask, stack_parts
from fairseq_ext.attention.masks import (
    DEFAULT_MASKS,
    Mask,
    Masks,
    add_bias,
    combined_bias,
    combined_mask,
)
from fairseq_ext.attention.normalisers import Normaliser, is_fused
from fairseq_ext.attention.positions import Positions
from fairseq_ext.attention.projections import cut_heads
from fairseq_ext.attention.scorers import DotProduct, Scorer
from fairseq_ext.attention.shared_heads import multiply_heads, repeat_heads
from fairseq_ext.attention.weight_dropout import drop_weights
from fairseq_ext.errors import UsageError

WITHOUT_SLOPES = ("cpu",)  # devices on which torch's attention has no gradient of a bias


class HeadGroup(nn.Module):
    """A contiguous group of heads that share what is in their slots.

    Args:
        made_by: the flag that makes these heads differ from others of the layer, for errors.

    Attributes:
        num_heads: how many.
        learned: they have queries and keys; what they look at is learned.
        window: how many keys before a query they have to see, at least 1; None: all.
        query_factor: what queries are multiplied by, beside the scorer's own scale.
        is_plain: weights are the softmax of q k^T / sqrt(D), with rotated q and k or not.
    """

    def __init__(
        self,
        num_heads: int,
        *,
        normaliser: Normaliser,
        scorer: Scorer | None = None,
        masks: Masks = DEFAULT_MASKS,
        positions: Positions | None = None,
        query_factor: float = 1.0,
        made_by: str = "",
    ) -> None:
        super().__init__()
        self.query_factor, self.made_by = query_factor, made_by
        self.num_heads, self.normaliser, self.positions = num_heads, normaliser, positions
        if not isinstance(scorer, Scorer | None):
            kind = type(scorer).__name__
            raise UsageError(
                f"{kind} is no fairseq_ext.attention.scorers.Scorer; derive it from that"
            )
        self.scorer, self.masks = DotProduct() if scorer is None else scorer, masks
        self.window, self.learned = self.scorer.window, self.scorer.learned
        unbiased = positions is None or type(positions).bias is Positions.bias
        self.is_plain = normaliser.is_softmax and self.scorer.multiplies and unbiased  # so learned

    def extra_repr(self) -> str:
        """Return the number of heads, and masks other than the default ones, for printing."""
        parts = [repr(mask) for mask in self.masks if mask not in DEFAULT_MASKS]
        if self.query_factor != 1:
            parts.append(f"query_factor={self.query_factor:.4g}")
        return ", ".join([f"num_heads={self.num_heads}", *parts])

    def attend(
        self, call: HeadCall, observed: bool, mixer: HeadMixer | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output [B, h, T, D] of some heads and, if observed, weights [B, h, T, S].

        A meter of the call takes the place of weights by what it records.

        Args:
            mixer: of the layer's heads.
        """
        if mixer is None:
            return self._attend(call, observed, None)
        if not observed and (outputs := self._attend_parts(call, mixer)) is not None:
            return mixer.finish(mixer.join(outputs)), None
        crossing = mixer if mixer.mixes_heads else None
        results = [self._attend(part, observed, crossing) for part in mixer.split(call)]
        out = mixer.finish(mixer.join([out for out, _ in results]))
        return out, mixer.join([w for _, w in results if w is not None]) if observed else None

    def _attend(
        self, call: HeadCall, observed: bool, mixer: HeadMixer | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output and map of queries and keys, with a mixer of scores and weights."""
        if self.query_factor != 1:
            call = call._replace(q=call.q * self.query_factor)
        if self.positions is not None:
            call = self.positions.rotate(call)
        if call.meter is not None:
            return call.meter(call, combined_mask(self.masks, call.context, call.heads))
        fusible = not observed and mixer is None and self._adds(call)
        if fusible and (out := self._fused(call)) is not None:
            return out, None
        context, heads, v = call.context, call.heads, call.v
        scores = self.scorer(call)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if mixer is not None:
            check_shared_mask(combined_mask(self.masks, context, heads))
            scores = mixer.mix_scores(scores)
        if self.positions is not None:
            scores = add_bias(scores, self.positions.bias(context, heads, scores.dtype))
        mask = combined_bias(self.masks, context, heads, scores.dtype)
        if call.bias is not None:
            scores, mask = call.bias(scores, mask)
        weights = self.normaliser.weights(scores, mask, context.query_padding, heads)
        if mixer is not None:
            weights = mixer.mix_weights(weights)
        dropout = call.dropout if self.learned else 0.0
        if dropout:  # of each sentence on its own
            weights = weights.expand(v.size(0), -1, -1, -1)
        mixed = drop_weights(weights.to(v.dtype), dropout)
        if getattr(context.inputs.recorder, "dropped", False):
            weights = mixed.to(weights.dtype)
        return multiply_heads(mixed, v), weights.expand(v.size(0), -1, -1, -1) if observed else None

    def _adds(self, call: HeadCall) -> bool:
        """Return whether a kernel can add what an extra pass changes, if there is one."""
        added = isinstance(call.bias, AddedBias) and self.normaliser.fuses_bias
        return call.bias is None or added and call.q.device.type not in WITHOUT_SLOPES

    def _attend_parts(self, call: HeadCall, mixer: HeadMixer) -> Sequence[Tensor] | None:
        """Return the outputs of all maps of a head by one kernel, or None if there is none.

        The parts of queries are further queries of the same keys, as hypotheses of a beam are.
        """
        parts, context, fuses = mixer.parts, call.context, self.normaliser.fuses_bias
        if parts == 1 or mixer.mixes_heads or self.positions or not fuses or not is_fused(call):
            return None
        masked, causal, _ = combined_mask(self.masks, context, call.heads)
        if call.bias is not None or causal or masked is not None and masked.size(-2) > 1:
            return None
        q = stack_parts(call.q, parts, context.inputs)
        q = q if self.query_factor == 1 else q * self.query_factor
        longer = replace(context, queries=parts * context.queries, beam=parts * context.beam)
        out = self._fused(call._replace(q=q, context=longer))
        return None if out is None else out.unflatten(2, (parts, -1)).unbind(2)

    def _fused(self, call: HeadCall) -> Tensor | None:
        """Return the output without a map in memory, or None if no kernel computes it."""
        if not self.learned:
            plain = self.masks == DEFAULT_MASKS and call.context.inputs.masked is None
            return self.scorer.fused(call) if plain else None
        if not self.scorer.multiplies and not (self.normaliser.fuses_bias and not self.positions):
            return None
        if (product := self.scorer.as_product(call)) is None:
            return None
        call, bias = widen(call._replace(q=product[0])), product[1]
        if not self.normaliser.shares_heads:
            k, v = (repeat_heads(x, call.q.size(1)) for x in (call.k, call.v))
            call = call._replace(k=k, v=v)
        context, heads, dtype = call.context, call.heads, call.q.dtype
        if bias is None and self.positions is not None:
            bias = self.positions.bias(context, heads, dtype)
        if call.bias is not None:
            _, added = call.bias(call.q, combined_bias(self.masks, context, heads, dtype))
            if added is not None:
                bias = add_bias(added.to(dtype), bias)
            return self.normaliser.fused(call, Mask(bias=bias))
        if bias is None:
            mask = combined_mask(self.masks, context, heads)
            if self.normaliser.fuses_bias and mask.masked is not None:
                mask = Mask(bias=combined_bias(self.masks, context, heads, dtype))
            return self.normaliser.fused(call, mask)
        declined = bias.requires_grad and bias.device.type in WITHOUT_SLOPES
        if declined or not self.normaliser.fuses_bias:
            return None
        return self.normaliser.fused(call, Mask(bias=self._add_masks(bias, context, heads)))

    def _add_masks(self, bias: Tensor, context: AttentionContext, heads: slice) -> Tensor:
        """Return a bias with all masks in it; of one that all layers share, once for them all."""

        def compute() -> Tensor:
            return add_bias(bias, combined_bias(self.masks, context, heads, bias.dtype))

        if bias.requires_grad or not context.inputs.holds(bias):
            return compute()
        key = ("bias", id(bias), self.masks, heads.start, heads.stop)
        return context.inputs.cached(key, compute)


def widen(call: HeadCall) -> HeadCall:
    """Return the call with queries and keys as wide as values, which kernels take, and its scores.

    They get zeros, and queries a factor for the larger D in q k^T / sqrt(D).
    """
    narrow, wide = call.q.size(-1), call.v.size(-1)
    if narrow == wide:
        return call
    q = F.pad(call.q * (wide / narrow) ** 0.5, (0, wide - narrow))
    return call._replace(q=q, k=F.pad(call.k, (0, wide - narrow)))


class HeadPart(NamedTuple):
    """Neighbouring heads of a `group`.

    Attributes:
        heads: their places among all heads of the layer.
        learned: their places among its learned heads; none if they are hard-coded.
        own: their places in the group.
        observed: a recorder or the caller wants their maps.
    """

    group: HeadGroup
    heads: slice
    learned: slice
    own: slice
    observed: bool


def split_heads(
    groups: Iterable[HeadGroup],
    observed: Iterable[int],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    whole: bool = False,
) -> Iterator[tuple[HeadPart, tuple[Tensor, Tensor, Tensor]]]:
    """Return neighbouring heads, all observed or all unobserved (fused), with their q, k and v.

    Groups with observed heads that stand together are one part each if they are to be `whole`.
    """
    parts = list(_cut_groups(groups, set(observed), whole))
    if len(parts) == 1:
        return iter([(parts[0], (q, k, v))])
    k, v = (repeat_heads(x, q.size(1)) for x in (k, v))
    learned = [part.learned.stop - part.learned.start for part in parts]
    # unlike slices, with one gradient together; scorers of positions alone leave out q and k
    split = (cut_heads(x, learned) if x.size(1) else [x] * len(parts) for x in (q, k))
    values = cut_heads(v, [part.heads.stop - part.heads.start for part in parts])
    return zip(parts, zip(*split, values, strict=True), strict=True)


def _cut_groups(groups: Iterable[HeadGroup], observed: set[int], whole: bool) -> Iterator[HeadPart]:
    first = hard_coded = 0  # heads before this group; those of them that have no projections
    for group in groups:
        end = first + group.num_heads
        own = {h for h in observed if first <= h < end}
        if whole and own and max(own) - min(own) < len(own):
            own = set(range(first, end))
        starts = [h for h in range(first, end) if h == first or (h in own) != (h - 1 in own)]
        for start, stop in zip(starts, [*starts[1:], end], strict=True):
            learned = slice(start - hard_coded, stop - hard_coded) if group.learned else slice(0, 0)
            places = slice(start - first, stop - first)
            yield HeadPart(group, slice(start, stop), learned, places, start in own)
        first = end
        hard_coded += 0 if group.learned else group.num_heads


def check_groups(groups: Iterable[HeadGroup], num_heads: int, site: str) -> None:
    """Raise UsageError if the groups do not make up a layer, or one cannot stand at this site."""
    total = sum(group.num_heads for group in groups)
    if total != num_heads:
        raise UsageError(f"{site} attention: groups of {total} heads in all for {num_heads} heads.")
    encoders = [group for group in groups if group.scorer.encoder_only]
    if site in ("decoder", "cross") and encoders:
        raise UsageError(
            f"{site} attention cannot use a scorer of encoders alone, such as disentangled, whose "
            f"relative embeddings an encoder has; use --{site}-scorer dot"
        )
    if site == "cross" and any(group.scorer.in_sequence for group in groups):
        raise UsageError(
            "cross attention cannot use a scorer without content: scores of positions are those of "
            "one sequence; use --cross-scorer dot"
        )
    if site != "encoder" and any(group.normaliser.across_queries for group in groups):
        reason = "needs all queries at once" if site == "cross" else "lets a token see the future"
        raise UsageError(
            f"{site} attention cannot use a normaliser that looks across queries: it {reason}; "
            "use softmax there."
        )
