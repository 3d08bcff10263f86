"""Adversaries of attention, which choose the units that a second pass masks (Wu et al. 2023)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from fairseq_ext.attention.options import option
from fairseq_ext.attention.parts import SEED_STEP
from fairseq_ext.attention.presets import preset
from fairseq_ext.attention.sites import ALL_LAYERS, choose_layers
from fairseq_ext.errors import UsageError

INIT_STD = 0.02  # standard deviation of initial weights, as in BERT


class BertLinear(nn.Linear):
    """A linear map that is initialised as in BERT."""

    def reset_parameters(self) -> None:
        """Draw weights from N(0, INIT_STD^2) and set biases to 0."""
        nn.init.normal_(self.weight, std=INIT_STD)
        nn.init.zeros_(self.bias)


class Adversary(nn.Module):
    """Module that chooses the units of attention to keep: m = step(Q K^T / sqrt(C)).

    Q and K are linear maps of the attention's input x.

    Args:
        width: C.
        heads: 1, one mask for all heads of the layer; or H, a mask for each head, from slices of Q
            and K.
        inner: the width of Q and K (default: C).
    """

    per_head_flag = "--asa-per-head"

    def __init__(self, width: int, heads: int = 1, inner: int | None = None) -> None:
        super().__init__()
        self.heads, inner = heads, inner or width
        self.query, self.key = BertLinear(width, inner), BertLinear(width, inner)

    def forward(self, x: Tensor, sample: bool = False) -> Tensor:
        """Return m [B, 1 or H, T, T], 1 keep and 0 mask, in float32 or wider.

        Its gradient is the gradient of the sigmoid of the scores, straight through the step.

        Args:
            x: [T, B, C], input of the attention; no gradient goes into it.
            sample: draw m from the sigmoid (Gumbel-sigmoid), instead of a threshold at 0.
        """
        # a pass is a part of x, which each linear map would copy; q and k are [B, h, T, C / h]
        x, heads = x.detach().contiguous(), (self.heads, -1)
        q, k = (f(x).unflatten(-1, heads).permute(1, 2, 0, 3) for f in (self.query, self.key))
        scores = (q * q.size(-1) ** -0.5) @ k.transpose(-1, -2)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if sample:
            scores = scores + torch.rand_like(scores).logit(1e-6)
        return straight_through_step(scores)


class _Step(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.heaviside(x, x.new_full((), 0.5))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        keep = ctx.saved_tensors[0].sigmoid()
        return torch.ops.aten.sigmoid_backward(gradient, keep)


def straight_through_step(x: Tensor) -> Tensor:
    """Return 1 where x > 0, 0 where x < 0 and 1/2 at 0, with the gradient of sigmoid(x)."""
    return _Step.apply(x)


class Ascent(Function):
    """Identity whose gradient is turned round: what is before it ascends."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return x."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Return the gradient, negated."""
        return -gradient


@dataclass
class AdversaryOptions:
    """Options of adversaries.

    Attributes:
        asa_layers: encoder layers with an adversary (Wu et al. 2023), for a criterion with _asa:
            none, all, upper (the upper half; layers below are computed once for both passes), or
            numbers, as in 3,5
        asa_per_head: let adversaries mask each head on its own (paper: one mask for all heads of a
            layer)
    """

    asa_layers: str = option("none", sites=("encoder",))
    asa_per_head: bool = option(False, needs=("asa_layers",), sites=("encoder",))


def parse_adversary_layers(text: str, layers: int) -> list[int]:
    """Return the encoder layers with an adversary, named as "none", "all", "upper" or "3,5"."""
    words = {"none": slice(0), **ALL_LAYERS, "upper": slice(layers // 2, None)}
    return choose_layers("--asa-layers", text, range(layers), words)


def build_adversary(
    layer: int, layers: int, heads: int, unpruned: int, width: int, options: Mapping[str, Any]
) -> Adversary | None:
    """Build the adversary of an encoder layer, or return None if it has none.

    Its parameters are drawn with a seed of their own. With one --seed, the other parameters are
    then the same in models with and without adversaries.

    Args:
        layers: the number of layers.
        heads: the number of heads of the layer.
        unpruned: their number before some were pruned.
        width: C.
    """
    if layer not in parse_adversary_layers(options["asa_layers"], layers):
        return None
    if not heads:
        raise UsageError(
            f"--asa-layers {options['asa_layers']} has layer {layer}, which has no head left; "
            "leave it out"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch.initial_seed() + SEED_STEP * (layer + 1))
        if not options["asa_per_head"]:
            return Adversary(width)
        return Adversary(width, heads, heads * width // unpruned)


preset("asa", "transformer roberta deberta", 8, asa_layers="all")
