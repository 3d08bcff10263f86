"""The one attention module, with fairseq's parameters and cache and one forward of slots."""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_ext.attention.context import (
    AttentionContext,
    ExtraPass,
    HeadCall,
    Inputs,
    Meter,
    as_inputs,
    split_passes,
)
from fairseq_ext.attention.gates import HeadGate, gate_heads, gate_weight
from fairseq_ext.attention.head_groups import HeadGroup, check_groups, split_heads
from fairseq_ext.attention.head_mixers import HeadMixer, check_mixer
from fairseq_ext.attention.masks import DEFAULT_MASKS
from fairseq_ext.attention.normalisers import Softmax
from fairseq_ext.attention.projections import CachedProjections, State, join_outputs, split_beam
from fairseq_ext.attention.regrouping import check_shape, regroup
from fairseq_ext.attention.scorers import Scorer
from fairseq_ext.attention.shared_heads import check_product, check_shared_heads
from fairseq_ext.errors import UsageError

OWN_PARAMETERS = r"(adversary\.|gate(\.|$)|groups\.|mixer\.)"

HEADS_FLAGS = {
    "encoder": "--encoder-attention-heads",
    "decoder": "--decoder-attention-heads",
    "cross": "--cross-attention-heads (or, if it is 0, --decoder-attention-heads)",
}
"""Site of attention -> the flag of its number of heads."""


