"""Computations of models that become graphs: an encoder, and a step of a decoder with its cache.

Each takes and returns tensors by name.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from fairseq.modules import LearnedPositionalEmbedding, SinusoidalPositionalEmbedding
from fairseq.utils import make_positions
from torch import Tensor, nn

from fairseq_ext.attention import Attention, HeadGroup
from fairseq_ext.models.task_heads import Product

BATCH, LENGTH, PAST = "batch", "length", "past"
"""Names of dynamic sizes: B rows, S tokens in a row, and T decoded tokens in the cache."""

Tensors = dict[str, Tensor]


class Port(NamedTuple):
    """An input of a graph.

    Attributes:
        dtype: tokens are int64, padding is bool.
        shape: numbers, or names of dynamic sizes.
    """

    dtype: torch.dtype
    shape: tuple[str | int, ...]


class Computation(nn.Module):
    """Base of what becomes a graph.

    Attributes:
        name: of its file.
        inputs: the inputs by name.
        words: of the tokens that it reads.
        paired: rows are pairs of sentences, one after the other.
    """

    name: str
    inputs: dict[str, Port]
    words: Dictionary
    paired = False

    def forward(self, given: Tensors) -> Tensors:
        """Return outputs by name."""
        raise NotImplementedError


class Positions(nn.Module):
    """Embeddings of positions as fairseq's two classes compute them, whose code is not traceable.

    Args:
        stock: fairseq's.
    """

    table: Tensor

    def __init__(self, stock: Any) -> None:
        super().__init__()
        self.pad, learned = stock.padding_idx, isinstance(stock, nn.Embedding)
        self.register_buffer("table", (stock.weight if learned else stock.weights).detach())

    def forward(self, tokens: Tensor, incremental_state: Any = None) -> Tensor:
        """Return [B, S, C] for tokens [B, S] or, in a step of decoding, [1, 1, C] for the last."""
        if incremental_state is None:
            places = make_positions(tokens, self.pad)
        else:
            places = tokens.new_full((1, 1), self.pad + tokens.size(1))
        return F.embedding(places, self.table)


def prepare(model: nn.Module) -> None:
    """Change a model in place so that it can be traced, and computes the same.

    Caches keep all keys, so that they tell how many tokens were decoded. One kernel for all maps of
    a head is left out, whose strides in a graph would not be right for a single row.
    """
    for module in list(model.modules()):
        if isinstance(module, HeadGroup):
            module._attend_parts = lambda *_: None  # type: ignore[method-assign]
        if isinstance(module, Attention):
            module.cache_start = None
        for name, child in list(module.named_children()):
            if isinstance(child, LearnedPositionalEmbedding | SinusoidalPositionalEmbedding):
                setattr(module, name, Positions(child))


class Cache(NamedTuple):
    """Keys and values of an attention between two steps.

    Attributes:
        prefix: how the names of its two tensors begin.
        layer: how they end.
        length: the name of the number of keys.
    """

    prefix: str
    layer: int
    length: str
    attention: Attention

    def name(self, keys: Tensor, values: Tensor) -> Tensors:
        """Return both [B, h, S, D] by name; without keys if heads have none."""
        both = {"key": keys, "value": values}
        return {f"{self.prefix}{n}_{self.layer}": x for n, x in both.items() if x.size(1)}

    def list_ports(self) -> dict[str, Port]:
        """Return the two tensors as inputs of a graph."""
        one = torch.zeros(1, 1, self.attention.kdim)  # as wide as values are
        tensors = self.name(*self.attention.project_keys(one, one))
        return {
            name: Port(x.dtype, (BATCH, x.size(1), self.length, x.size(3)))
            for name, x in tensors.items()
        }

    def fill(self, state: dict, given: Tensors, padding: Tensor | None) -> None:
        """Put the two tensors into the state of a decoder."""
        values = given[f"{self.prefix}value_{self.layer}"]
        keys = given.get(f"{self.prefix}key_{self.layer}", values[:, :0])
        cached = {"prev_key": keys, "prev_value": values, "prev_key_padding_mask": padding}
        self.attention._set_input_buffer(state, cached)

    def read(self, state: dict) -> Tensors:
        """Return the two tensors of the state of a decoder by names that are no input's."""
        cached: Any = self.attention._get_input_buffer(state)
        longer = self.name(cached["prev_key"], cached["prev_value"])
        return {f"next_{name}": x for name, x in longer.items()}


