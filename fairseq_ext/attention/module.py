"""The one attention module: fairseq's parameters and cache, our forward."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from fairseq_ext.attention.context import AttentionContext, Inputs, as_inputs
from fairseq_ext.attention.head_groups import HeadGroup, check_groups, head_slices
from fairseq_ext.attention.masks import DEFAULT_MASKS
from fairseq_ext.attention.normalisers import Softmax
from fairseq_ext.attention.second_pass import SecondPass
from fairseq_ext.errors import UsageError

State = dict[str, dict[str, Tensor | None]]

ADDED = r"(adversary\.|gate$|groups\.\d+\.normaliser\.)"  # names of parameters


class Attention(MultiheadAttention):
    """Multi-head attention with the parameter names and incremental cache of fairseq's.

    Args:
        embed_dim, num_heads: C and H.
        site: "encoder", "decoder" (self-attention) or "cross".
        layer: index of the layer in its stack, from 0, fixed when the model is built.
        groups: the heads, in order; all softmax by default. Those that are hard-coded have no part
            in the query and key projections, which are absent (None) if all are.
        adversary: what an adversarial second pass asks for masks (self-attention).
        gated: each head's output is multiplied by a weight, which begins as 1.
        stock: further arguments of fairseq's MultiheadAttention.

    Attributes:
        learned: the heads that learn what they look at. free: those that may look at all.
        oldest: where what a cache must keep begins, if it need not be all.

    Raises:
        UsageError: H does not divide C, the groups do not add up to H, a normaliser that looks
            across queries stands where queries must not see each other, or an argument of fairseq's
            is not supported.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        site: str,
        layer: int = 0,
        groups: Sequence[HeadGroup] | None = None,
        adversary: nn.Module | None = None,
        gated: bool = False,
        **stock: Any,
    ) -> None:
        if num_heads < 1 or embed_dim % num_heads:
            raise UsageError(
                f"{site} attention: {num_heads} heads do not divide the width {embed_dim}; "
                "choose a number of heads that does."
            )
        for name in ("add_bias_kv", "add_zero_attn", "xformers_att_config"):
            if stock.get(name):
                raise UsageError(f"{name} is not supported; leave it out.")
        kind = {"encoder_decoder_attention" if site == "cross" else "self_attention": True}
        super().__init__(embed_dim, num_heads, **kind, **stock)
        self.site, self.layer, self.adversary = site, layer, adversary
        # from 1: in 16 bits a weight near 1 would hardly move
        self.gate = nn.Parameter(torch.zeros(num_heads)) if gated else None
        # the name that --retain-dropout-modules knows
        self.dropout_module.module_name = MultiheadAttention.__name__
        groups = groups or [HeadGroup(num_heads, normaliser=Softmax())]
        check_groups(groups, num_heads, site)
        self.groups: Iterable[HeadGroup] = nn.ModuleList(groups)  # type: ignore[assignment]
        owners = [group for group in groups for _ in range(group.n)]
        self.learned_heads = [head for head, group in enumerate(owners) if group.learned]
        self.unrestricted_heads = [
            head for head in self.learned_heads if owners[head].masks == DEFAULT_MASKS
        ]
        windows = [group.window or 0 for group in groups]
        self.cache_start = -max(windows) if self.self_attention and all(windows) else None
        if len(self.learned_heads) < num_heads:
            self._narrow(len(self.learned_heads) * self.head_dim)

    def _narrow(self, width: int) -> None:
        """Queries and keys for some of the heads, which begin as they would beside the others."""
        for name in ("q_proj", "k_proj"):
            projection = getattr(self, name)
            projection.out_features = width
            for part, value in list(projection.named_parameters()):
                setattr(projection, part, nn.Parameter(value.detach()[:width].clone()))
        if not width:
            self.q_proj = self.k_proj = None
            nn.init.xavier_uniform_(self.v_proj.weight)  # the usual gain is for q, k, v in one

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
            attn_mask: [T, S], boolean (True = masked) or additive (0 or large and negative). One
                that hides the future does so only from softmax and hard-coded heads.

        Returns:
            output [T, B, C] and, if asked for, the weights before dropout, in float32 or wider:
            [B, T, S] averaged over heads, or [H, B, T, S] with `need_head_weights`.
        """
        if before_softmax:
            raise UsageError(
                "before_softmax is not supported; observe maps with a AttentionRecorder."
            )
        inputs = as_inputs(key_padding_mask, attn_mask)
        if inputs.causal and any(group.normaliser.across_queries for group in self.groups):
            raise UsageError(
                "A normaliser that looks across queries cannot be causal: it would let a token see "
                "the future; use softmax."
            )
        q, k, v, context = self._project(query, key, value, inputs, incremental_state, static_kv)
        need_weights = need_weights or need_head_weights
        wanted = self._wanted(inputs)
        heard = list(range(self.num_heads)) if need_weights else wanted
        count = len(inputs.passes)
        split = query.chunk(count, 1), q.chunk(count), k.chunk(count), v.chunk(count)
        done = [
            self._attend(second, *rows, context, heard)
            for second, rows in zip(inputs.passes, zip(*split, strict=True), strict=True)
        ]
        out = _unfold(_join([out for out, _ in done], 0), context.beam)
        if self.gate is not None:
            out = out * (1 + self.gate)[:, None, None]
        output = self.out_proj(out.permute(2, 0, 1, 3).flatten(2))  # [B, H, T, D] -> [T, B, C]
        weights = done[0][1]
        if weights is None:
            return output, None
        maps = _unfold(weights, context.beam)  # [B, heard, T, S]
        if wanted and inputs.recorder is not None:
            all_of_them = wanted == heard  # no copy, and no indices sent to a GPU
            picked = maps if all_of_them else maps[:, [heard.index(head) for head in wanted]]
            inputs.recorder.record(self.site, self.layer, picked)
        if not need_weights:
            return output, None
        return output, maps.transpose(0, 1) if need_head_weights else maps.mean(1)

    def _attend(
        self,
        second: SecondPass | None,
        x: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        context: AttentionContext,
        heard: list[int],
    ) -> tuple[Tensor, Tensor | None]:
        """Output [B, H, T, D] of one pass over x [T, B, C] and, unless it is a second one, the maps
        [B, heard, T, S] of some heads."""
        bias = None
        if second is not None:
            bias, heard = second.bias(self, x, context), []
        drop = self.dropout_module
        rate = drop.p if self.training or drop.apply_during_inference else 0.0
        done = []
        for group, in_layer, in_projections, in_group, observed in head_slices(
            self.groups, set(heard)
        ):
            own = q[:, in_projections], k[:, in_projections], v[:, in_layer]
            here = context if bias is None else replace(context, bias=bias(in_layer))
            done.append(group.attend(*own, here, in_group, observed, rate))
        out = _join([out for out, _ in done], 1)
        return out, _join([w for _, w in done if w is not None], 1) if heard else None

    def statistics(self) -> dict[str, Callable[[], float]]:
        """What the normalisers report, and the weights of heads, by site, layer and name."""
        reported: dict[str, list[tuple[int, Callable[[], float]]]] = {}
        for group in self.groups:
            for name, value in group.normaliser.statistics().items():
                reported.setdefault(name, []).append((group.n, value))
        found = {name: partial(_mean, values) for name, values in reported.items()}
        for head, offset in enumerate(() if self.gate is None else self.gate):
            found[f"gate{head}"] = partial(_weight, offset)
        return {f"{self.site}{self.layer}_{name}": value for name, value in found.items()}

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """As in fairseq; what a mechanism adds is neither needed in a checkpoint nor in the way."""
        super().upgrade_state_dict_named(state_dict, name)
        added = re.compile(rf"{re.escape(name)}\.{ADDED}")
        own = {key: x for key, x in self.state_dict(prefix=f"{name}.").items() if added.match(key)}
        for key in [key for key in state_dict if added.match(key)]:
            if key not in own or own[key].shape != state_dict[key].shape:
                del state_dict[key]
        for key, value in own.items():
            state_dict.setdefault(key, value.clone())

    def _wanted(self, inputs: Inputs) -> list[int]:
        wanted = sorted(set(inputs.observed_heads(self.site, self.layer)))
        if wanted and not 0 <= wanted[0] <= wanted[-1] < self.num_heads:
            raise UsageError(
                f"A recorder wants heads {wanted} of {self.site} layer {self.layer}, "
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
    ) -> tuple[Tensor, Tensor, Tensor, AttentionContext]:
        """q [B, h, T, D] and k [B, h, S, D] of learned heads; v [B, H, S, D]; all that is cached.

        Hypotheses of a sentence are queries of it: B then counts sentences, T is larger.
        """
        old = {} if state is None else self._get_input_buffer(state)
        if static_kv and "prev_value" in old:
            k, v = old["prev_key"], old["prev_value"]
        else:
            k, v = self._split_heads(self.k_proj, key), self._split_heads(self.v_proj, value)
            if "prev_value" in old:
                k = torch.cat([old["prev_key"], k], 2)
                v = torch.cat([old["prev_value"], v], 2)
        beam = query.size(1) // v.size(0)
        if beam > 1 and not (inputs.masked is None and inputs.query_padding is None):
            raise UsageError(
                "Hypotheses share keys, which no mask is supported for; repeat the keys."
            )
        q = _fold(self._split_heads(self.q_proj, query), beam)
        padding = inputs.padding
        if state is not None:
            padding = self._cache(state, old, k, v, padding, static_kv, beam)
        own, queries = self.self_attention, query.size(0) * beam
        context = AttentionContext(
            inputs=inputs,
            queries=queries,
            keys=v.size(2),
            first_query=v.size(2) - queries if own else inputs.first_query,
            device=v.device,
            key_padding=padding,
            query_padding=inputs.padded_queries()
            if own and state is None
            else inputs.query_padding,
            cross=not own,
            beam=beam,
        )
        return q, k, v, context

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
            padding, old.get("prev_key_padding_mask"), v.size(0), v.size(2), static_kv
        )
        padding = None if padding is None else padding.bool()
        new = {
            "prev_key": k[:, :, self.cache_start :],
            "prev_value": v[:, :, self.cache_start :],
            "prev_key_padding_mask": None if padding is None else padding[:, self.cache_start :],
        }
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
        if cached["prev_value"].size(0) * beam != new_order.numel():
            kept = new_order.view(-1, beam)[:, 0] // beam
            cached = {n: None if x is None else x[kept] for n, x in cached.items()}
        return self._set_input_buffer(incremental_state, cached | {"beam": torch.tensor(beam)})

    def _split_heads(self, projection: nn.Module | None, x: Tensor) -> Tensor:
        """[T, B, C] -> [B, h, T, D] for the h heads of a projection, maybe none."""
        if projection is None:
            return x.new_empty(x.size(1), 0, x.size(0), self.head_dim)
        x = projection(x)
        return x.view(x.size(0), x.size(1), -1, self.head_dim).permute(1, 2, 0, 3)


def _join(parts: Sequence[Tensor], axis: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), axis)


def _mean(values: Sequence[tuple[int, Callable[[], float]]]) -> float:
    """Of what groups of so many heads report, over all heads."""
    return round(sum(n * value() for n, value in values) / sum(n for n, _ in values), 4)


def _weight(offset: Tensor) -> float:
    return round(1 + offset.item(), 4)


def _fold(x: Tensor, beam: int) -> Tensor:
    """[B * beam, H, T, D] -> [B, H, beam * T, D]."""
    return x if beam == 1 else x.unflatten(0, (-1, beam)).transpose(1, 2).flatten(2, 3)


def _unfold(x: Tensor, beam: int) -> Tensor:
    """[B, H, beam * T, D] -> [B * beam, H, T, D]."""
    return x if beam == 1 else x.unflatten(2, (beam, -1)).transpose(1, 2).flatten(0, 1)
