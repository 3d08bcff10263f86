"""The adversary of a layer (Wu et al. 2023, "Adversarial Self-Attention", Eq. 5 to 8)."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

INIT_STD = 0.02  # standard deviation of initial weights, as in BERT


class BertLinear(nn.Linear):
    """A linear map that begins as those of BERT do."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=INIT_STD)
        nn.init.zeros_(self.bias)


class Adversary(nn.Module):
    """Says which units of attention to keep: m = step(Q K^T / sqrt(C)), Q and K linear maps of x.

    Args:
        width: C.
        heads: 1, one mask for all heads of the layer; or H, one for each, of slices of Q and K.
    """

    def __init__(self, width: int, heads: int = 1) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key = BertLinear(width, width), BertLinear(width, width)

    def forward(self, x: Tensor, sample: bool = False) -> Tensor:
        """[T, B, C] -> m [B, 1 or H, T, T], 1 keep and 0 mask, in float32 or wider.

        Its gradient is that of the sigmoid of the scores, straight through the step.

        Args:
            x: input of the attention; no gradient goes into it.
            sample: draw m from the sigmoid (Gumbel-sigmoid), instead of a threshold at 0.
        """
        x = x.detach()
        q, k = (self._split(linear(x)) for linear in (self.query, self.key))
        scores = (q * q.size(-1) ** -0.5) @ k.transpose(-1, -2)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        return straight_through_step(
            scores + torch.rand_like(scores).logit(1e-6) if sample else scores
        )

    def _split(self, x: Tensor) -> Tensor:
        """[T, B, C] -> [B, h, T, C / h]."""
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
    """1 where x > 0, 0 where x < 0, 1/2 at 0; its gradient is that of sigmoid(x)."""
    return _Step.apply(x)


def reverse_gradient(x: Tensor) -> Tensor:
    """x, with the opposite gradient: what descends on a loss behind it ascends before it."""
    return _Reverse.apply(x)
