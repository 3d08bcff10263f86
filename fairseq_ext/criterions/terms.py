"""What a composite criterion and its terms say to each other."""

from typing import Any, NamedTuple, Protocol

from torch import Tensor

from fairseq_ext.models.config import Option

Sample = dict[str, Any]
Log = dict[str, Any]


class Step(NamedTuple):
    """What a term knows of a training step.

    Attributes:
        output: of the model.
        loss: of the base criterion, summed over the batch.
        weights: [B] what each sentence adds to the sample size.
        size: their sum.
        updates: made so far.
    """

    sample: Sample
    output: Any
    loss: Tensor
    weights: Tensor
    size: Any
    updates: int


class Term(Protocol):
    """An auxiliary loss.

    Attributes:
        options: what it adds to the dataclass of a criterion.
        evaluated: it is part of the task, not of the training alone.
    """

    options: list[Option]
    evaluated: bool

    def __init__(self, cfg: Any, task: Any) -> None: ...

    def keywords(self, updates: int) -> dict[str, Any]:
        """Further arguments of the model in this step."""

    def loss(self, step: Step) -> tuple[Tensor | float, Log]:
        """The weighted loss, summed over the batch, and what is logged of it, summed as well."""

    @staticmethod
    def reduce_metrics(logs: list[Log]) -> None:
        """Log what all steps and workers reported."""
