"""Transformer layers: fairseq's forward around our attention."""

from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import TransformerConfig
from fairseq.modules.transformer_layer import (
    TransformerDecoderLayerBase,
    TransformerEncoderLayerBase,
)
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from fairseq_ext.attention import Attention, HeadGroup, build_normaliser
from fairseq_ext.models.adversaries import build_adversary
from fairseq_ext.models.hard_coded import hard_coded_heads
from fairseq_ext.models.options import ENCODER_OPTIONS, OPTIONS
from fairseq_ext.models.role_heads import role_heads


def build_attention(site: str, layer: int, cfg: TransformerConfig) -> Attention:
    """The attention at a site ("encoder", "decoder", "cross") of a layer, as configured."""
    side, table = (cfg.encoder, ENCODER_OPTIONS) if site == "encoder" else (cfg.decoder, OPTIONS)
    options = {name: getattr(cfg, name) for name, *_ in table}
    heads = count_heads(site, side.attention_heads, options)
    width_of_keys = {"kdim": cfg.encoder.embed_dim, "vdim": cfg.encoder.embed_dim}
    return Attention(
        side.embed_dim,
        heads,
        site=site,
        layer=layer,
        groups=build_heads(site, layer, heads, side.layers, options),
        adversary=build_adversary(site, layer, cfg),
        gated=cfg.head_gate and site == "encoder",
        dropout=cfg.attention_dropout,
        q_noise=cfg.quant_noise.pq,
        qn_block_size=cfg.quant_noise.pq_block_size,
        **(width_of_keys if site == "cross" else {}),
    )


def count_heads(site: str, heads: int, options: dict[str, Any]) -> int:
    """How many of them a site has, on the side of the model that has `heads`."""
    return (options["cross_attention_heads"] if site == "cross" else 0) or heads


def build_heads(
    site: str, layer: int, heads: int, layers: int, options: dict[str, Any]
) -> list[HeadGroup]:
    """The groups of a layer's heads: hard-coded ones first, then those with roles, then others."""
    normaliser = partial(build_normaliser, options[f"{site}_normaliser"], **options)
    hard_coded = hard_coded_heads(site, layer, heads, layers, options)
    groups = [] if hard_coded is None else [hard_coded]
    rest = heads - sum(group.num_heads for group in groups)
    if site == "encoder":
        groups += role_heads(layer, rest, layers, normaliser, options)
    rest = heads - sum(group.num_heads for group in groups)
    return [*groups, HeadGroup(rest, normaliser=normaliser(rest))] if rest else groups


def wrap_layer(layer: nn.Module, cfg: TransformerConfig) -> nn.Module:
    """FSDP as fairseq applies it: a checkpointed layer is always wrapped, whatever its size."""
    return fsdp_wrap(
        layer, min_num_params=0 if cfg.checkpoint_activations else cfg.min_params_to_wrap
    )


class Checkpointed(nn.Module):
    """Activation checkpointing (and offloading) of a layer, as its configuration says.

    Non-reentrant, unlike fairseq's: reentrant checkpointing silently drops the gradient of a loss
    on attention maps, which are not among the outputs of a layer.
    """

    def __init__(self, cfg: TransformerConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(cfg, *args, **kwargs)
        self.checkpointed, self.offloaded = cfg.checkpoint_activations, cfg.offload_activations

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not (self.checkpointed and torch.is_grad_enabled()):
            return super().forward(*args, **kwargs)
        with save_on_cpu() if self.offloaded else nullcontext():
            return checkpoint(super().forward, *args, use_reentrant=False, **kwargs)


def name_dropouts(layer: nn.Module, base: type) -> None:
    """As --retain-dropout-modules knows them."""
    for dropout in (layer.dropout_module, layer.activation_dropout_module):
        dropout.module_name = base.__name__


class EncoderLayer(Checkpointed, TransformerEncoderLayerBase):
    """fairseq's encoder layer; `Inputs` travel as its `encoder_padding_mask`."""

    def __init__(self, cfg: TransformerConfig, index: int) -> None:
        self.index = index  # needed while the base class builds its attention
        super().__init__(cfg)
        name_dropouts(self, TransformerEncoderLayerBase)

    def build_self_attention(self, embed_dim: int, cfg: TransformerConfig) -> Attention:
        return build_attention("encoder", self.index, cfg)


class DecoderLayer(Checkpointed, TransformerDecoderLayerBase):
    """fairseq's decoder layer; `Inputs` travel as its two padding masks."""

    def __init__(self, cfg: TransformerConfig, index: int, no_encoder_attn: bool = False) -> None:
        self.index = index
        super().__init__(cfg, no_encoder_attn)
        name_dropouts(self, TransformerDecoderLayerBase)
        # in evaluation fairseq makes the cross-attention map of every layer and reads one
        self.need_attn = False

    def build_self_attention(
        self, embed_dim: int, cfg: TransformerConfig, **unused: Any
    ) -> Attention:
        return build_attention("decoder", self.index, cfg)

    def build_encoder_attention(self, embed_dim: int, cfg: TransformerConfig) -> Attention:
        return build_attention("cross", self.index, cfg)

    def make_generation_fast_(self, **unused: Any) -> None:
        """Nothing to do: only the map of the alignment layer is ever made."""
