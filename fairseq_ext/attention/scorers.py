"""Scorers: how well a query and a key match, before blocking and normalising."""

from collections.abc import Callable

from torch import Tensor

from fairseq_ext.attention.inputs import Frame

Scorer = Callable[[Tensor, Tensor, Frame], Tensor]
"""(q [B, h, T, D], k [B, h, S, D], frame) -> scores [B, h, T, S]."""


def dot_product(q: Tensor, k: Tensor, frame: Frame) -> Tensor:
    """q k^T / sqrt(D) (Vaswani et al. 2017, Eq. 1); what the fused kernels compute."""
    return (q * q.size(-1) ** -0.5) @ k.transpose(-1, -2)
