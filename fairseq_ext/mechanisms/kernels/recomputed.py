"""Attention whose map is computed again for its gradient, in the place of being kept.

A map, the steps of its normaliser and what dropout leaves of it take some 12 bytes for each query
and key until the backward pass. Here it is one byte, which says whether dropout kept the weight.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from fairseq_ext.attention.context import HeadCall
from fairseq_ext.attention.derivatives import first_derivative_only
from fairseq_ext.attention.masks import Mask, as_bias, mask_future
from fairseq_ext.attention.weight_dropout import RANDOM_LEVELS

MIN_SCORES = {"cpu": 1 << 26}
"""Device -> scores of a call, at least; smaller maps are kept, which is quicker."""

Normalise = Callable[..., Tensor]
"""(scores [B, h, T, S], bias or None, *parameters) -> weights, with autograd's gradient."""


def attend(
    call: HeadCall, mask: Mask, normalise: Normalise, *parameters: Tensor | None
) -> Tensor | None:
    """Return dropout(normalise(q k^T / sqrt(D))) v, [B, h, T, D], or None where a map is kept.

    Args:
        call: of heads with keys of their own.
        mask: any; a bias in it may have a gradient.
        normalise: called in the forward pass, and again for the gradient.
        parameters: its further arguments, to which gradients go.
    """
    q, k, v = call.q, call.k, call.v
    kind, scores = q.device.type, q[..., 0].numel() * k.size(2)
    if not torch.is_grad_enabled() or torch.compiler.is_compiling() or not scores:
        return None
    if scores < MIN_SCORES.get(kind, 0):
        return None
    bias = as_bias(mask, torch.float32)
    if mask.causal:
        key = "causal bias", q.size(2), k.size(2)
        bias = call.context.inputs.cached(key, lambda: mask_future(q, k, torch.float32))
    narrow = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    if narrow:
        q, k, v = (x.to(torch.get_autocast_dtype(kind)) for x in (q, k, v))
    with torch.autocast(kind, enabled=False) if narrow else nullcontext():
        return _Recomputed.apply(
            q * q.size(-1) ** -0.5, k, v, bias, normalise, call.dropout, *parameters
        )


class _Recomputed(torch.autograd.Function):
    """O [B, h, T, D] from queries that are scaled."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        normalise: Normalise,
        rate: float,
        *parameters: Tensor | None,
    ) -> Tensor:
        mixed = normalise(q @ k.mT, bias, *parameters).to(v.dtype)
        kept, ctx.scale = None, 1.0
        if rate:
            mixed, kept, ctx.scale = _drop(mixed, rate)
        ctx.save_for_backward(q, k, v, kept, bias, *parameters)
        ctx.normalise = normalise
        return _multiply(mixed, v)

    @staticmethod
    @first_derivative_only(
        "attention whose map is computed again",
        "raise MIN_SCORES of mechanisms/kernels/recomputed.py",
    )
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, kept, *others = ctx.saved_tensors
        needed = ctx.needs_input_grad[3], *ctx.needs_input_grad[6:]
        inputs = [(q @ k.mT).requires_grad_()]
        for x, need in zip(others, needed, strict=True):
            inputs.append(x if x is None else x.detach().requires_grad_(need))
        with torch.enable_grad():
            weights = ctx.normalise(*inputs)
        mixed, through = weights.detach().to(v.dtype), gradient @ v.mT
        if kept is not None:
            mixed, through = (_keep(x, kept, ctx.scale) for x in (mixed, through))
        asked = [x for x in inputs if x is not None and x.requires_grad]
        found = iter(torch.autograd.grad(weights, asked, through.to(weights.dtype)))
        of_scores = next(found)
        slopes = [next(found) if need else None for need in needed]
        rest = slopes[0], None, None, *slopes[1:]
        pairs = (of_scores, k), (of_scores.mT, q), (mixed.mT, gradient)
        return *(_multiply(*pair) for pair in pairs), *rest


def _multiply(x: Tensor, y: Tensor) -> Tensor:
    """Return x y [B, h, T, D], in memory as projections read it: with time first."""
    sentences, heads, rows, _ = x.shape
    out = x.new_empty(rows, sentences * heads, y.size(-1))
    torch.bmm(x.flatten(0, 1), y.flatten(0, 1), out=out.transpose(0, 1))
    return out.unflatten(1, (sentences, heads)).permute(1, 2, 0, 3)


def _drop(weights: Tensor, rate: float) -> tuple[Tensor, Tensor, float]:
    """Return weights after dropout, which of them are kept, and the factor of these."""
    if weights.device.type != "cpu":
        dropped, kept = torch.native_dropout(weights, rate, True)
        return dropped, kept, 1 / (1 - rate) if rate < 1 else 0.0
    levels = round(rate * RANDOM_LEVELS)  # as in `draw_factors`
    kept = torch.empty(weights.shape, dtype=torch.int16).random_() >= levels
    scale = RANDOM_LEVELS / (RANDOM_LEVELS - levels) if levels < RANDOM_LEVELS else 0.0
    return _keep(weights, kept, scale), kept, scale


def _keep(x: Tensor, kept: Tensor, scale: float) -> Tensor:
    """Return x where a weight was kept, times a factor, and 0 elsewhere."""
    return torch.ops.aten.native_dropout_backward(x, kept, scale)
