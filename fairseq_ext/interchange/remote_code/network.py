"""Networks of exported models: fairseq's Transformer around our attention, with torch alone.

Names of parameters are those of fairseq_ext. A network is described by plain data, as config.json
has it: see `side.Side`.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_ext.attention.context import Inputs
from fairseq_ext.attention.module import Attention
from fairseq_ext.interchange.remote_code.side import Side

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_accurate": partial(F.gelu, approximate="tanh"),
    "gelu_fast": partial(F.gelu, approximate="tanh"),
    "tanh": torch.tanh,
    "linear": nn.Identity(),
}
GATES: dict[str, Callable[[Tensor], Tensor]] = {"swiglu": F.silu, "geglu": F.gelu}


class Layer(nn.Module):
    """A layer of an encoder or a decoder."""

    def __init__(self, side: Side, index: int) -> None:
        super().__init__()
        self.side = side
        self.self_attn = side.build_attention(index, side.site)
        self.self_attn_layer_norm = side.build_norm()
        attends = index in side.attends
        self.encoder_attn = side.build_attention(index, "cross") if attends else None
        self.encoder_attn_layer_norm = side.build_norm() if attends else None
        gated = side.ffn in GATES
        self.fc1 = nn.Linear(side.width, side.inner * (1 + gated), side.biases)
        self.fc2 = nn.Linear(side.inner, side.width, side.biases)
        self.final_layer_norm = side.build_norm()

    def forward(
        self, x: Tensor, own: Inputs, memory: Any = None, source: Any = None, cache: Any = None
    ) -> Tensor:
        """Return [T, B, C] of x [T, B, C] and the encoder's output [S, B, C].

        Args:
            cache: those of self-attention and of attention to the encoder, or None.
        """
        caches = (None, None) if cache is None else cache

        def attend(attention: nn.Module, keys: Tensor | None, inputs: Inputs, state: Any) -> Any:
            def compute(x: Tensor) -> Tensor:
                y = x if keys is None else keys
                return attention(x, y, y, inputs, state, need_weights=False)[0]

            return compute

        x = self._add(x, self.self_attn_layer_norm, attend(self.self_attn, None, own, caches[0]))
        if self.encoder_attn is not None:
            attended = attend(self.encoder_attn, memory, source, caches[1])
            x = self._add(x, self.encoder_attn_layer_norm, attended)
        return self._add(x, self.final_layer_norm, self._feed_forward)

    def _add(self, x: Tensor, norm: Any, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the residual sum, normalised before or after."""
        before = self.side.normalize_before
        y = compute(norm(x) if before else x)
        x = x + F.dropout(y, self.side.dropout, self.training)
        return x if before else norm(x)

    def _feed_forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        if gate := GATES.get(self.side.ffn):
            gating, gated = x.chunk(2, -1)
            x = gate(gating) * gated
        else:
            x = ACTIVATIONS[self.side.activation](x)
        return self.fc2(F.dropout(x, self.side.activation_dropout, self.training))


