"""Steps of fairseq's own models with fairseq's own functions, which `patches.speed` replaces."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager

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
    try:
        for owner, name in REPLACED.items():
            setattr(owner, name, inspect.unwrap(ours[owner]))
        yield
    finally:
        for owner, name in REPLACED.items():
            setattr(owner, name, ours[owner])
