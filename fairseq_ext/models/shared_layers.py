"""One stack of layers that is both encoder and decoder: --share-encoder-decoder-layers.

The parts of a decoder layer are those of the encoder layer of its number, and its encoder-decoder
attention projects as self-attention does: 12 layers of width 768 with a vocabulary of 30,522 have
108.5 million parameters. Each side keeps what only it has: the encoder its hybrid weights, gates of
heads and adversaries, the decoder the layer norm after encoder-decoder attention. What is outside
of layers is not shared. A checkpoint has what is shared once, under the encoder's names.
"""

from collections.abc import Iterator
from typing import Any

import torch
from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from fairseq_ext.errors import UsageError
from fairseq_ext.models.layers import DecoderLayer, EncoderLayer

FLAG = "--share-encoder-decoder-layers"

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")

PARTS = {
    **{part: part for part in ("self_attn_layer_norm", "fc1", "fc2", "final_layer_norm")},
    **{f"self_attn.{part}": f"self_attn.{part}" for part in PROJECTIONS},
    **{f"encoder_attn.{part}": f"self_attn.{part}" for part in PROJECTIONS},
}
"""Of a decoder layer, and what takes their place."""

ALIKE = (
    *("layers", "layers_to_keep", "attention_heads", "embed_dim", "ffn_embed_dim"),
    "normalize_before",
)
"""Options of both sides."""


def check_shareable(cfg: TransformerConfig) -> None:
    """Raises UsageError if the sides differ, or parameters are changed whenever they are used."""
    for name in ALIKE:
        one, other = (getattr(side, name) for side in (cfg.encoder, cfg.decoder))
        if one != other:
            flag = name.replace("_", "-")
            raise UsageError(
                f"{FLAG} makes one stack of layers, and --encoder-{flag} is {one} and "
                f"--decoder-{flag} {other}; give both the same"
            )
    if cfg.cross_attention_heads not in (0, cfg.decoder.attention_heads):
        raise UsageError(
            f"{FLAG} makes one stack of layers with {cfg.decoder.attention_heads} heads, and "
            f"--cross-attention-heads is {cfg.cross_attention_heads}; leave that out"
        )
    if cfg.quant_noise.pq or cfg.quant_noise.scalar:
        raise UsageError(
            f"{FLAG} does not go with --quant-noise-pq and --quant-noise-scalar, which change "
            "parameters whenever they are used; leave one of them out"
        )


def share_layers(model: nn.Module) -> None:
    """Put the parts of encoder layers in the place of those of decoder layers.

    Raises:
        UsageError: a layer is wrapped, or parts differ in size.
    """
    model.shared_parts = {}
    for index, layers in enumerate(zip(*(_layers(model, side) for side in SIDES), strict=True)):
        for name, (part, other) in _parts(*layers):
            _check_sizes(name, part, other)
            model.shared_parts[f"decoder.layers.{index}.{name}"] = (
                f"encoder.layers.{index}.{PARTS[name]}"
            )
            owner, _, attribute = name.rpartition(".")
            setattr(layers[1].get_submodule(owner), attribute, other)
    model.register_state_dict_post_hook(_leave_out)
    model.register_load_state_dict_pre_hook(_put_in)


SIDES = {"encoder": EncoderLayer, "decoder": DecoderLayer}


def _layers(model: nn.Module, side: str) -> list[nn.Module]:
    layers = [*getattr(model, side).layers.children()]  # all of them, despite LayerDrop
    if not all(isinstance(layer, SIDES[side]) for layer in layers):
        raise UsageError(
            f"{FLAG} goes neither with --ddp-backend fully_sharded, which would part layers, nor "
            "with --base-layers; leave one of them out"
        )
    return layers


def _parts(
    encoder: nn.Module, decoder: nn.Module
) -> Iterator[tuple[str, tuple[nn.Module | None, nn.Module | None]]]:
    """Name, part and what takes its place, for the parts that a decoder layer has."""
    for name, theirs in PARTS.items():
        if not name.startswith("encoder_attn") or decoder.encoder_attn is not None:
            yield name, (_part(decoder, name), _part(encoder, theirs))


def _part(layer: nn.Module, name: str) -> nn.Module | None:
    """That of a dotted name; None for a projection of heads that are all hard-coded."""
    owner, _, attribute = name.rpartition(".")
    return getattr(layer.get_submodule(owner), attribute)


def _check_sizes(name: str, part: nn.Module | None, other: nn.Module | None) -> None:
    sizes = [p and {n: tuple(x.shape) for n, x in p.named_parameters()} for p in (part, other)]
    if sizes[0] != sizes[1]:
        raise UsageError(
            f"{FLAG} needs as many hard-coded heads everywhere, and {name} differs from the "
            "encoder's; give --encoder-gaussian-heads, --decoder-gaussian-heads and "
            "--cross-gaussian-heads the same"
        )


def _leave_out(model: nn.Module, state: dict[str, Tensor], prefix: str, metadata: Any) -> None:
    starts = tuple(f"{prefix}{name}." for name in model.shared_parts)
    for key in [key for key in state if key.startswith(starts)]:
        del state[key]


def _put_in(model: nn.Module, state: dict[str, Tensor], prefix: str, *unused: Any) -> None:
    """What is saved once, as often as modules ask for it.

    Raises:
        UsageError: the decoder that was saved has parameters of its own.
    """
    for name, source in model.shared_parts.items():
        ours, theirs = f"{prefix}{name}.", f"{prefix}{source}."
        for key in [key for key in state if key.startswith(theirs)]:
            own = ours + key.removeprefix(theirs)
            saved = state.setdefault(own, state[key])
            if saved is not state[key] and not torch.equal(saved, state[key]):
                raise UsageError(f"{own} differs from {key}, which {FLAG} takes to be one")
