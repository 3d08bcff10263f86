"""Steps of fairseq's own models with fairseq's own functions, which patches replace to be faster.

Products of matrices are torch's usual ones, too.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from fairseq import modules, utils
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.criterions.masked_lm import MaskedLmLoss
from fairseq.optim.adam import Adam
from fairseq.optim.fp16_optimizer import _FP16OptimizerMixin
from fairseq.trainer import Trainer
from torch import nn

REPLACED = (
    (LabelSmoothedCrossEntropyCriterion, "compute_loss"),
    (MaskedLmLoss, "forward"),
    (Adam, "step"),
    (_FP16OptimizerMixin, "_sync_fp16_grads_to_fp32"),
    (_FP16OptimizerMixin, "_sync_fp32_params_to_fp16"),
    (_FP16OptimizerMixin, "zero_grad"),
    (utils, "clip_grad_norm_"),
    (modules, "gelu"),
    (Trainer, "_prepare_sample"),
    (Trainer, "_reduce_and_log_stats"),
)
"""Owners and names of fairseq's functions for whose speed there is a patch."""


def is_stock(model: nn.Module) -> bool:
    """Tell whether a model is fairseq's own, and not of this package."""
    return type(model).__module__.startswith("fairseq.")


@contextmanager
def stock_functions() -> Iterator[None]:
    """Put fairseq's functions back for a time."""
    ours = [getattr(owner, name) for owner, name in REPLACED]
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        for (owner, name), function in zip(REPLACED, ours, strict=True):
            setattr(owner, name, inspect.unwrap(function))
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        for (owner, name), function in zip(REPLACED, ours, strict=True):
            setattr(owner, name, function)


def as_released(work: Callable[[int], object]) -> Callable[[int], object]:
    """Return work of other people's code, done with their functions."""

    def released(turn: int) -> object:
        with stock_functions():
            return work(turn)

    return released
