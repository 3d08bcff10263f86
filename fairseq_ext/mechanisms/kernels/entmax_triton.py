"""Entmax of rows by one kernel, which holds a row and finds its threshold by Newton's method.

The gradient is that of `entmax.py`, by a second kernel, from scores and thresholds.
"""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from fairseq_ext.attention.derivatives import first_derivative_only
from fairseq_ext.mechanisms.kernels import triton_launch
from fairseq_ext.mechanisms.kernels.triton_launch import DTYPES

NAME = "entmax"
MOST = 2**14  # keys of a row, which a program keeps in registers
WARPS = {2**9: 1, 2**11: 4, MOST: 16}  # keys, at most -> warps of a program
STEPS = 16  # of Newton's method


def supports(scores: Tensor, alpha: Tensor | float) -> bool:
    """Return whether the kernels take scores [..., S], with alpha a number or [h, 1, 1]."""
    runs = triton_launch.runs(NAME, scores.device, torch.float32, 1)
    if torch.compiler.is_compiling() or not runs:
        return False
    if isinstance(alpha, Tensor) and (scores.dim() != 4 or alpha.shape != (scores.size(1), 1, 1)):
        return False
    return scores.dtype in DTYPES and scores.numel() > 0 and _fits(scores.size(-1))


def _fits(keys: int) -> bool:
    if keys > MOST:
        triton_launch.warn(NAME, f"its kernel takes rows of {MOST:,} keys at most")
    return keys <= MOST


def weigh(scores: Tensor, alpha: Tensor | float, tau: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the weights of scores [..., S], in their dtype, and thresholds [..., 1] in float32.

    Args:
        tau: the thresholds, if they are known.
    """
    return _Entmax.apply(scores, alpha, tau)


class _Entmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, alpha: Tensor | float, tau: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        scores, found = scores.contiguous(), tau
        if found is None:
            found = scores.new_empty(*scores.shape[:-1], 1, dtype=torch.float32)
        weights, learned = torch.empty_like(scores), _as_pointer(alpha)
        options = _options(scores, alpha) | {"SOLVED": tau is not None, "STEPS": STEPS}
        _run("weights", scores, learned, weights, found, **options)
        ctx.save_for_backward(scores, found, learned)
        ctx.alpha = alpha if learned is None else None
        ctx.mark_non_differentiable(found)
        ctx.set_materialize_grads(False)
        return weights, found

    @staticmethod
    @first_derivative_only("entmax")
    def backward(ctx: Any, gradient: Tensor, _: None) -> tuple[Tensor, Tensor | None, None]:
        scores, tau, learned = ctx.saved_tensors
        slopes = torch.empty_like(scores)
        by_row = None if learned is None else torch.empty_like(tau)
        options = _options(scores, ctx.alpha)
        _run("slopes", scores, learned, tau, gradient.contiguous(), slopes, by_row, **options)
        of_alpha = None if by_row is None else by_row.sum((0, 2)).unsqueeze(-1)  # [h, 1, 1]
        return slopes, of_alpha, None


def _as_pointer(alpha: Tensor | float) -> Tensor | None:
    return alpha.detach().float().contiguous() if isinstance(alpha, Tensor) else None


def _options(scores: Tensor, alpha: Tensor | float | None) -> dict[str, Any]:
    """Return the arguments of both kernels; ALPHA is None where each head has its own."""
    keys = scores.size(-1)
    shaped = scores.dim() == 4
    return {
        "size": keys,
        "heads": scores.size(1) if shaped else 1,
        "queries": scores.size(2) if shaped else 1,
        "ALPHA": alpha if isinstance(alpha, float | int) else None,
        "BLOCK": 1 << max(4, (keys - 1).bit_length()),
        "num_warps": WARPS[min(upto for upto in WARPS if keys <= upto)],
    }


def _run(kernel: str, scores: Tensor, *tensors: Tensor | None, **options: Any) -> None:
    """Run a program for every row of the scores."""
    rows = scores.numel() // scores.size(-1)
    triton_launch.run(_import_kernels, kernel, rows, 1, scores, *tensors, **options)


def _import_kernels() -> ModuleType:
    from fairseq_ext.mechanisms.kernels import entmax_triton_jit  # Triton may be missing

    return entmax_triton_jit
