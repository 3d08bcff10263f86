"""Steps of fairseq's own models with fairseq's own functions, which `patches.speed` replaces.

Products of matrices are torch's usual ones, too.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.optim.adam import Adam
from torch import nn

REPLACED: dict[type, str] = {LabelSmoothedCrossEntropyCriterion: "compute_loss", Adam: "step"}


def is_stock(model: nn.Module) -> bool:
    """Tell whether a model is fairseq's own, and not of this package."""
    return type(model).__module__.startswith("fairseq.")


@contextmanager
def stock_functions() -> Iterator[None]:
    """Put fairseq's functions back for a time."""
    ours = {owner: getattr(owner, name) for owner, name in REPLACED.items()}
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        for owner, name in REPLACED.items():
            setattr(owner, name, inspect.unwrap(ours[owner]))
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        for owner, name in REPLACED.items():
            setattr(owner, name, ours[owner])


def as_released(work: Callable[[int], object]) -> Callable[[int], object]:
    """Return work of other people's code, done with their functions."""

    def released(turn: int) -> object:
        with stock_functions():
            return work(turn)

    return released
