"""Differential attention: the difference of two maps of each head (Ye et al. 2025)."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq_ext.attention.head_mixers import MIXERS, HeadMixer
from fairseq_ext.attention.parts import SEED_STEP
from fairseq_ext.attention.presets import preset
from fairseq_ext.errors import UsageError

EPSILON = 1e-5  # of the norm, as in the authors' code
STD = 0.1  # of the initial vectors, likewise


@MIXERS.register("differential", summary="the difference of two maps of each head")
class Differential(HeadMixer):
    """W = A_1 - lambda A_2; head = (1 - lambda_init) RMSNorm(W V) (Ye et al. 2025, Eq. 1 to 3).

    A_1 and A_2 are the normalised maps of the two halves of a head's queries and keys; values have
    the whole width D, so that W V = A_1 V - lambda A_2 V. In layer l, from 1,

        lambda = exp(q_1 k_1) - exp(q_2 k_2) + lambda_init,
        lambda_init = 0.8 - 0.6 exp(-0.3 (l - 1)),

    where the vectors q_i and k_i, [D / 2], are of all heads of the layer. The norm is over each
    head's width, with a gain [D] that is stored as an offset from 1.

    Args:
        heads: H.
        width: D.
        layer: l - 1.

    Raises:
        UsageError: D is odd.
    """

    mixes_heads, numbered = False, True
    parts = 2

    def __init__(self, heads: int, width: int, layer: int) -> None:
        super().__init__(heads, width, layer)
        if width % 2:
            raise UsageError(
                "differential attention makes two maps of half of a head's width, and that is "
                f"{width}; give widths and numbers of heads whose quotient is even, or another "
                "head mixer"
            )
        self.first = 0.8 - 0.6 * math.exp(-0.3 * layer)
        # drawn apart: with one seed, other parameters are those of a model without a mixer
        generator = torch.Generator().manual_seed(torch.initial_seed() + SEED_STEP * (layer + 1))
        self.vectors = nn.Parameter(STD * torch.randn(2, 2, width // 2, generator=generator))
        self.gain_offset = nn.Parameter(torch.zeros(width))

    def subtracted(self) -> Tensor:
        """Return lambda, a scalar in float32 or wider."""
        vectors = self.vectors.to(torch.promote_types(self.vectors.dtype, torch.float32))
        queries, keys = vectors.unbind(1)
        one, other = (queries * keys).sum(-1).exp()
        return one - other + self.first

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the first map or output less lambda times the second."""
        one, other = parts
        return torch.addcmul(one, other, self.subtracted().to(one.dtype), value=-1)

    def finish(self, out: Tensor) -> Tensor:
        """Return (1 - lambda_init) RMSNorm(out) of each head, [B, h, T, D]."""
        wide = out.to(torch.promote_types(out.dtype, torch.float32))
        gain = (1 - self.first) * (1 + self.gain_offset.to(wide.dtype))
        return F.rms_norm(wide, gain.shape, gain, EPSILON).to(out.dtype)

    def statistics(self) -> dict[str, Callable[[], float]]:
        """Return lambda."""
        return {"lambda": lambda: round(self.subtracted().item(), 4)}

    def extra_repr(self) -> str:
        """Return lambda_init for the printed module."""
        return f"lambda_init={self.first:.4f}"


preset("differential", "transformer roberta", 7, encoder_head_mixer="differential")
preset("differential", "transformer_lm", 7, decoder_head_mixer="differential")
