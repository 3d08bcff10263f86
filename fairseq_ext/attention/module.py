"""The one attention module: fairseq's parameters and cache, our forward."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import torch
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from fairseq_ext.attention.blockers import USUAL, Blocker, bias, block
from fairseq_ext.attention.inputs import Frame, Inputs
from fairseq_ext.attention.normalisers import Call, Normaliser, Softmax
from fairseq_ext.attention.scorers import Scorer, dot_product
from fairseq_ext.errors import UsageError

State = dict[str, dict[str, Tensor | None]]


class Heads(nn.Module):
    """A contiguous group of n heads that share what is in their slots."""

    def __init__(
        self,
        n: int,
        *,
        normaliser: Normaliser,
        scorer: Scorer = dot_product,
        blockers: tuple[Blocker, ...] = USUAL,
    ) -> None:
        super().__init__()
        self.n, self.scorer, self.blockers, self.normaliser = n, scorer, blockers, normaliser


class Attention(MultiheadAttention):
    """Multi-head attention with the parameter names and incremental cache of fairseq's.

    Args:
        embed_dim, num_heads: C and H.
        site: "encoder", "decoder" (self-attention) or "cross".
        layer: index of the layer in its stack, from 0, fixed when the model is built.
        groups: the heads, in order; all softmax by default.
        stock: further arguments of fairseq's MultiheadAttention.

    Raises:
        UsageError: H does not divide C, the groups do not add up to H, or a normaliser that looks
            across queries stands where queries must not see each other.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        site: str,
        layer: int = 0,
        groups: Sequence[Heads] | None = None,
        **stock: Any,
    ) -> None:
        if num_heads < 1 or embed_dim % num_heads:
            raise UsageError(
                f"{site} attention: {num_heads} heads do not divide the width {embed_dim}; "
                "choose a number of heads that does."
            )
        kind = {"encoder_decoder_attention" if site == "cross" else "self_attention": True}
        super().__init__(embed_dim, num_heads, **kind, **stock)
        self.site, self.layer = site, layer
        # the name that --retain-dropout-modules knows
        self.dropout_module.module_name = MultiheadAttention.__name__
        groups = groups or [Heads(num_heads, normaliser=Softmax())]
        _check_groups(groups, num_heads, site)
        self.groups: Iterable[Heads] = nn.ModuleList(groups)  # type: ignore[assignment]

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | Inputs | None = None,
        incremental_state: State | None = None,
        need_weights: bool = True,
        static_kv: bool = False,
        attn_mask: Tensor | None = None,
        before_softmax: bool = False,
        need_head_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend. Arguments as in fairseq; `key_padding_mask` may also be an :class:`Inputs`.

        Args:
            query: [T, B, C]. key, value: [S, B, C], or with fewer sentences than the queries have
                hypotheses: then each is that of as many in a row.
            attn_mask: [T, S], boolean (True = blocked) or additive (0 or large and negative).

        Returns:
            output [T, B, C] and, if asked for, the weights before dropout, in float32 or wider:
            [B, T, S] averaged over heads, or [H, B, T, S] with `need_head_weights`.
        """
        if before_softmax:
            raise UsageError("before_softmax is not supported; observe maps with a Listener.")
        inputs = _as_inputs(key_padding_mask, attn_mask)
        q, k, v, frame = self._project(query, key, value, inputs, incremental_state, static_kv)
        need_weights = need_weights or need_head_weights
        wanted = self._wanted(inputs)
        heard = list(range(self.num_heads)) if need_weights else wanted
        runs = [
            self._attend(group, q[:, at], k[:, at], v[:, at], frame, heads, observed)
            for group, at, heads, observed in _runs(self.groups, set(heard))
        ]
        beam = query.size(1) // q.size(0)
        out = _unfold(_join([out for out, _ in runs]), beam)
        output = self.out_proj(out.permute(2, 0, 1, 3).flatten(2))  # [B, H, T, D] -> [T, B, C]
        if not heard:
            return output, None
        weights = _join([weights for _, weights in runs if weights is not None])
        maps = _unfold(weights, beam)  # [B, heard, T, S]
        if wanted and inputs.listener is not None:
            picked = maps[:, [heard.index(head) for head in wanted]]
            inputs.listener.hear(self.site, self.layer, picked)
        if not need_weights:
            return output, None
        return output, maps.transpose(0, 1) if need_head_weights else maps.mean(1)

    def statistics(self) -> dict[str, Callable[[], float]]:
        """What the normalisers report, by site, layer and name."""
        prefix = f"{self.site}{self.layer}_"
        return {
            prefix + name: value
            for group in self.groups
            for name, value in group.normaliser.statistics().items()
        }

    def _attend(
        self,
        group: Heads,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        frame: Frame,
        heads: slice,
        observed: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Output [B, h, T, D] of heads of a group and, if observed, their weights [B, h, T, S]."""
        mask, drop = block(group.blockers, frame), self.dropout_module
        if not observed and group.scorer is dot_product:
            rate = drop.p if self.training or drop.apply_during_inference else 0.0
            call = Call(q, k, v, mask, frame.query_padding, heads, rate)
            out = group.normaliser.fused(call)
            if out is not None:
                return out, None
        scores = group.scorer(q, k, frame)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        closed = bias(group.blockers, frame, scores.dtype)
        weights = group.normaliser.weights(scores, closed, frame.query_padding, heads)
        return drop(weights.to(v.dtype)) @ v, weights if observed else None

    def _wanted(self, inputs: Inputs) -> list[int]:
        wanted = sorted(set(inputs.wanted(self.site, self.layer)))
        if wanted and not 0 <= wanted[0] <= wanted[-1] < self.num_heads:
            raise UsageError(
                f"A listener wants heads {wanted} of {self.site} layer {self.layer}, "
                f"which has heads 0 to {self.num_heads - 1}."
            )
        return wanted

    def _project(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        inputs: Inputs,
        state: State | None,
        static_kv: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Frame]:
        """q [B, H, T, D]; k and v [B, H, S, D], the cached prefix included.

        Hypotheses of a sentence are queries of it: B then counts sentences, T is larger.
        """
        old = {} if state is None else self._get_input_buffer(state)
        q = self._split_heads(self.q_proj(query))
        if static_kv and "prev_key" in old:
            k, v = old["prev_key"], old["prev_value"]
        else:
            k, v = self._split_heads(self.k_proj(key)), self._split_heads(self.v_proj(value))
            if "prev_key" in old:
                k = torch.cat([old["prev_key"], k], 2)
                v = torch.cat([old["prev_value"], v], 2)
        beam = q.size(0) // k.size(0)
        q = _fold(q, beam)
        padding = inputs.padding
        if state is not None:
            padding = self._cache(state, old, k, v, padding, static_kv, beam)
        own = self.self_attention
        frame = Frame(
            inputs=inputs,
            queries=q.size(2),
            keys=k.size(2),
            first=k.size(2) - q.size(2) if own else 0,
            device=q.device,
            key_padding=padding,
            query_padding=inputs.absent() if own and state is None else None,
        )
        return q, k, v, frame

    def _cache(
        self,
        state: State,
        old: dict[str, Tensor | None],
        k: Tensor,
        v: Tensor,
        padding: Tensor | None,
        static_kv: bool,
        beam: int,
    ) -> Tensor | None:
        """Store keys, values and padding for the next step; the padding [B, S] of all keys."""
        padding = self._append_prev_key_padding_mask(
            padding, old.get("prev_key_padding_mask"), k.size(0), k.size(2), static_kv
        )
        padding = None if padding is None else padding.bool()
        new = {"prev_key": k, "prev_value": v, "prev_key_padding_mask": padding}
        if beam > 1:
            new["beam"] = torch.tensor(beam)
        self._set_input_buffer(state, new)
        return padding

    def reorder_incremental_state(self, incremental_state: State, new_order: Tensor) -> State:
        """As in fairseq, for keys that hypotheses share as well."""
        cached = self._get_input_buffer(incremental_state)
        if "beam" not in cached:
            return super().reorder_incremental_state(incremental_state, new_order)
        beam = int(cached.pop("beam"))
        if cached["prev_key"].size(0) * beam != new_order.numel():
            kept = new_order.view(-1, beam)[:, 0] // beam
            cached = {n: None if x is None else x[kept] for n, x in cached.items()}
        return self._set_input_buffer(incremental_state, cached | {"beam": torch.tensor(beam)})

    def _split_heads(self, x: Tensor) -> Tensor:
        # [T, B, C] -> [B, H, T, D]
        return x.view(x.size(0), x.size(1), self.num_heads, -1).permute(1, 2, 0, 3)


