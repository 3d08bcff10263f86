"""Hard-coded Gaussian heads (You et al. 2020): densities of positions, which are not normalised."""

import math
from collections.abc import Sequence
from operator import add, sub

import torch
from torch import Tensor

from fairseq_ext.attention.context import HeadCall
from fairseq_ext.attention.head_groups import HeadGroup
from fairseq_ext.attention.masks import DEFAULT_MASKS, Masks, add_bias
from fairseq_ext.attention.normalisers import Normaliser
from fairseq_ext.attention.scorers import Scorer
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.kernels import toeplitz

HALF_LOG_2_PI = 0.5 * math.log(2 * math.pi)
MAX_SIGMAS = 5.33  # 1e-7 of a normal distribution lies further from its mean


class Gaussian(Scorer):
    """The logarithm of a normal density, from positions alone (You et al. 2020, Section 3).

    Head h gives key j, seen from query i, the density of N(ratio * i + offset_h, sigma_h^2) at j,
    both counted from 0 among the real tokens. Densities are not made to sum to one; the fused form
    and a cache leave out keys that are more than MAX_SIGMAS sigmas away.

    Args:
        offsets: of each head.
        sigmas: of each head.
        ratio: source tokens for each target token; 1 in self-attention.

    Raises:
        UsageError: a sigma or the ratio is not above 0.
    """

    learned = False

    def __init__(
        self, offsets: Sequence[float], sigmas: Sequence[float], ratio: float = 1.0
    ) -> None:
        super().__init__()
        for flag, number in (("--gaussian-sigma", min(sigmas)), ("--gaussian-ratio", ratio)):
            if not 0 < number < math.inf:
                raise UsageError(f"{flag} is {number:g}; give a number above 0, such as 1")
        self.offsets, self.sigmas, self.ratio = tuple(offsets), tuple(sigmas), ratio
        self.window = max(1, -self._reach(slice(None))[0])

    def forward(self, call: HeadCall) -> Tensor:
        """Return scores [1 or B, h, T, S], float32.

        They differ between sentences (B) if the padding on the left of these differs.
        """
        context, heads = call.context, call.heads
        key = (*self._numbers(heads), self.ratio, context.queries, context.keys)

        def compute() -> Tensor:
            return self._log_density(context.distances(self.ratio)[:, None], heads)

        return context.inputs.cached(("gaussian", *key), compute)

    def fused(self, call: HeadCall) -> Tensor | None:
        """Return the output [B, h, T, D] of self-attention, or None for other attention."""
        v, context, heads = call.v, call.context, call.heads
        if context.cross or context.queries != context.keys:
            return None
        if context.key_padding is not None:
            v = v.masked_fill(context.key_padding[:, None, :, None], 0)
        causal, length = context.inputs.causal, context.keys
        low, high = self._reach(heads)
        low = max(min(low, 0), 1 - length)
        high = 0 if causal else min(max(high, 0), length - 1)

        def weigh(distances: Tensor) -> Tensor:
            far = (distances < low) | (distances > high)
            return self._log_density(distances, heads).exp().masked_fill(far, 0).to(v.dtype)

        def compute() -> tuple[Tensor, Tensor]:
            forward = toeplitz.distances(length, low, high, v.device)
            backward = toeplitz.distances(length, -high, -low, v.device)
            return weigh(forward), weigh(-backward)

        key = ("toeplitz", *self._numbers(heads), causal, v.dtype, length)
        return toeplitz.attend(v, *context.inputs.cached(key, compute), low, high)

    def _numbers(self, heads: slice) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return self.offsets[heads], self.sigmas[heads]

    def _log_density(self, distances: Tensor, heads: slice) -> Tensor:
        """Return the log-density at distances [..., T, S]: [..., h, T, S]."""
        offsets, sigmas = (
            torch.tensor(numbers).to(distances.device, non_blocking=True)[:, None, None]
            for numbers in self._numbers(heads)
        )
        return -0.5 * ((distances - offsets) / sigmas).square() - sigmas.log() - HALF_LOG_2_PI

    def _reach(self, heads: slice) -> tuple[int, int]:
        """Return the lowest and highest j - i within MAX_SIGMAS sigmas of a head's mean."""
        offsets, sigmas = self._numbers(heads)
        reach = [math.ceil(MAX_SIGMAS * sigma - 0.5) for sigma in sigmas]
        return math.floor(min(map(sub, offsets, reach))), math.ceil(max(map(add, offsets, reach)))

    def extra_repr(self) -> str:
        """Return the parameters for the printed module."""
        return f"offsets={self.offsets}, sigmas={self.sigmas}, ratio={self.ratio}"


class Unnormalised(Normaliser):
    """W_ij = exp(s_ij), for scores that are logarithms of the weights already."""

    def weights(
        self, scores: Tensor, bias: Tensor | None, query_padding: Tensor | None, heads: slice
    ) -> Tensor:
        """Return exp(scores)."""
        return add_bias(scores, bias).exp()


def build_gaussian_heads(
    offsets: Sequence[float],
    sigmas: Sequence[float],
    ratio: float = 1.0,
    masks: Masks = (),
    made_by: str = "--encoder-gaussian-heads",
) -> HeadGroup:
    """Build a group of hard-coded heads (You et al. 2020), one for each offset.

    Args:
        masks: masks beside the default ones.
    """
    scorer = Gaussian(offsets, sigmas, ratio)
    masks = (*DEFAULT_MASKS, *masks)
    return HeadGroup(
        len(offsets), scorer=scorer, normaliser=Unnormalised(), masks=masks, made_by=made_by
    )