class Attention(CachedProjections):
    """Multi-head attention with the parameter names and incremental cache of fairseq's.

    Args:
        embed_dim: C.
        num_heads: H; the width of a head is D = C / H.
        heads_left: the heads that there are, fewer than C / D if others were pruned. Without any,
            the output is the bias of the output projection.
        site: "encoder", "decoder" (self-attention) or "cross".
        layer: index of the layer in its stack, from 0, fixed when the model is built.
        groups: the heads, in order; all softmax by default. Heads that are not learned have no part
            in the query and key projections, which are absent (None) if no head is.
        adversary: what an extra pass asks for masks (self-attention).
        gate: of the heads' outputs: a module, or a weight for each head, as an offset from 1.
        mixer: of the maps of learned heads.
        relative_dropout: of embeddings of relative positions, for scorers that have them.
        kv_heads: G heads of keys and values, which groups of heads share (default: H).
        qk_norm: the queries and keys of each head are RMSNorm(q) and RMSNorm(k), with gains [D].
        projections: further arguments of `CachedProjections`.

    Attributes:
        learned_heads: heads that learn what they look at.
        renames_only: whether the parameters of mechanisms in a checkpoint stay as they are.
        unrestricted_heads: learned heads with the default masks, which may look at every token.
        plain_heads: their maps are the softmax of q k^T / sqrt(D), and nothing mixes them.
        num_maps: how many maps are normalised: H, or more if a mixer makes several of each head.

    Raises:
        UsageError: H does not divide C, the groups do not add up to H, a normaliser that looks
            across queries stands where queries must not see each other, or a mixer has no meaning
            for the heads.
    """

    renames_only = False

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        site: str,
        layer: int = 0,
        heads_left: int | None = None,
        groups: Sequence[HeadGroup] | None = None,
        adversary: nn.Module | None = None,
        gate: HeadGate | nn.Parameter | None = None,
        mixer: HeadMixer | None = None,
        relative_dropout: float = 0.0,
        kv_heads: int | None = None,
        qk_norm: bool = False,
        **projections: Any,
    ) -> None:
        if num_heads < 1 or embed_dim % num_heads:
            raise UsageError(
                f"{HEADS_FLAGS.get(site, site)} is {num_heads}, and {num_heads} heads do not "
                f"divide the width {embed_dim}; choose a number of heads that does"
            )
        super().__init__(embed_dim, num_heads, cross=site == "cross", **projections)
        self.site, self.layer, self.adversary = site, layer, adversary
        self.num_heads = num_heads if heads_left is None else heads_left
        self.gate, self.mixer = gate, mixer
        if groups is None:
            groups = [HeadGroup(self.num_heads, normaliser=Softmax())]
        check_groups(groups, self.num_heads, site)
        if mixer is not None:
            check_mixer(mixer, groups, adversary, site)
        self.groups: Iterable[HeadGroup] = nn.ModuleList(groups)  # type: ignore[assignment]
        self._describe_heads(groups, 1 if mixer is None else mixer.parts)
        if kv_heads is not None:
            check_shared_heads(site, kv_heads, self.num_heads, num_heads, groups)
        learned = [group.scorer for group in groups if group.learned]
        if min(widths := self._measure_projections(learned, kv_heads or 0)) < embed_dim:
            self.narrow(*widths)
        if qk_norm and learned:
            check_product(site, learned)
            self.q_norm, self.k_norm = (nn.RMSNorm(self.head_dim, 1e-5) for _ in "qk")
        sizes = embed_dim, widths[0], relative_dropout
        built = (scorer.build_projections(*sizes) for scorer in learned)
        self.relative: Any = next((module for module in built if module is not None), None)

    def _describe_heads(self, groups: Sequence[HeadGroup], parts: int) -> None:
        """Set the attributes of heads, each with so many maps, and where the cache may begin."""
        for group in groups:
            if group.positions is not None:
                group.positions.check_width(self.head_dim // parts)
        owners = [group for group in groups for _ in range(group.num_heads)]
        self.learned_heads = [head for head, group in enumerate(owners) if group.learned]
        self.num_maps = len(owners) + len(self.learned_heads) * (parts - 1)
        unmasked = {head for head, group in enumerate(owners) if group.masks == DEFAULT_MASKS}
        self.unrestricted_heads = [head for head in self.learned_heads if head in unmasked]
        self.plain_heads = {h for h, g in enumerate(owners) if g.is_plain and self.mixer is None}
        windows = [group.window or 0 for group in groups]
        windowed = all(windows) and len(unmasked) == len(owners)  # other masks may count keys
        self.cache_start = -max(windows) if self.self_attention and windows and windowed else None

    def _measure_projections(self, learned: Sequence[Scorer], kv_heads: int) -> list[int]:
        """Return the widths of queries, keys, values and outputs; 0 kv_heads are one for each."""
        width, every = len(self.learned_heads) * self.head_dim, self.num_heads * self.head_dim
        queries = width * any(scorer.uses_queries for scorer in learned)
        keys = width * any(scorer.uses_keys for scorer in learned)
        shared = kv_heads * self.head_dim
        return [queries, shared or keys, shared or every, every]

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
        """Attend; arguments are fairseq's, and `key_padding_mask` may also be an :class:`Inputs`.

        Args:
            query: [T, B, C].
            key: [S, B, C], or with fewer sentences than the queries have hypotheses: then each
                sentence belongs to as many neighbouring hypotheses.
            value: like key.
            attn_mask: [T, S], boolean (True = masked) or additive (0 or large and negative). A mask
                of the future does not hide it from normalisers that look across queries.

        Returns:
            output [T, B, C] and, if asked for, the weights before dropout (after it, if the
            recorder wants dropped ones), in float32 or wider: [B, T, S] averaged over heads, or
            [H, B, T, S] with `need_head_weights`; None without heads.

        Raises:
            UsageError: the arguments ask for something that is not supported.
        """
        if before_softmax:
            raise UsageError("before_softmax is not supported; use an AttentionRecorder.")
        if not self.num_heads:
            return self.out_proj(query[..., :0]), None  # not of zeros: DDP wants a gradient
        inputs = as_inputs(key_padding_mask, attn_mask)
        if inputs.keys is not None:
            key = value = inputs.keys
        if inputs.causal:
            check_groups(self.groups, self.num_heads, "causal")
        need_weights = need_weights or need_head_weights
        recorded = inputs.observed_heads(self.site, self.layer, self.num_heads)
        together = self.mixer is not None and self.mixer.mixes_heads
        every = need_weights or (recorded and together)
        observed = list(range(self.num_heads)) if every else recorded
        # project
        q, k, v, context = self.project(query, key, value, inputs, incremental_state, static_kv)
        relative = None if self.relative is None else self.relative(self, inputs, context.keys)
        # score, bias, mask, normalise, drop out and mix values: pass by pass, group by group
        n = len(inputs.passes)
        parts = split_passes(q, n), split_passes(k, n), split_passes(v, n)
        rows, meter = zip(inputs.passes, split_passes(query, n, 1), *parts, strict=True), None
        if inputs.recorder and recorded and not every and self.plain_heads.issuperset(recorded):
            sized = (x[: x.size(0) // n, : len(recorded)] for x in (q, k))
            meter = inputs.recorder.build_meter(self.site, self.layer, *sized)
        results = [self._attend(*row, context, observed, relative, meter) for row in rows]
        out = split_beam(join_outputs([out for out, _ in results], 0), context.beam)  # [B, H, T, D]
        maps = results[0][1]  # [B, observed heads, T, S], or what the meter records
        if maps is not None:
            maps = split_beam(maps, context.beam)
            self._record(maps, observed, recorded, inputs)
        # gate heads, and output
        out = gate_heads(self.gate, out, query)
        output = self.out_proj(out.permute(2, 0, 1, 3).flatten(2))  # [B, H, T, D] -> [T, B, C]
        if not self.learned_heads:  # in cross-attention nothing else reads queries; see above
            output = output + query[..., :0].sum()
        if maps is None or not need_weights:
            return output, None
        return output, maps.transpose(0, 1) if need_head_weights else maps.mean(1)

    def _record(self, maps: Tensor, heads: list[int], wanted: list[int], inputs: Inputs) -> None:
        """Give the recorder the wanted ones of the maps [B, heads, T, S]."""
        if wanted and inputs.recorder is not None:
            if wanted != heads:  # else no copy, and no indices sent to a GPU
                maps = maps[:, [heads.index(head) for head in wanted]]
            inputs.recorder.record(self.site, self.layer, maps)

    def _attend(
        self,
        extra: ExtraPass | None,
        x: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        context: AttentionContext,
        observed: list[int],
        relative: Any,
        meter: Meter | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend in one pass, whose input is x [T, B, C]: from scores to mixed values.

        Returns:
            output [B, H, T, D] and, except in an extra pass, maps or what the meter records.
        """
        bias = None
        if extra is not None:
            bias, observed = extra.bias(self, x, context), []
        dropout, results = self.dropout_module.rate(), []
        whole = meter is not None and meter.all_heads
        for part, qkv in split_heads(self.groups, observed, q, k, v, whole):
            part_bias = None if bias is None else bias(part.heads)
            tables = relative and relative.select(part.learned)
            call = HeadCall(*qkv, context, part.own, dropout, part_bias, tables)
            if meter is not None and part.observed:
                call = call._replace(meter=meter.select(observed, part.heads))
            mixer = self.mixer if part.group.learned else None
            results.append(part.group.attend(call, part.observed, mixer))
        maps = [weights for _, weights in results if weights is not None]
        every = torch.cat(maps, 1) if len(maps) > 1 else next(iter(maps), None)
        return join_outputs([out for out, _ in results], 1), every

    def statistics(self) -> dict[str, Callable[[], float]]:
        """Return statistics of normalisers, mixer and gate, by site, layer and name."""
        names = dict.fromkeys(name for g in self.groups for name in g.normaliser.statistics())
        statistics: dict[str, Callable[[], float]] = {
            name: partial(self._mean_statistic, name) for name in names
        }
        if self.mixer is not None:
            statistics |= self.mixer.statistics()
        if isinstance(self.gate, Tensor):
            statistics |= {f"gate{h}": partial(gate_weight, x) for h, x in enumerate(self.gate)}
        elif self.gate is not None:
            statistics |= self.gate.statistics()
        return {f"{self.site}{self.layer}_{name}": value for name, value in statistics.items()}

    def _mean_statistic(self, name: str) -> float:
        """Return the mean of what groups report under this name, over the heads of these groups."""
        reported = [(group.num_heads, group.normaliser.statistics()) for group in self.groups]
        values = [(heads, each[name]()) for heads, each in reported if name in each]
        return round(sum(n * value for n, value in values) / sum(n for n, _ in values), 4)

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Upgrade a checkpoint as fairseq does, and add the parameters of mechanisms.

        A checkpoint needs no such parameters: our initial values replace absent ones. Heads that
        have gained or lost a role keep theirs. What this model does not have is left out.

        Raises:
            UsageError: a parameter has another shape here for another reason.
        """
        super().upgrade_state_dict_named(state_dict, name)
        if self.renames_only:
            return
        pattern = re.compile(rf"{re.escape(name)}\.{OWN_PARAMETERS}")
        own = {k: x for k, x in self.state_dict(prefix=f"{name}.").items() if pattern.match(k)}
        regroup(state_dict, own, f"{name}.groups.")
        heads = {self.num_heads, *(group.num_heads for group in self.groups)}
        for key in filter(pattern.match, list(state_dict)):
            if key not in own or own[key].shape != state_dict[key].shape:
                saved = state_dict.pop(key)
                check_shape(key, saved.shape, own.get(key, saved).shape, heads)
        for key, value in own.items():
            state_dict.setdefault(key, value.clone())
