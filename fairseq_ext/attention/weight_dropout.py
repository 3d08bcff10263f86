"""Dropout of attention weights, quick on CPUs too."""

import torch
import torch.nn.functional as F
from torch import Tensor

RANDOM_LEVELS = 2**15  # values of a non-negative 16-bit integer


def drop_weights(weights: Tensor, rate: float) -> Tensor:
    """Return the weights, each zeroed with probability `rate` or else divided by 1 - rate.

    On a CPU, torch's dropout spends most of its time drawing random numbers. Here an element is
    dropped if a random 15-bit integer (a non-negative int16, which is cheap to draw) is below
    rate * 2^15. That rounds the rate to a multiple of 1/32768; the weights that remain are scaled
    by the rounded rate, so that expectations are exact. A compiled graph has its own quick way.
    """
    if not rate or weights.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(weights, rate)
    return weights * draw_factors(weights, rate)


def draw_factors(weights: Tensor, rate: float) -> Tensor:
    """Return what `drop_weights` multiplies each of these weights by."""
    if weights.device.type != "cpu":
        return F.dropout(torch.ones_like(weights), rate)
    dropped = round(rate * RANDOM_LEVELS)
    random = torch.empty(weights.shape, dtype=torch.int16).random_()
    kept = (random >= dropped).to(weights.dtype)
    scale = RANDOM_LEVELS / (RANDOM_LEVELS - dropped) if dropped < RANDOM_LEVELS else 0.0
    return kept.mul_(scale)
