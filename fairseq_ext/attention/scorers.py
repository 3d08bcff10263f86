"""Scorers: how well a query and a key match, before blocking and normalising."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fairseq_ext.attention.context import AttentionContext
from fairseq_ext.attention.kernels import toeplitz
from fairseq_ext.errors import UsageError

HALF_LOG_2_PI = 0.5 * math.log(2 * math.pi)
TAIL = 5.33  # sigmas; 1e-7 of a normal distribution lies outside

Scorer = Callable[[Tensor, Tensor, AttentionContext, slice], Tensor]
"""(q [B, h, T, D], k [B, h, S, D], context, which heads of the group) -> scores [B, h, T, S]."""


def dot_product(q: Tensor, k: Tensor, context: AttentionContext, heads: slice) -> Tensor:
    """q k^T / sqrt(D) (Vaswani et al. 2017, Eq. 1); what the fused kernels compute."""
    return (q * q.size(-1) ** -0.5) @ k.transpose(-1, -2)


class Gaussian(nn.Module):
    """The logarithm of a normal density, from positions alone (You et al. 2020, Section 3).

    Head h gives key j, seen from query i, the density of N(ratio * i + offset_h, sigma_h^2) at j,
    both counted from 0 among the real tokens. Densities are not made to sum to one; the fused form
    and a cache leave out those beyond TAIL sigmas.

    Args:
        offsets, sigmas: of each head.
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

    def forward(self, q: None, k: None, context: AttentionContext, heads: slice) -> Tensor:
        """[1 or B, h, T, S], float32; B if the number of padded tokens on the left differs."""
        ours = self.offsets[heads], self.sigmas[heads], self.ratio

        def make() -> Tensor:
            return self._log_density(context.distances(self.ratio)[:, None], heads)

        return context.inputs.cached(("gaussian", *ours, context.queries, context.keys), make)

    def fused(self, v: Tensor, context: AttentionContext, heads: slice) -> Tensor | None:
        """The output [B, h, T, D] of self-attention; None for other attention."""
        if context.cross or context.queries != context.keys:
            return None
        if context.key_padding is not None:
            v = v.masked_fill(context.key_padding[:, None, :, None], 0)
        reach = self._reach(heads)

        def block(first_row: int, rows: int, keys: int) -> Tensor:
            """[h, rows, keys] weights, the row `first_row` being at key 0."""

            def make() -> Tensor:
                i, j = (torch.arange(n, device=v.device, dtype=torch.float32) for n in (rows, keys))
                away = j - (i + first_row)[:, None]
                weights = self._log_density(away, heads).exp().to(v.dtype)
                return weights.masked_fill(away > 0, 0) if context.inputs.causal else weights

            ours = self.offsets[heads], self.sigmas[heads], context.inputs.causal, v.dtype
            return context.inputs.cached(("toeplitz", *ours, first_row, rows, keys), make)

        low, high = reach[0], 0 if context.inputs.causal else reach[1]
        return toeplitz.attend(v, block, low, high)

    def window(self) -> int:
        """How many keys before a query it has to see, at least one."""
        return max(1, -self._reach(slice(None))[0])

    def _log_density(self, away: Tensor, heads: slice) -> Tensor:
        """away: [..., T, S] -> [..., h, T, S]."""
        offsets, sigmas = (
            torch.tensor(numbers[heads]).to(away.device, non_blocking=True)[:, None, None]
            for numbers in (self.offsets, self.sigmas)
        )
        return -0.5 * ((away - offsets) / sigmas).square() - sigmas.log() - HALF_LOG_2_PI

    def _reach(self, heads: slice) -> tuple[int, int]:
        """Lowest and highest j - i outside of which next to nothing of a density lies."""
        each = zip(self.offsets[heads], self.sigmas[heads], strict=True)
        ends = [(o - math.ceil(TAIL * s - 0.5), o + math.ceil(TAIL * s - 0.5)) for o, s in each]
        return math.floor(min(low for low, _ in ends)), math.ceil(max(high for _, high in ends))

    def extra_repr(self) -> str:
        return f"offsets={self.offsets}, sigmas={self.sigmas}, ratio={self.ratio}"
