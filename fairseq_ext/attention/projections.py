"""Projections of attention to queries, keys and values, with the cache of incremental decoding.

Names of parameters, the form of the cache and the methods that fairseq calls are those of its
MultiheadAttention, so that its checkpoints load, and its layers and its beam search run with ours.
"""

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_ext.attention.context import AttentionContext, Inputs
from fairseq_ext.errors import UsageError

logger = logging.getLogger(__name__)

State = dict[str, dict[str, Tensor | None]]

STOCK_NAME = "MultiheadAttention"
"""The name by which fairseq's --retain-dropout-modules knows attention."""


class Dropout(nn.Module):
    """Dropout that --retain-dropout can keep in generation, as it keeps fairseq's.

    Args:
        p: the probability that an element is dropped.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p, self.module_name, self.apply_during_inference = p, STOCK_NAME, False

    def rate(self) -> float:
        """Return the probability that an element is dropped now."""
        return self.p if self.training or self.apply_during_inference else 0.0

    def forward(self, x: Tensor) -> Tensor:
        """Return x with some elements dropped, and the others divided by 1 - p."""
        rate = self.rate()
        return F.dropout(x, rate) if rate else x

    def make_generation_fast_(
        self,
        name: str,
        retain_dropout: bool = False,
        retain_dropout_modules: Sequence[str] | None = None,
        **unused: Any,
    ) -> None:
        """Keep dropout in generation, if it is asked for; fairseq calls this."""
        if not retain_dropout:
            return
        named = retain_dropout_modules
        self.apply_during_inference = named is None or self.module_name in named
        if self.apply_during_inference:
            logger.info("Enabling dropout during inference for module: %s", name)
        else:
            logger.info("Disabling dropout for module: %s", name)


class CachedProjections(nn.Module):
    """The projections and incremental cache of attention, in shape [B, H, T, D].

    Hypotheses of a sentence may share its keys: they then become further queries of it, B counts
    sentences, and T is `beam` times as large.

    Args:
        embed_dim: C.
        num_heads: H before any was pruned; the width of a head is D = C / H.
        cross: attention is from one sequence to another.
        kdim, vdim: the widths of what keys and values are made of (default: C).
        dropout: the probability that a weight is dropped.
        bias: projections have one.
        wrap: applied to each projection when it is built, for quantisation noise.

    Attributes:
        cache_start: first position that a cache must keep, counted from the end; None keeps all.
    """

    cache_start: int | None = None
    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    out_proj: nn.Linear

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        cross: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        wrap: Callable[[nn.Linear], nn.Linear] = lambda linear: linear,
    ) -> None:
        super().__init__()
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        self.head_dim, self.self_attention = embed_dim // num_heads, not cross
        self.encoder_decoder_attention = cross
        self.dropout_module = Dropout(dropout)
        # in fairseq's order, so that one seed gives the same parameters
        self.k_proj = wrap(nn.Linear(self.kdim, embed_dim, bias))
        self.v_proj = wrap(nn.Linear(self.vdim, embed_dim, bias))
        self.q_proj = wrap(nn.Linear(embed_dim, embed_dim, bias))
        self.out_proj = wrap(nn.Linear(embed_dim, embed_dim, bias))
        self.q_norm: nn.Module | None = None
        self.k_norm: nn.Module | None = None
        self.reset_parameters()
        self._state_key = f"{uuid4()}.attn_state"

    def reset_parameters(self) -> None:
        """Initialise the projections as fairseq does."""
        alike = self.kdim == self.vdim == self.embed_dim
        for projection in (self.k_proj, self.v_proj, self.q_proj):
            nn.init.xavier_uniform_(projection.weight, 1 / math.sqrt(2) if alike else 1)
        nn.init.xavier_uniform_(self.out_proj.weight)
        if self.out_proj.bias is not None:
            nn.init.zeros_(self.out_proj.bias)

    def narrow(self, queries: int, keys: int, values: int, mixed: int) -> None:
        """Cut the projections to widths, after their initialisation; `mixed` enters the output's.

        Heads that keep theirs thus start as they would in a layer that has all projections.
        """
        for name, width in {"q_proj": queries, "k_proj": keys, "v_proj": values}.items():
            projection = getattr(self, name)
            projection.out_features = width
            for part, value in list(projection.named_parameters()):
                setattr(projection, part, nn.Parameter(value.detach()[:width].clone()))
            if not width:
                setattr(self, name, None)
        output = self.out_proj
        output.in_features = mixed
        output.weight = nn.Parameter(output.weight.detach()[:, :mixed].clone())
        if not queries and not keys and values:
            nn.init.xavier_uniform_(self.v_proj.weight)  # the gain is for q, k and v in one

    def project(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        inputs: Inputs,
        state: State | None,
        static_kv: bool,
    ) -> tuple[Tensor, Tensor, Tensor, AttentionContext]:
        """Return q [B, h, T, D] and k [B, h, S, D] of learned heads, v [B, H, S, D], and a context.

        Keys and values include those that are cached; there are fewer heads if some share them.

        Raises:
            UsageError: hypotheses share keys, and there is a mask.
        """
        cached = {} if state is None else self._get_input_buffer(state)
        k, v = cached.get("prev_key"), cached.get("prev_value")
        if k is None or v is None or not static_kv:
            own = self.project_keys(key, value)
            k, v = _append(k, own[0]), _append(v, own[1])
        beam = query.size(1) // v.size(0) if v.size(0) else 1
        if beam > 1 and not (inputs.masked is None and inputs.query_padding is None):
            raise UsageError("Hypotheses share keys: masks are not supported; repeat the keys.")
        q = self._split_heads(self.q_proj, query, self.q_norm)
        if beam > 1:  # [B * beam, H, T, D] -> [B, H, beam * T, D]
            q = q.unflatten(0, (-1, beam)).transpose(1, 2).flatten(2, 3)
        padding = inputs.padding
        if state is not None:
            padding = _append_padding(
                cached.get("prev_key_padding_mask"), padding, v.size(0), v.size(2), static_kv
            )
            self._store(state, k, v, padding, beam)
        queries, keys, cross = query.size(0) * beam, v.size(2), not self.self_attention
        first_query = inputs.first_query if cross else keys - queries
        given_padding = cross or state is not None  # else queries are padded where keys are
        own_padding = inputs.query_padding if given_padding else inputs.padded_queries()
        context = AttentionContext(
            inputs, queries, keys, first_query, v.device, padding, own_padding, cross, beam
        )
        return q, k, v, context

    def project_keys(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return k and v [B, h, S, D] of what keys and values are made of, [S, B, C] each."""
        keys = self._split_heads(self.k_proj, key, self.k_norm)
        return keys, self._split_heads(self.v_proj, value)

    def _split_heads(
        self, projection: nn.Module | None, x: Tensor, norm: nn.Module | None = None
    ) -> Tensor:
        """Return the h heads, maybe none, of a projection: [T, B, C] -> [B, h, T, D]."""
        if projection is None:
            return x.new_empty(x.size(1), 0, x.size(0), self.head_dim)
        heads = projection(x).unflatten(-1, (-1, self.head_dim))
        return (heads if norm is None else norm(heads)).permute(1, 2, 0, 3)

    def _get_input_buffer(self, state: State | None) -> dict[str, Tensor | None]:
        """Return the cache: keys and values [B, h, S, D], and padding [B, S] or None."""
        if not state:  # a compiled graph of one layer is that of all if it does not read the key
            return {}
        return state.get(self._state_key) or {}

    def _set_input_buffer(self, state: State, buffer: dict[str, Tensor | None]) -> State:
        """Replace the cache."""
        state[self._state_key] = buffer
        return state

    def _store(self, state: State, k: Tensor, v: Tensor, padding: Tensor | None, beam: int) -> None:
        """Cache keys and values [B, h, S, D] and padding [B, S] for the next step."""
        start = self.cache_start
        cached = {
            "prev_key": k[:, :, start:],
            "prev_value": v[:, :, start:],
            "prev_key_padding_mask": None if padding is None else padding[:, start:],
        }
        if beam > 1:
            cached["beam"] = torch.tensor(beam)
        self._set_input_buffer(state, cached)

    def share(self, state: State | None, beam: int) -> None:
        """Let each row of the cache serve `beam` hypotheses."""
        cached = {} if state is None else self._get_input_buffer(state)
        if state is None or not cached:
            return
        if self.self_attention:  # they will differ from now on
            for name, x in cached.items():
                cached[name] = None if x is None else x.repeat_interleave(beam, 0)
        else:
            cached["beam"] = torch.tensor(beam)
        self._set_input_buffer(state, cached)

    def reorder_incremental_state(self, incremental_state: State, new_order: Tensor) -> State:
        """Reorder the cache by hypotheses [B * beam], also where these share keys."""
        cached = dict(self._get_input_buffer(incremental_state))
        if (values := cached.get("prev_value")) is None:
            return incremental_state
        shared = cached.pop("beam", None)
        beam = 1 if shared is None else int(shared)
        if self.encoder_decoder_attention and len(values) * beam == new_order.numel():
            return incremental_state  # hypotheses of a sentence have the same keys
        rows = new_order if beam == 1 else new_order.view(-1, beam)[:, 0] // beam
        cached = {n: None if x is None else x.index_select(0, rows) for n, x in cached.items()}
        return self._set_input_buffer(
            incremental_state, cached | ({} if shared is None else {"beam": shared})
        )

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Part the projection to queries, keys and values that early versions of fairseq have."""
        prefix = f"{name}." if name else ""
        for kind in ("weight", "bias"):
            joint = state_dict.pop(f"{prefix}in_proj_{kind}", None)
            if joint is None:
                continue
            for projection, part in zip("qkv", joint.chunk(3), strict=True):
                state_dict[f"{prefix}{projection}_proj.{kind}"] = part


def split_beam(x: Tensor, beam: int) -> Tensor:
    """Return the queries of each hypothesis apart: [B, H, beam * T, D] -> [B * beam, H, T, D]."""
    return x if beam == 1 else x.unflatten(2, (beam, -1)).transpose(1, 2).flatten(0, 1)


def cut_heads(x: Tensor, sizes: list[int]) -> list[Tensor]:
    """Return some heads each of [B, H, T, D]; gradients are joined as projections want them."""
    return [part.permute(1, 2, 0, 3) for part in x.permute(2, 0, 1, 3).split(sizes, 2)]


def _append(cached: Tensor | None, new: Tensor) -> Tensor:
    """Return the cached keys or values [B, h, S, D] followed by the new ones."""
    return new if cached is None else torch.cat([cached, new], 2)


def _append_padding(
    cached: Tensor | None, new: Tensor | None, sentences: int, keys: int, static: bool
) -> Tensor | None:
    """Return the padding [B, S] of cached and new keys, or None; what is not said is none."""
    if cached is None and new is None or static and cached is not None:
        return cached
    parts = [x.bool() for x in (cached, new) if x is not None]
    rest = keys - sum(x.size(1) for x in parts)
    if rest > 0:
        filler = parts[0].new_zeros(sentences, rest)
        parts.insert(1 if cached is not None else 0, filler)
    return torch.cat(parts, 1)


def join_outputs(parts: Sequence[Tensor], axis: int) -> Tensor:
    """Return [B, H, T, D] joined, in memory as the output projection reads it: with time first."""
    if len(parts) == 1:
        return parts[0]
    joined = torch.cat([x.permute(2, 0, 1, 3) for x in parts], axis + 1)
    return joined.permute(1, 2, 0, 3)