class Stack(nn.Module):
    """Embeddings and layers of an encoder or a decoder.

    Args:
        values: see `side.Side`.
        pad: the number of the padding symbol.
        segments: how many there are, embedded outside.
    """

    def __init__(self, values: Mapping[str, Any], pad: int) -> None:
        super().__init__()
        self.side, self.pad = side, _ = Side.read(values), pad
        self.embed_tokens = nn.Embedding(side.symbols, side.embedding, pad)
        learned = side.positions == "learned"
        self.embed_positions = nn.Embedding(side.rows, side.width) if learned else None
        project = side.embedding != side.width
        self.project_in_dim = nn.Linear(side.embedding, side.width, False) if project else None
        self.layernorm_embedding = side.build_norm() if side.norm_embedding else None
        self.layers = nn.ModuleList([Layer(side, i) for i in range(len(side.numbers))])
        self.relative = self._build_relative()
        self.layer_norm = side.build_norm() if side.final_norm else None
        self.project_out_dim = nn.Linear(side.width, side.output, False) if side.output else None

    def _build_relative(self) -> nn.Module | None:
        """Build the embeddings of distances that the layers share, or return None."""
        attentions = [m for m in self.layers.modules() if isinstance(m, Attention)]
        scorers = [a.relative.scorer for a in attentions if a.relative is not None]
        return scorers[0].build_embeddings(self.side.width) if scorers else None

    def forward(
        self,
        tokens: Tensor,
        padding: Tensor | None,
        added: Tensor | None = None,
        memory: Tensor | None = None,
        memory_padding: Tensor | None = None,
        cache: Any = None,
        past: int = 0,
        recorder: Any = None,
    ) -> Tensor:
        """Return [B, T, C] of tokens [B, T].

        Args:
            padding: [B, past + T] bool, True at padding; None if there is none.
            added: what is added to embeddings, [B, T, C].
            memory: the encoder's output [B, S, C].
            memory_padding: [B, S] bool.
            cache: see `Layer`.
            past: how many tokens are cached.
            recorder: an `AttentionRecorder`.
        """
        causal = self.side.site == "decoder"
        x = self.side.scale * self.embed_tokens(tokens)
        x = x if added is None else x + self.side.scale * added
        x = x if self.project_in_dim is None else self.project_in_dim(x)
        if (places := self._embed_positions(tokens, padding, past)) is not None:
            x = x + places.to(x.dtype)
        x = x if self.layernorm_embedding is None else self.layernorm_embedding(x)
        x = F.dropout(x, self.side.dropout, self.training)
        if padding is not None and not causal:
            x = x.masked_fill(padding[..., None], 0.0)
        x = x.transpose(0, 1)
        own = Inputs(padding, causal, recorder=recorder)
        own.relative = None if self.relative is None else self.relative()
        source = Inputs(memory_padding, recorder=recorder, first_query=past)
        source.query_padding = None if past else padding
        keys = None if memory is None else memory.transpose(0, 1)
        for layer in self.layers:
            x = layer(x, own, keys, source, cache)
        x = x if self.layer_norm is None else self.layer_norm(x)
        x = x if self.project_out_dim is None else self.project_out_dim(x)
        return x.transpose(0, 1)

    def _embed_positions(self, tokens: Tensor, padding: Tensor | None, past: int) -> Tensor | None:
        """Return [B or 1, T, C], or None without embedded positions; real tokens are counted."""
        if self.side.positions not in ("learned", "sinusoidal"):
            return None
        first = self.side.first
        if padding is None:
            places = torch.arange(past, past + tokens.size(1), device=tokens.device)[None] + first
        else:
            real = (~padding).long()
            places = (real.cumsum(1) * real + first - 1)[:, past:]
        if self.embed_positions is not None:
            return self.embed_positions(places)
        half = self.side.width // 2
        step = torch.log(torch.tensor(10000.0)) / (half - 1)
        rates = torch.exp(torch.arange(half, dtype=torch.float32, device=tokens.device) * -step)
        angles = places[..., None].float() * rates
        waves = torch.cat([angles.sin(), angles.cos()], -1)
        waves = F.pad(waves, (0, self.side.width % 2))
        return waves.masked_fill((places < first)[..., None], 0.0)


class Head(nn.Module):
    """RoBERTa's head for masked language modelling.

    Args:
        symbols: V.
        activation: a name of ACTIVATIONS.
    """

    def __init__(self, width: int, symbols: int, activation: str) -> None:
        super().__init__()
        self.dense, self.layer_norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.activation = activation
        self.weight = nn.Parameter(torch.empty(symbols, width).normal_(std=width**-0.5))
        self.bias = nn.Parameter(torch.zeros(symbols))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [..., V] of features [..., C]."""
        x = self.layer_norm(ACTIVATIONS[self.activation](self.dense(x)))
        return F.linear(x, self.weight, self.bias)
