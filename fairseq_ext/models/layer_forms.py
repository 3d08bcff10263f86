"""Forms of layers around attention: RMSNorm, gated feed-forward layers, layers without biases."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_ext.attention.options import Rule, option

GATED: dict[str, Callable[[Tensor], Tensor]] = {"swiglu": F.silu, "geglu": F.gelu}
"""Feed-forward layer with a gate -> the activation function of the gate."""


def keep_deberta(off: Any) -> Rule:
    """Return the rule that DeBERTa, or another model with its scorer, has a form switched off."""
    return Rule(
        "encoder_scorer",
        "{one} does not go with {other}, whose layers are those of released DeBERTas; leave one "
        "of them out",
        lambda value, scorer: value not in (None, off) and scorer == "disentangled",
    )


@dataclass
class FormOptions:
    """Options of the form of layers.

    Attributes:
        norm: normalisation of layers, of embeddings and of what leaves the last layer: layer, or
            rms, which neither subtracts the mean nor has a bias (Zhang & Sennrich 2019)
        ffn: feed-forward layers: plain, or with a gate, swiglu or geglu (Shazeer 2020), which has
            silu or gelu in the place of --activation-fn; their inner width is what the output
            projection reads
        no_biases: linear maps and norms of layers have no biases
        qk_norm: normalise the queries and keys of each head by RMSNorm before their product
    """

    norm: Literal["layer", "rms"] = option("layer", alike=True, excludes=keep_deberta("layer"))
    ffn: Literal["plain", "swiglu", "geglu"] = option(
        "plain", alike=True, excludes=keep_deberta("plain")
    )
    no_biases: bool = option(False, alike=True, excludes=keep_deberta(False))
    qk_norm: bool = option(False, alike=True, excludes=keep_deberta(False))


def gate(activation: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return activation(x_1) x_2 of the two halves of the last axis."""
    gating, gated = x.chunk(2, -1)
    return activation(gating) * gated


def set_form(module: nn.Module, cfg: Any) -> None:
    """Give the norms and linear maps that are children of a module the form of the options.

    RMSNorm(x) = x / sqrt(mean(x^2) + eps) g (Zhang & Sennrich 2019, Eq. 4). Nothing random is
    drawn, and what is built by default stays the same module.
    """
    child: Any
    for name, child in list(module.named_children()):
        if hasattr(child, "normalized_shape") and (cfg.norm == "rms" or cfg.no_biases):
            form = nn.RMSNorm if cfg.norm == "rms" else partial(nn.LayerNorm, bias=False)
            setattr(module, name, form(child.normalized_shape, eps=child.eps))
        elif isinstance(child, nn.Linear) and cfg.no_biases:
            child.register_parameter("bias", None)


class FormedLayer(nn.Module):
    """Mixin of fairseq's layers, whose norms, feed-forward layers and biases options choose.

    With a gate, FFN(x) = (activation(x W) * (x V)) W_2 (Shazeer 2020, Eq. 6): fc1 is [W; V], of
    twice the inner width, and fc2 is W_2.
    """

    def __init__(self, cfg: Any, *args: Any, **kwargs: Any) -> None:
        self.gated = cfg.ffn in GATED  # needed while the base class builds fc1
        super().__init__(cfg, *args, **kwargs)
        if self.gated:
            self.activation_fn = partial(gate, GATED[cfg.ffn])
        set_form(self, cfg)

    def build_fc1(self, input_dim: int, output_dim: int, *noise: Any) -> nn.Module:
        """Build the first map of the feed-forward layer, with the map that is gated if any."""
        return super().build_fc1(input_dim, output_dim * (2 if self.gated else 1), *noise)  # type: ignore[misc]
