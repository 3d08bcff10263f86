"""Cross-entropy, label-smoothed or not, that has its gradient at once; in parts that fit a cache.

fairseq passes over the scores of all tokens and the whole vocabulary some seven times and keeps
four tensors of their size. Here one tensor holds probabilities, and then the gradient.
"""

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from fairseq import modules
from fairseq.models import BaseFairseqModel, FairseqDecoder
from fairseq.models.transformer import TransformerModelBase
from torch import Tensor
from torch.nn.functional import nll_loss

from fairseq_ext.attention.derivatives import first_derivative_only

ELEMENTS = 2**19  # scores of a part, on CPUs
KEPT = {
    torch.float32: torch.float32,
    torch.bfloat16: torch.bfloat16,
    torch.float16: torch.float32,  # which loses what is small before the loss is scaled
}
"""Type of scores -> that in which the gradient is kept for the backward pass."""


class SmoothedLoss(torch.autograd.Function):
    """Label-smoothed cross-entropy as fairseq defines it, summed over all targets but padding.

    loss = Σ_i [(1 - ε - ε') nll_i - ε' Σ_v log p_iv], nll_i = -log p_i,t_i, ε' = ε / (V - 1). The
    derivative by the score x_iv is p_iv - ε' - (1 - ε - ε') [v = t_i]. It is computed in float32.
    """

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, target: Tensor, epsilon: float, padding: int, part: int
    ) -> tuple[Tensor, Tensor]:
        """Return loss and Σ nll_i, which has no gradient.

        Args:
            ctx: keeps the gradient.
            scores: [N, V], of a type in KEPT.
            target: [N] long.
            epsilon: ε.
            padding: a target that does not count.
            part: how many rows are computed together.
        """
        gradient = torch.empty_like(scores, dtype=KEPT[scores.dtype])
        others = epsilon / (scores.size(1) - 1)
        sums = [
            _compute_part(x, t.unsqueeze(1), t.eq(padding), (1 - epsilon - others, others), p)
            for x, t, p in zip(
                scores.split(part), target.split(part), gradient.split(part), strict=True
            )
        ]
        nll, smooth = reduce(torch.add, sums)
        ctx.save_for_backward(gradient)
        ctx.dtype = scores.dtype
        ctx.mark_non_differentiable(nll)
        return (1 - epsilon - others) * nll + others * smooth, nll

    @staticmethod
    @first_derivative_only("label-smoothed cross-entropy")
    def backward(ctx: Any, loss: Tensor, nll: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of the scores, for that of the loss."""
        (gradient,) = ctx.saved_tensors
        if loss.device.type != "cpu" or loss != 1:  # a GPU would have to be waited for
            gradient = gradient * loss
        return gradient.to(ctx.dtype), None, None, None, None


class SummedLoss(torch.autograd.Function):
    """Cross-entropy summed over targets that are no padding, Σ_i -log p_i,t_i, in float32."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, target: Tensor) -> Tensor:
        """Return the loss of scores [N, V], of a type in KEPT, and target [N] long."""
        logs = scores.log_softmax(-1, dtype=torch.float32)
        loss = nll_loss(logs, target, reduction="sum")
        if ctx.needs_input_grad[0]:
            slope = logs.exp_().scatter_(1, target[:, None], -1, reduce="add")
            ctx.save_for_backward(slope.to(KEPT[scores.dtype]))
            ctx.dtype = scores.dtype
        return loss

    @staticmethod
    @first_derivative_only("the loss of masked words")
    def backward(ctx: Any, loss: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of the scores, for that of the loss."""
        (slope,) = ctx.saved_tensors
        return torch.mul(slope, loss, out=torch.empty_like(slope, dtype=ctx.dtype)), None


def sum_losses(scores: Tensor, target: Tensor) -> Tensor:
    """Return the cross-entropy of scores [N, V], summed over targets [N] that are no padding."""
    if scores.dtype in KEPT and len(scores):
        return SummedLoss.apply(scores, target)
    return modules.cross_entropy(scores, target, reduction="sum")


def _compute_part(
    scores: Tensor, target: Tensor, padded: Tensor, weights: tuple[float, float], out: Tensor
) -> Tensor:
    """Return Σ nll_i and -Σ_iv log p_iv, [2], of some rows; write the gradient to `out`.

    The largest probability is exp(0) / Σ exp, so that the normaliser follows from it.
    """
    exact = out if out.dtype == torch.float32 else torch.empty_like(out, dtype=torch.float32)
    torch.softmax(scores, -1, dtype=torch.float32, out=exact)
    normaliser = scores.amax(1, keepdim=True) - exact.amax(1, keepdim=True).log()
    nll = (normaliser - scores.gather(1, target)).squeeze(1)
    smooth = scores.size(1) * normaliser.squeeze(1) - scores.sum(1, dtype=torch.float32)
    right, others = weights
    exact.scatter_add_(1, target, exact.new_full(target.shape, -right))
    torch.sub(exact, others, out=out)
    if out.device.type != "cpu" or padded.any():
        out.masked_fill_(padded.unsqueeze(1), 0)
    return torch.stack([nll, smooth]).masked_fill(padded, 0).sum(1)


def compute_loss(
    original: Callable, criterion: Any, model: Any, output: Any, sample: Any, reduce: bool = True
) -> tuple[Tensor, Tensor]:
    """Return loss and nll of fairseq's criterion, in place of its `compute_loss`.

    What is not the usual case is left to fairseq: evaluation, an adaptive softmax,
    --ignore-prefix-size, or a model that normalises scores itself.
    """
    scores = output[0]
    if not (reduce and _is_usual(criterion, model, scores)):
        return original(criterion, model, output, sample, reduce)
    scores = scores.view(-1, scores.size(-1))
    target = model.get_targets(sample, output).view(-1)
    part = max(ELEMENTS // scores.size(1), 1) if scores.device.type == "cpu" else len(scores)
    return SmoothedLoss.apply(scores, target, criterion.eps, criterion.padding_idx, part)


def _is_usual(criterion: Any, model: Any, scores: Any) -> bool:
    decoder = getattr(model, "decoder", None)
    return (
        torch.is_tensor(scores)
        and scores.requires_grad
        and scores.dtype in KEPT
        and scores.numel() > 0
        and criterion.ignore_prefix_size == 0
        and getattr(decoder, "adaptive_softmax", None) is None
        and _calls(model, BaseFairseqModel, TransformerModelBase)
        and _calls(decoder, FairseqDecoder)
    )


def _calls(owner: Any, *classes: Any) -> bool:
    """Return whether an object normalises scores as one of these classes does."""
    own = getattr(getattr(owner, "get_normalized_probs", None), "__func__", None)
    return own in [each.get_normalized_probs for each in classes]
