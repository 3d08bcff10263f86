"""Attention by weights that depend on the distance of key and query alone: a convolution.

It is one matrix product of blocks of rows with the keys within reach of them.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK_ROWS = 64


def distances(length: int, low: int, high: int, device: torch.device) -> Tensor:
    """Return j - i of the queries i of a block and the keys j of its window, float32.

    The first key is that at distance `low` <= 0 from the first query, the last one that at distance
    `high` >= 0 from the last query: [rows, rows + high - low], of BLOCK_ROWS rows at most.
    """
    rows = math.ceil(length / max(1, math.ceil(length / BLOCK_ROWS)))  # of all blocks alike
    keys = torch.arange(low, rows + high, device=device, dtype=torch.float32)
    return keys - torch.arange(rows, device=device, dtype=torch.float32)[:, None]


def attend(v: Tensor, weights: Tensor, transposed: Tensor, low: int, high: int) -> Tensor:
    """Return out[b, h, i] = sum_j w[h, j - i] v[b, h, j], [B, h, T, D].

    Args:
        v: [B, h, T, D], zero where a key is padding.
        weights: w at `distances(T, low, high)`, [h, rows, window]; 0 below low and above high.
        transposed: w at minus `distances(T, -high, -low)`, by which the gradient of v is made.
        low: see `distances`.
        high: see `distances`.
    """
    return _Convolution.apply(v, weights, transposed, low, high)


class _Convolution(torch.autograd.Function):
    """The gradient is the same of the slopes, with the distances reversed."""

    @staticmethod
    def forward(v: Tensor, weights: Tensor, transposed: Tensor, low: int, high: int) -> Tensor:
        sentences, heads, length, width = v.shape
        columns = v.permute(1, 2, 0, 3).reshape(heads, length, sentences * width)
        _, rows, window = weights.shape
        if length == rows:  # without keys before the first one and after the last one
            out = weights[..., -low : length - low] @ columns
        else:
            after = -length % rows + high
            windows = F.pad(columns, (0, 0, -low, after)).unfold(1, window, rows).mT
            out = (weights[:, None] @ windows).flatten(1, 2)[:, :length]
        return out.view(heads, length, sentences, width).permute(2, 0, 1, 3)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, weights, transposed, *ctx.reach = inputs
        ctx.save_for_backward(weights, transposed)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weights, transposed = ctx.saved_tensors
        low, high = ctx.reach
        return _Convolution.apply(gradient, transposed, weights, -high, -low), *[None] * 4
