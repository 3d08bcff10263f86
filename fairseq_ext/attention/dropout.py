"""Dropout of attention weights."""

import torch
import torch.nn.functional as F
from torch import Tensor

LEVELS = 2**15  # what 15 random bits can tell apart


def dropout(x: Tensor, rate: float) -> Tensor:
    """x, each element 0 with the probability `rate` and divided by 1 - rate otherwise.

    On CPUs most of the time of torch's goes into its random numbers. These are of 15 bits: the rate
    is rounded to 1/32768, and what remains is scaled by what was rounded.
    """
    if not rate or x.device.type != "cpu":
        return F.dropout(x, rate)
    dropped = round(rate * LEVELS)
    random = torch.empty(x.shape, dtype=torch.int16).random_()
    kept = (random >= dropped).to(x.dtype)
    return x * kept.mul_(LEVELS / (LEVELS - dropped) if dropped < LEVELS else 0.0)
