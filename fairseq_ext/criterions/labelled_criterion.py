"""The base class of criterions on labelled text, and metrics over a whole evaluation."""

import warnings
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from fairseq.criterions import FairseqCriterion
from fairseq.logging import metrics
from torch import Tensor

from fairseq_ext.criterions.logging_outputs import Log, log_entry, sum_entries
from fairseq_ext.criterions.terms import Sample
from fairseq_ext.errors import UsageError

Metric = Callable[[np.ndarray, np.ndarray], float]
"""(predicted [N], right [N]) -> value."""


class LabelledCriterion(FairseqCriterion):
    """The loss of a head's scores, summed over the examples of a batch; metrics in evaluation.

    Attributes:
        name: the name of the criterion and of its task.
        unit: the loss that is logged as 1: log 2 for bits.

    Raises:
        UsageError: the task is another one.
    """

    name: str
    unit: float

    def __init__(self, task: Any) -> None:
        super().__init__(task)
        if task.cfg._name != self.name:
            raise UsageError(
                f"--criterion {self.name} is for --task {self.name} and not for "
                f"{task.cfg._name}; give both"
            )
        self.task = task

    def forward(self, model: Any, sample: Sample, reduce: bool = True) -> tuple[Tensor, int, Log]:
        """Return loss, sample size and logging output."""
        scores = model(**sample["net_input"], task_head=True)[0].float()
        loss, size = self.loss(scores, sample), self.sample_size(sample)
        counts = self.count(scores.detach(), sample, model.training)
        return loss, size, log_entry(loss, sample, size) | counts

    def sample_size(self, sample: Sample) -> int:
        """Return the number of summands of the loss: examples, or rows, or words."""
        return sample["nsentences"]

    def loss(self, scores: Tensor, sample: Sample) -> Tensor:
        """Return the loss, summed over the batch."""
        raise NotImplementedError

    def count(self, scores: Tensor, sample: Sample, training: bool) -> Log:
        """Return what metrics are computed from: numbers to be summed, lists to be joined."""
        raise NotImplementedError

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[Log]) -> None:
        """Log the mean loss and the metrics."""
        size = sum_entries(logging_outputs, "sample_size")
        loss = sum_entries(logging_outputs, "loss") / size / cls.unit
        metrics.log_scalar("loss", loss, size, round=3)
        cls.log_metrics(logging_outputs)

    @classmethod
    def log_metrics(cls, logs: list[Log]) -> None:
        """Log the metrics."""
        raise NotImplementedError

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """Return False: logging outputs hold lists."""
        return False


def log_over_all(logs: list[Log], functions: dict[str, Metric]) -> bool:
    """Log functions of all predictions of an evaluation, from the lists "predicted" and "right".

    Returns:
        Whether there are any predictions.
    """
    names = ("predicted", "right")
    joined = {name: list(chain.from_iterable(log.get(name, []) for log in logs)) for name in names}
    for name, values in joined.items():
        if values:
            metrics.log_concat_tensor(f"_{name}", torch.tensor(values), dim=0)
    if not any(joined.values()):
        return False
    for name, function in functions.items():
        metrics.log_derived(name, partial(compute_metric, function))
    return True


def compute_metric(function: Metric, meters: dict[str, Any]) -> float:
    """Return a function of the predictions that were logged, rounded."""
    predicted, right = (meters[name].tensor.numpy() for name in ("_predicted", "_right"))
    with warnings.catch_warnings():  # correlations of nearly constant values
        warnings.simplefilter("ignore")
        return round(float(function(predicted, right)), 3)
