"""Divergences of the predictions of two passes that have their gradients at once, in parts.

By autograd a divergence of scores keeps six tensors of their size in float32 for the backward pass.
Here two are kept, the gradients of both scores, in 16 bits if scores are in bfloat16; all others
are those of a part.
"""

from typing import Any

import torch
from torch import Tensor

from fairseq_ext.attention.derivatives import first_derivative_only
from fairseq_ext.criterions import smoothed_loss

ELEMENTS = {"cpu": smoothed_loss.ELEMENTS}
"""Device -> scores of a part."""

OTHER_ELEMENTS = 2**25
KEPT = smoothed_loss.KEPT | {torch.float64: torch.float64}
"""Type of scores -> that in which gradients are kept for the backward pass."""


class FusedDivergence(torch.autograd.Function):
    """a KL(p || q) + b KL(q || p) of rows, for p = softmax(clean) and q = softmax(other).

    With d_v = log p_v - log q_v, its derivative by the score of p_v is
    a p_v (d_v - KL(p || q)) + b (p_v - q_v), and by that of q_v the same with both exchanged. It is
    computed in float32 or wider.
    """

    @staticmethod
    def forward(ctx: Any, clean: Tensor, other: Tensor, a: float, b: float) -> Tensor:
        """Return [N] in float32 or wider.

        Args:
            ctx: keeps the gradients.
            clean: [N, V] scores, of a type in KEPT.
            other: [N, V] scores.
            a: weight of KL(p || q).
            b: weight of KL(q || p).
        """
        ctx.dtypes = clean.dtype, other.dtype
        slopes = [
            torch.empty_like(x, dtype=KEPT[x.dtype]) if needed else None
            for x, needed in zip((clean, other), ctx.needs_input_grad, strict=False)
        ]
        most = ELEMENTS.get(clean.device.type, OTHER_ELEMENTS)
        size = max(most // max(clean.size(1), 1), 1)
        distances = [
            _compute_part(clean[at], other[at], a, b, [x if x is None else x[at] for x in slopes])
            for at in (slice(n, n + size) for n in range(0, max(len(clean), 1), size))
        ]
        ctx.save_for_backward(*slopes)
        return distances[0] if len(distances) == 1 else torch.cat(distances)

    @staticmethod
    @first_derivative_only("the divergence of two passes")
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of both scores, for that of distances."""
        rows = gradient[:, None]
        slopes = (
            x if x is None else torch.mul(x, rows, out=torch.empty_like(x, dtype=dtype))
            for x, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        )
        return *slopes, None, None


def measure_divergence(clean: Tensor, other: Tensor, a: float, b: float) -> Tensor:
    """Return a KL(softmax(clean) || softmax(other)) + b KL(other || clean), [..., V] -> [...]."""
    rows = (x.reshape(-1, x.size(-1)) for x in (clean, other))
    return FusedDivergence.apply(*rows, a, b).view(clean.shape[:-1])


def _compute_part(
    clean: Tensor, other: Tensor, a: float, b: float, slopes: list[Tensor | None]
) -> Tensor:
    """Return the distances of some rows; write their gradients to `slopes`."""
    exact = torch.promote_types(torch.promote_types(clean.dtype, other.dtype), torch.float32)
    p, q = (x.softmax(-1, dtype=exact) for x in (clean, other))
    d, apart = _compare(clean.to(exact), other.to(exact), p, q)
    # a sum of what is not negative, if weights are equal: nothing cancels
    difference = apart * a if a == b else a * p - b * q
    distances = (difference * d).sum(-1)
    of_clean, of_other = slopes
    if of_clean is not None:
        of_clean.copy_(_compute_slope(p, apart, d, a, b))
    if of_other is not None:
        of_other.copy_(_compute_slope(q, apart, d, -b, -a))
    return distances


def _compare(clean: Tensor, other: Tensor, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Return log p - log q and p - q of scores, also of nearly equal ones with all their digits.

    Scores are subtracted, which is exact if they are near, and p - q is q expm1(log p - log q).
    What all differences are wrong by follows from the sum of p - q, which is 0.
    """
    d = clean - other
    d -= clean.logsumexp(-1, keepdim=True) - other.logsumexp(-1, keepdim=True)
    apart = torch.where(d < 1, q * torch.expm1(d.clamp(max=1)), p - q)
    off = apart.sum(-1, keepdim=True)
    return d.sub_(off), apart.addcmul_(p, off, value=-1)


def _compute_slope(p: Tensor, apart: Tensor, d: Tensor, a: float, b: float) -> Tensor:
    """Return a p_v (d_v - sum p d) + b apart_v; for q in the place of p, a is -b and b is -a."""
    slope = apart * b
    return slope.addcmul_(p, d - (p * d).sum(-1, keepdim=True), value=a) if a else slope
