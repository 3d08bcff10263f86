"""What a composite criterion and its terms say to each other."""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from fairseq_ext.criterions.adversarial.divergence import Compared
from fairseq_ext.models.config import Option

Sample = dict[str, Any]
Log = dict[str, Any]


class Step(NamedTuple):
    """What a term knows of a training step.

    Attributes:
        model: in training.
        output: of the model.
        loss: of the base criterion, summed over the batch.
        weights: [rows] what each row of the source adds to the sample size.
        size: their sum.
        updates: made so far.
        compared: what a divergence compares in an output of the model; in that of a second pass
            too.
        again: the loss and the output with further arguments of the model, or other `parameters`.
    """

    sample: Sample
    model: Any
    output: Any
    loss: Tensor
    weights: Tensor
    size: Any
    updates: int
    compared: Callable[[Any], list[Compared]]
    again: Callable[..., tuple[Tensor, Any]]


class Term:
    """An auxiliary loss, of a configuration and a task.

    Attributes:
        options: what it adds to the dataclass of a criterion.
        evaluated: it is part of the task, not of the training alone.
        uses_adversaries: it trains those of the model.
    """

    options: list[Option] = []
    evaluated = False
    uses_adversaries = False

    def __init__(self, cfg: Any, task: Any) -> None:
        raise NotImplementedError

    def begin(self) -> None:
        """Called before a training; raises UsageError for what a training alone needs."""

    def keywords(self, updates: int) -> dict[str, Any]:
        """Further arguments of the model in this step."""
        raise NotImplementedError

    def loss(self, step: Step) -> tuple[Tensor | float, Log]:
        """The weighted loss, summed over the batch, and what is logged of it, summed as well."""
        raise NotImplementedError

    @staticmethod
    def reduce_metrics(logs: list[Log]) -> None:
        """Log what all steps and workers reported."""
        raise NotImplementedError


def unwrapped(model: Any) -> Any:
    """The model itself, whose parameters have the same names in any number of processes."""
    while "module" in dict(model.named_children()):
        model = model.module
    return model