def _join(heads: Sequence[Tensor]) -> Tensor:
    return heads[0] if len(heads) == 1 else torch.cat(list(heads), 1)


def _fold(x: Tensor, beam: int) -> Tensor:
    """[B * beam, H, T, D] -> [B, H, beam * T, D]."""
    return x if beam == 1 else x.unflatten(0, (-1, beam)).transpose(1, 2).flatten(2, 3)


def _unfold(x: Tensor, beam: int) -> Tensor:
    """[B, H, beam * T, D] -> [B * beam, H, T, D]."""
    return x if beam == 1 else x.unflatten(2, (beam, -1)).transpose(1, 2).flatten(0, 1)


def _as_inputs(padding: Tensor | Inputs | None, attn_mask: Tensor | None) -> Inputs:
    inputs = padding
    if not isinstance(inputs, Inputs):
        inputs = Inputs(None if inputs is None else inputs.bool())
    if attn_mask is None:
        return inputs
    if attn_mask.dtype != torch.bool:
        if not ((attn_mask == 0) | (attn_mask <= -1e4)).all():
            raise UsageError("attn_mask adds numbers to scores; give one of 0 and -inf, or a bool.")
        attn_mask = attn_mask < 0
    blocked = attn_mask if inputs.blocked is None else inputs.blocked | attn_mask
    return replace(inputs, blocked=blocked)


def _runs(groups: Iterable[Heads], heard: set[int]) -> Iterator[tuple[Heads, slice, slice, bool]]:
    """Groups, cut where observed heads meet unobserved ones, so that the latter stay fused.

    Yields the group, its heads here as counted in the layer and in the group, whether observed.
    """
    first = 0
    for group in groups:
        for observed, run in groupby(range(first, first + group.n), heard.__contains__):
            heads = list(run)
            at = slice(heads[0], heads[-1] + 1)
            yield group, at, slice(at.start - first, at.stop - first), observed
        first += group.n


def _check_groups(groups: Sequence[Heads], num_heads: int, site: str) -> None:
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
