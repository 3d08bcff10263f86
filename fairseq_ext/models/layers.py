"""Transformer layers with our attention in fairseq's forward, and passes through stacks of them."""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import transformer_layer as stock
from fairseq.modules.quant_noise import quant_noise
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from fairseq_ext.attention import Attention, Inputs, building
from fairseq_ext.attention.positions import share_parameters
from fairseq_ext.mechanisms.second_pass.adversary import build_adversary
from fairseq_ext.mechanisms.second_pass.passes import SecondPass
from fairseq_ext.models.compilation import is_compiled, run_compiled
from fairseq_ext.models.deberta import DECODING_STEPS, build_convolution
from fairseq_ext.models.layer_forms import FormedLayer
from fairseq_ext.models.options import ENCODER_OPTIONS, OPTIONS


def build_attention(site: str, layer: int, cfg: TransformerConfig) -> Attention:
    """Build the attention at a site ("encoder", "decoder", "cross") of a layer."""
    side, table = (cfg.encoder, ENCODER_OPTIONS) if site == "encoder" else (cfg.decoder, OPTIONS)
    options = {name: getattr(cfg, name) for name, *_ in table}
    whole = building.count_heads(site, side.attention_heads, options)
    heads = building.list_heads_left(site, whole, side.layers, options)[layer]
    adversary = None
    if site == "encoder":
        adversary = build_adversary(layer, side.layers, heads, whole, side.embed_dim, options)
    width_of_keys = {"kdim": cfg.encoder.embed_dim, "vdim": cfg.encoder.embed_dim}
    return building.build_attention(
        side.embed_dim,
        whole,
        options,
        site=site,
        layer=layer,
        layers=side.layers,
        heads_left=heads,
        number=_number_in_training(side, layer),
        adversary=adversary,
        relative_dropout=cfg.dropout,
        dropout=cfg.attention_dropout,
        bias=not cfg.no_biases,
        kv_heads=options[f"{site}_kv_heads"] or None,
        qk_norm=cfg.qk_norm,
        wrap=partial(quant_noise, p=cfg.quant_noise.pq, block_size=cfg.quant_noise.pq_block_size),
        **(width_of_keys if site == "cross" else {}),
    )


def _number_in_training(side: Any, layer: int) -> int:
    """Return the number that a layer had in training; --…-layers-to-keep leaves some out since."""
    kept = side.layers_to_keep
    return sorted(map(int, kept.split(",")))[layer] if kept else layer


def is_checkpointed(cfg: TransformerConfig) -> bool:
    """Return whether layers are checkpointed, which fairseq's flag for offloading implies."""
    return cfg.checkpoint_activations or cfg.offload_activations


