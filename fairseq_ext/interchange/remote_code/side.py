"""A side of an exported model, encoder or decoder: its description, and attention built from it."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor, nn

from fairseq_ext.attention.building import build_attention
from fairseq_ext.attention.context import AttentionContext, Inputs
from fairseq_ext.attention.module import Attention


class CachedAttention(Attention):
    """Attention whose keys and values are in a cache of transformers', and padding in `Inputs`."""

    def project(
        self, query: Tensor, key: Tensor, value: Tensor, inputs: Inputs, state: Any, *unused: Any
    ) -> tuple[Tensor, Tensor, Tensor, AttentionContext]:
        """Return q [B, H, T, D], k and v [B, G, S, D] with those that are cached, and a context."""
        q, cross = self._split_heads(self.q_proj, query, self.q_norm), not self.self_attention
        if cross and state is not None and state.get_seq_length(self.layer):
            v, k = state.layers[self.layer].keys, state.layers[self.layer].values
        else:
            k = self._split_heads(self.k_proj, key, self.k_norm)
            v = self._split_heads(self.v_proj, value)
            if state is not None:  # the first of both says how long it is, and keys may lack heads
                v, k = state.update(v, k, self.layer)
        first = inputs.first_query if cross else v.size(2) - q.size(2)
        padding = inputs.query_padding
        if not cross and not first and not inputs.causal:
            padding = inputs.padded_queries()
        sizes = q.size(2), v.size(2), first, v.device
        return q, k, v, AttentionContext(inputs, *sizes, inputs.padding, padding, cross)


@dataclass
class Side:
    """An encoder or a decoder.

    Attributes:
        site: of its self-attention.
        symbols: V.
        embedding: the width of embeddings, which is projected if it is not C.
        width: C.
        inner: the width of feed-forward layers.
        heads: of each layer, before any was pruned.
        heads_left: of each layer.
        kv_heads: that share keys and values; 0: all have their own.
        numbers: of layers in training.
        attends: layers with attention to an encoder.
        memory: the width of the encoder's output.
        rows: of learned positions.
        first: the row of the first token.
        cross: heads, heads_left and kv_heads of that attention.
        output: the width of what leaves, or 0 if it is C.
    """

    site: str
    symbols: int
    embedding: int
    width: int
    inner: int
    heads: int
    heads_left: list[int]
    kv_heads: int
    numbers: list[int]
    normalize_before: bool
    final_norm: bool
    norm_embedding: bool
    positions: str
    rows: int
    first: int
    scale: float
    activation: str
    norm: str
    ffn: str
    biases: bool
    qk_norm: bool
    dropout: float
    attention_dropout: float
    activation_dropout: float
    attends: list[int]
    memory: int
    cross: dict[str, Any]
    output: int
    options: dict[str, Any]

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> "Side":
        """Return the side that config.json describes."""
        return cls(**{field.name: values[field.name] for field in fields(cls)})

    def build_norm(self) -> nn.Module:
        """Build a norm of features [..., C]."""
        if self.norm == "rms":
            return nn.RMSNorm(self.width, eps=1e-5)
        return nn.LayerNorm(self.width, bias=self.biases)

    def build_attention(self, index: int, site: str) -> Attention:
        """Build the attention of a layer at a site."""
        cross, sizes = site == "cross", self.cross
        if not cross:
            own = self.heads, self.heads_left, self.kv_heads
            sizes = dict(zip(("heads", "heads_left", "kv_heads"), own, strict=True))
        return build_attention(
            self.width,
            sizes["heads"],
            self.options,
            site=site,
            layer=index,
            layers=len(self.numbers),
            heads_left=sizes["heads_left"][index],
            number=self.numbers[index],
            kind=CachedAttention,
            dropout=self.attention_dropout,
            relative_dropout=self.dropout,
            bias=self.biases,
            kv_heads=sizes["kv_heads"] or None,
            qk_norm=self.qk_norm,
            **({"kdim": self.memory, "vdim": self.memory} if cross else {}),
        )
