"""Scorers: how well a query and a key match, before masking and normalising."""

import math
from collections.abc import Callable, Sequence
from operator import add, sub

import torch
from torch import Tensor, nn

from fairseq_ext.attention.context import HeadCall
from fairseq_ext.attention.parts import Parts
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.kernels import toeplitz

HALF_LOG_2_PI = 0.5 * math.log(2 * math.pi)
MAX_SIGMAS = 5.33  # 1e-7 of a normal distribution lies further from its mean

Scorer = Callable[[HeadCall], Tensor]
"""HeadCall -> scores, broadcastable to [B, h, T, S]."""


def dot_product(call: HeadCall) -> Tensor:
    """Return q k^T / sqrt(D) (Vaswani et al. 2017, Eq. 1), which the fused kernels compute too."""
    return (call.q * call.q.size(-1) ** -0.5) @ call.k.transpose(-1, -2)


SCORERS: Parts[Scorer] = Parts("scorer", None, optional=("width",))
"""Scorers of heads that are not hard-coded, by name; see `registry.register_scorer`."""


def uses_queries(scorer: Scorer) -> bool:
    """Return whether a scorer reads queries; without them a layer has no projection to them."""
    return getattr(scorer, "uses_queries", True)


def uses_keys(scorer: Scorer) -> bool:
    """Return whether a scorer reads keys; without them a layer has no projection to them."""
    return getattr(scorer, "uses_keys", True)


@SCORERS.register("dot")
def build_dot_product(heads: int) -> Scorer:
    """Return the scaled dot product."""
    return dot_product


class Gaussian(nn.Module):
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

    def __init__(
        self, offsets: Sequence[float], sigmas: Sequence[float], ratio: float = 1.0
    ) -> None:
        super().__init__()
        for flag, number in (("--gaussian-sigma", min(sigmas)), ("--gaussian-ratio", ratio)):
            if not 0 < number < math.inf:
                raise UsageError(f"{flag} is {number:g}; give a number above 0, such as 1")
        self.offsets, self.sigmas, self.ratio = tuple(offsets), tuple(sigmas), ratio

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

    def window(self) -> int:
        """Return how many keys before a query a cache has to hold, at least one."""
        return max(1, -self._reach(slice(None))[0])

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
