"""Projections of attention to queries, keys and values, with fairseq's incremental cache."""

import torch
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from fairseq_ext.attention.context import AttentionContext, Inputs
from fairseq_ext.errors import UsageError

State = dict[str, dict[str, Tensor | None]]


class CachedProjections(MultiheadAttention):
    """The projections and incremental cache of fairseq's MultiheadAttention, in shape [B, H, T, D].

    Hypotheses of a sentence may share its keys: they then become further queries of it, B counts
    sentences, and T is `beam` times as large.

    Attributes:
        cache_start: first position that a cache must keep, counted from the end; None keeps all.
    """

    cache_start: int | None = None
    v_proj: nn.Linear | None

    def narrow(self, queries: int, keys: int, values: int) -> None:
        """Cut the projections to widths, after their initialisation.

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
        output.in_features = values
        output.weight = nn.Parameter(output.weight.detach()[:, :values].clone())
        if not queries and not keys and self.v_proj is not None:
            nn.init.xavier_uniform_(self.v_proj.weight)  # fairseq's gain is for q, k and v in one

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

        Keys and values include those that are cached.

        Raises:
            UsageError: hypotheses share keys, and there is a mask.
        """
        cached = {} if state is None else self._get_input_buffer(state)
        k, v = cached.get("prev_key"), cached.get("prev_value")
        if k is None or v is None or not static_kv:
            k = _append(k, self._split_heads(self.k_proj, key))
            v = _append(v, self._split_heads(self.v_proj, value))
        beam = query.size(1) // len(v) if len(v) else 1
        if beam > 1 and not (inputs.masked is None and inputs.query_padding is None):
            raise UsageError("Hypotheses share keys: masks are not supported; repeat the keys.")
        q = self._split_heads(self.q_proj, query)
        if beam > 1:  # [B * beam, H, T, D] -> [B, H, beam * T, D]
            q = q.unflatten(0, (-1, beam)).transpose(1, 2).flatten(2, 3)
        padding = inputs.padding
        if state is not None:
            padding = self._append_prev_key_padding_mask(
                padding, cached.get("prev_key_padding_mask"), v.size(0), v.size(2), static_kv
            )
            padding = None if padding is None else padding.bool()
            self._store(state, k, v, padding, beam)
        queries, keys, cross = query.size(0) * beam, v.size(2), not self.self_attention
        first_query = inputs.first_query if cross else keys - queries
        given_padding = cross or state is not None  # else queries are padded where keys are
        own_padding = inputs.query_padding if given_padding else inputs.padded_queries()
        context = AttentionContext(
            inputs, queries, keys, first_query, v.device, padding, own_padding, cross, beam
        )
        return q, k, v, context

    def _split_heads(self, projection: nn.Module | None, x: Tensor) -> Tensor:
        """Return the h heads, maybe none, of a projection: [T, B, C] -> [B, h, T, D]."""
        if projection is None:
            return x.new_empty(x.size(1), 0, x.size(0), self.head_dim)
        return projection(x).unflatten(-1, (-1, self.head_dim)).permute(1, 2, 0, 3)

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
        """Let each row of the cache belong to a number of hypotheses, which it was computed for."""
        cached = {} if state is None else self._get_input_buffer(state)
        if not cached:
            return
        if self.self_attention:  # they will differ from now on
            for name, x in cached.items():
                cached[name] = None if x is None else x.repeat_interleave(beam, 0)
        else:
            cached["beam"] = torch.tensor(beam)
        self._set_input_buffer(state, cached)

    def reorder_incremental_state(self, incremental_state: State, new_order: Tensor) -> State:
        """Reorder the cache as fairseq does, also where hypotheses share keys."""
        cached = self._get_input_buffer(incremental_state)
        if "beam" not in cached:
            return super().reorder_incremental_state(incremental_state, new_order)
        beam = int(cached.pop("beam"))
        if cached["prev_value"].size(0) * beam != new_order.numel():
            sentences = new_order.view(-1, beam)[:, 0] // beam
            cached = {name: None if x is None else x[sentences] for name, x in cached.items()}
        return self._set_input_buffer(incremental_state, cached | {"beam": torch.tensor(beam)})


def split_beam(x: Tensor, beam: int) -> Tensor:
    """Return the queries of each hypothesis apart: [B, H, beam * T, D] -> [B * beam, H, T, D]."""
    return x if beam == 1 else x.unflatten(2, (beam, -1)).transpose(1, 2).flatten(0, 1)


def _append(cached: Tensor | None, new: Tensor) -> Tensor:
    """Return the cached keys or values [B, h, S, D] followed by the new ones."""
    return new if cached is None else torch.cat([cached, new], 2)
