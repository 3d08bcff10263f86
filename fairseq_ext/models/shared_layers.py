"""One stack of layers that is both encoder and decoder: --share-encoder-decoder-layers.

The parts of a decoder layer are those of the encoder layer of its number, and its encoder-decoder
attention projects as self-attention does: 12 layers of width 768 with a vocabulary of 30,522 have
108.5 million parameters. Each side keeps the parts that only it has: the encoder its hybrid
weights, head gates and adversaries, the decoder the layer norm after encoder-decoder attention.
Parts outside of layers are not shared. A checkpoint has shared parts once, under the encoder's
names.
"""

from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_ext.errors import UsageError

FLAG = "--share-encoder-decoder-layers"

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")

PARTS = {
    **{part: part for part in ("self_attn_layer_norm", "fc1", "fc2", "final_layer_norm")},
    **{f"self_attn.{part}": f"self_attn.{part}" for part in PROJECTIONS},
    **{f"encoder_attn.{part}": f"self_attn.{part}" for part in PROJECTIONS},
}
"""Name of a part of a decoder layer -> name of the part of the encoder layer that replaces it."""


def share_layers(model: Any) -> None:
    """Replace the parts of decoder layers by the parts of encoder layers, in checkpoints too.

    `model.shared_parts` maps names of the decoder's parts to names of the encoder's.

    Raises:
        UsageError: parts differ in size.
    """
    model.shared_parts = {}
    # all layers, despite LayerDrop
    stacks = [side.layers.children() for side in (model.encoder, model.decoder)]
    for index, (encoder, decoder) in enumerate(zip(*stacks, strict=True)):
        for name, shared_name in PARTS.items():
            if name.startswith("encoder_attn") and decoder.encoder_attn is None:
                continue
            # a part is None if it is a projection of heads all hard-coded
            part, shared = attrgetter(name)(decoder), attrgetter(shared_name)(encoder)
            _check_sizes(name, part, shared)
            owner, _, attribute = name.rpartition(".")
            setattr(decoder.get_submodule(owner), attribute, shared)
            own = f"decoder.layers.{index}.{name}"
            model.shared_parts[own] = f"encoder.layers.{index}.{shared_name}"
    model.register_state_dict_post_hook(_drop_copies)
    model.register_load_state_dict_pre_hook(_add_copies)


def _check_sizes(name: str, part: nn.Module | None, other: nn.Module | None) -> None:
    sizes = [p and {n: tuple(x.shape) for n, x in p.named_parameters()} for p in (part, other)]
    if sizes[0] != sizes[1]:
        raise UsageError(
            f"{FLAG} needs as many hard-coded heads everywhere, and {name} differs from the "
            "encoder's; give --encoder-, --decoder- and --cross-gaussian-heads the same, and no "
            "--encoder-scorer or --decoder-scorer"
        )


def _drop_copies(model: Any, state: dict[str, Tensor], prefix: str, metadata: Any) -> None:
    """Remove the decoder's names of shared parameters from a state dict that is to be saved."""
    starts = tuple(f"{prefix}{name}." for name in model.shared_parts)
    for key in [key for key in state if key.startswith(starts)]:
        del state[key]


def _add_copies(model: Any, state: dict[str, Tensor], prefix: str, *unused: Any) -> None:
    """Add the decoder's names of shared parameters to a state dict that is to be loaded.

    Raises:
        UsageError: the decoder that was saved has parameters of its own.
    """
    for name, shared_name in model.shared_parts.items():
        for key in [key for key in state if key.startswith(f"{prefix}{shared_name}.")]:
            copy = f"{prefix}{name}{key.removeprefix(prefix + shared_name)}"
            saved = state.setdefault(copy, state[key])
            if saved is not state[key] and not torch.equal(saved, state[key]):
                raise UsageError(f"{copy} differs from {key}, which {FLAG} takes to be one")