class Checkpointed(nn.Module):
    """Mixin for compiling a layer, and for its activation checkpointing (and offloading).

    It is non-reentrant, unlike fairseq's: reentrant checkpointing silently drops the gradient of a
    loss on attention maps, which are not among the outputs of a layer.
    """

    def __init__(self, cfg: TransformerConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(cfg, *args, **kwargs)
        self.checkpointed, self.offloaded = is_checkpointed(cfg), cfg.offload_activations
        self.compiled = is_compiled()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the layer, and compute it again for its gradient if it is checkpointed."""
        compute = super().forward
        if self.compiled:
            compute = partial(run_compiled, compute.__func__, self)  # type: ignore[attr-defined]
        if not (self.checkpointed and torch.is_grad_enabled()):
            return compute(*args, **kwargs)
        pinned = torch.cuda.is_available()  # else copies wait for each other
        with save_on_cpu(pin_memory=pinned) if self.offloaded else nullcontext():
            return checkpoint(compute, *args, use_reentrant=False, **kwargs)


def _name_dropouts(layer: Any, base: type) -> None:
    """Give dropouts the name by which --retain-dropout-modules knows them."""
    for dropout in (layer.dropout_module, layer.activation_dropout_module):
        dropout.module_name = base.__name__


class EncoderLayer(Checkpointed, FormedLayer, stock.TransformerEncoderLayerBase):
    """An encoder layer of fairseq's; `Inputs` travel as its `encoder_padding_mask`."""

    def __init__(self, cfg: TransformerConfig, index: int) -> None:
        self.index = index  # needed while the base class builds its attention
        super().__init__(cfg)
        _name_dropouts(self, stock.TransformerEncoderLayerBase)
        self.convolution = build_convolution(index, cfg)

    def forward(self, x: Tensor, encoder_padding_mask: Any, attn_mask: Any = None) -> Any:
        """Compute the layer and, in the first one, the convolution of what enters it, if any."""
        hidden = super().forward(x, encoder_padding_mask, attn_mask)
        decodes = isinstance(encoder_padding_mask, Inputs) and encoder_padding_mask.keys is not None
        if self.convolution is None or decodes:
            return hidden
        return self.convolution(_clear_padding(x, encoder_padding_mask), hidden)

    def build_self_attention(self, embed_dim: int, cfg: TransformerConfig) -> Attention:
        """Build the attention between tokens of the source."""
        return build_attention("encoder", self.index, cfg)


def _clear_padding(x: Tensor, padding: Tensor | Inputs | None) -> Tensor:
    """Return [S, B, C] with zeros at padding, which --asa-padded-length leaves embedded."""
    padding = padding.padding if isinstance(padding, Inputs) else padding
    if padding is None:
        return x
    passes = x.size(1) // padding.size(0)
    return x.masked_fill(padding.T.repeat(1, passes)[:, :, None], 0.0)


class DecoderLayer(Checkpointed, FormedLayer, stock.TransformerDecoderLayerBase):
    """A decoder layer of fairseq's; `Inputs` travel as its two padding masks."""

    def __init__(self, cfg: TransformerConfig, index: int, no_encoder_attn: bool = False) -> None:
        self.index = index
        super().__init__(cfg, no_encoder_attn)
        _name_dropouts(self, stock.TransformerDecoderLayerBase)
        # in evaluation fairseq makes the cross-attention map of every layer and reads one
        self.need_attn = False

    def build_self_attention(self, embed_dim: int, cfg: TransformerConfig, **_: Any) -> Attention:
        """Build the attention between tokens of the target."""
        return build_attention("decoder", self.index, cfg)

    def build_encoder_attention(self, embed_dim: int, cfg: TransformerConfig) -> Attention:
        """Build the attention from the target to the source."""
        return build_attention("cross", self.index, cfg)

    def make_generation_fast_(self, **unused: Any) -> None:
        """Do nothing: only the map of the alignment layer is ever made."""


def share_positions(layers: nn.ModuleList) -> None:
    """Let the self-attention of all layers share parameters of positions that are for all."""
    own = [m for m in layers.modules() if isinstance(m, Attention) and m.self_attention]
    share_parameters(own)


def build_relative_embeddings(layers: nn.ModuleList, width: int) -> nn.Module | None:
    """Build the embeddings of distances that disentangled attention in layers of width C shares."""
    attentions = [m for m in layers.modules() if isinstance(m, Attention)]
    scorers = [a.relative.scorer for a in attentions if a.relative is not None]
    return scorers[0].build_embeddings(width) if scorers else None


def count_positions(layers: nn.ModuleList, most: int) -> int:
    """Return how many tokens the self-attention of all layers takes, `most` or fewer."""
    own = [m for m in layers.modules() if isinstance(m, Attention) and m.self_attention]
    lengths = [group.scorer.length for attention in own for group in attention.groups]
    return int(min([most, *lengths]))


def run_layers(layers: Iterable[nn.Module], x: Tensor, inputs: Inputs) -> list[Tensor]:
    """Return x [S, B, C] and the output of each layer, [S, B, C] too."""
    states = [x]
    for layer in layers:
        states.append(layer(states[-1], inputs))
    return states


def run_layers_twice(
    layers: Sequence[Any], x: Tensor, inputs: Inputs, second: SecondPass
) -> tuple[list[Tensor], list[Tensor]]:
    """Run encoder layers for the first and the second pass; layers below its first one run once.

    Args:
        layers: the layers that LayerDrop leaves, the same ones for both passes.

    Returns:
        the states of the first pass, as `run_layers` does, and the last two, or the last one if
        there is no layer, of both passes [S, 2 B, C].
    """
    shared = sum(layer.index < second.first for layer in layers)
    states = run_layers(layers[:shared], x, inputs)
    x, above = states[-1], layers[shared:]
    if second.one_batch:
        both = run_layers(above, torch.cat([x, x], 1), replace(inputs, passes=(None, second)))
        return states + [state.chunk(2, 1)[0] for state in both[1:]], both[-2:]
    first = run_layers(above, x, inputs)
    other = run_layers(above, x, replace(inputs, recorder=None, passes=(second,)))
    last = zip(first[-2:], other[-2:], strict=True)
    return states + first[1:], [torch.cat(pair, 1) for pair in last]


def decode_masks(
    layer: nn.Module, x: Tensor, positions: Tensor, inputs: Inputs, second: SecondPass | None
) -> Tensor:
    """Return what predicts masked tokens: the last layer's output for queries with positions.

    This is DeBERTa's enhanced mask decoder: q_1 = x + positions, q_(n + 1) = layer(q_n), where keys
    and values are always those of x.

    Args:
        layer: the last layer.
        x: [S, B, C], what entered it; of both passes [S, 2 B, C] if there is a second one.
        positions: [S, B, C].
    """
    passes = (None,) if second is None else (None, second)
    inputs = replace(inputs, keys=x, recorder=None, passes=passes)
    queries = x + torch.cat([positions] * len(passes), 1)
    for _ in range(DECODING_STEPS):
        queries = layer(queries, inputs)
    return queries
