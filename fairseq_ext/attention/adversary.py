"""The adversary of a layer (Wu et al. 2023, "Adversarial Self-Attention", Eq. 5 to 8)."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

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
    """

    def __init__(self, width: int, heads: int = 1) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key = BertLinear(width, width), BertLinear(width, width)

    def forward(self, x: Tensor, sample: bool = False) -> Tensor:
        """Return m [B, 1 or H, T, T], 1 keep and 0 mask, in float32 or wider.

        Its gradient is the gradient of the sigmoid of the scores, straight through the step.

        Args:
            x: [T, B, C], input of the attention; no gradient goes into it.
            sample: draw m from the sigmoid (Gumbel-sigmoid), instead of a threshold at 0.
        """
        x = x.detach()
        q, k = (self._split_heads(linear(x)) for linear in (self.query, self.key))
        scores = (q * q.size(-1) ** -0.5) @ k.transpose(-1, -2)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if sample:
            scores = scores + torch.rand_like(scores).logit(1e-6)
        return straight_through_step(scores)

    def _split_heads(self, x: Tensor) -> Tensor:
        """Return the heads apart: [T, B, C] -> [B, h, T, C / h]."""
        return x.unflatten(-1, (self.heads, -1)).permute(1, 2, 0, 3)


class _Step(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.heaviside(x, x.new_full((), 0.5))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        keep = ctx.saved_tensors[0].sigmoid()
        return gradient * keep * (1 - keep)


class _Reverse(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -gradient


def straight_through_step(x: Tensor) -> Tensor:
    """Return 1 where x > 0, 0 where x < 0 and 1/2 at 0, with the gradient of sigmoid(x)."""
    return _Step.apply(x)


def reverse_gradient(x: Tensor) -> Tensor:
    """Return x with the opposite gradient: descent on a loss behind it is ascent before it."""
    return _Reverse.apply(x)