def list_caches(model: Any, cross: bool) -> Iterator[Cache]:
    """Yield the caches of a decoder's attention to the encoder, or of its self-attention."""
    for number, layer in enumerate(model.decoder.layers.children()):
        attention = layer.encoder_attn if cross else layer.self_attn
        if attention is not None and attention.num_heads:
            yield Cache("memory_" * cross, number, LENGTH if cross else PAST, attention)


class SentenceEncoder(Computation):
    """The encoder of a RoBERTa-style model, with its head if it is wanted and there is one.

    Args:
        model: a `RobertaModel`.
        head: whether it is wanted.
    """

    name = "encoder"

    def __init__(self, model: Any, head: bool) -> None:
        super().__init__()
        self.model, encoder, self.words = model, model.encoder, model.encoder.dictionary
        self.head = head and (model.task_head is not None or encoder.lm_head is not None)
        self.further = list(model.classification_heads) if head else []
        if self.head and model.task_head is not None:
            self.paired = any(isinstance(m, Product) for m in model.task_head.modules())
        self.inputs = {"tokens": Port(torch.long, (BATCH, LENGTH))}
        if encoder.embed_segments is not None:
            self.inputs["segments"] = Port(torch.long, (BATCH, LENGTH))

    def forward(self, given: Tensors) -> Tensors:
        """Return features [B, S, C] and, with heads, logits [B, …] of each."""
        more = {"segments": given["segments"]} if "segments" in given else {}
        output, extra = self.model(
            given["tokens"],
            features_only=not self.head,
            further_heads=self.further,
            task_head=self.head,
            **more,
        )
        outputs = {"features": extra["features"]} | ({"logits": output} if self.head else {})
        return outputs | {f"logits_{name}": extra["heads"][name] for name in self.further}


class SourceEncoder(Computation):
    """The encoder of a translation model, with the keys and values that its decoder attends to."""

    name = "encoder"

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.encoder, self.words = model.encoder, model.encoder.dictionary
        self.caches = list(list_caches(model, True))
        self.attentions = nn.ModuleList(cache.attention for cache in self.caches)
        self.inputs = {"tokens": Port(torch.long, (BATCH, LENGTH))}

    def forward(self, given: Tensors) -> Tensors:
        """Return features [B, S, C], padding [B, S] as memory_padding, and keys and values."""
        encoded = self.encoder(given["tokens"])
        [features], [padding] = encoded["encoder_out"], encoded["encoder_padding_mask"]
        outputs = {"features": features.transpose(0, 1), "memory_padding": padding}
        for cache in self.caches:
            outputs |= cache.name(*cache.attention.project_keys(features, features))
        return outputs


class DecoderStep(Computation):
    """A step of the decoder of a translation or language model, which appends one token."""

    name = "decoder_step"

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.decoder, self.words = model.decoder, model.decoder.dictionary
        self.own, self.cross = (list(list_caches(model, cross)) for cross in (False, True))
        self.inputs = {"token": Port(torch.long, (BATCH, 1))}
        if self.cross:
            self.inputs["memory_padding"] = Port(torch.bool, (BATCH, LENGTH))
        for cache in (*self.own, *self.cross):
            self.inputs |= cache.list_ports()

    def forward(self, given: Tensors) -> Tensors:
        """Return log-probabilities [B, V] of what follows the token [B, 1], and longer caches."""
        state: dict = {}
        encoded, padding = None, given.get("memory_padding")
        if padding is not None:  # the encoder's output is not read where its keys are cached
            encoded = {"encoder_out": [padding], "encoder_padding_mask": [padding]}
        for cache in (*self.own, *self.cross):
            cache.fill(state, given, padding if cache in self.cross else None)
        past = given[f"value_{self.own[0].layer}"].size(2)
        tokens = given["token"].expand(-1, past + 1)  # of earlier ones only the number is read
        output = self.decoder(tokens, encoded, state, alignment_layer=-1)
        logs = self.decoder.get_normalized_probs(output, True, None)
        outputs = {"log_probabilities": logs[:, 0]}
        for cache in self.own:
            outputs |= cache.read(state)
        return outputs


def list_computations(model: Any, head: bool) -> list[Computation]:
    """Return what is computed of a model, which `prepare` has changed."""
    if not hasattr(model, "decoder"):
        return [SentenceEncoder(model, head)]
    step = DecoderStep(model)
    return [SourceEncoder(model), step] if hasattr(model, "encoder") else [step]
