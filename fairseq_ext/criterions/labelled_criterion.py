"""What criterions on labelled text share."""

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

from fairseq_ext.criterions.terms import Log, Sample
from fairseq_ext.errors import UsageError

Metric = Callable[[np.ndarray, np.ndarray], float]


class LabelledCriterion(FairseqCriterion):
    """The loss of a head's scores, summed over the examples of a batch; metrics in evaluation.

    Attributes:
        bit: what a unit of loss is logged as, log 2 for bits.

    Raises:
        UsageError: the task is another one.
    """

    name: str
    bit: float

    def __init__(self, task: Any) -> None:
        super().__init__(task)
        if task.cfg._name != self.name:
            raise UsageError(
                f"--criterion {self.name} is for --task {self.name} and not for "
                f"{task.cfg._name}; give both"
            )
        self.task = task

    def forward(self, model: Any, sample: Sample, reduce: bool = True) -> tuple[Tensor, int, Log]:
        scores = model(**sample["net_input"], task_head=True)[0].float()
        size = self.size(sample)
        loss = self.loss(scores, sample)
        logged = {
            "loss": loss.detach(),
            "ntokens": sample["ntokens"],
            "nsentences": sample["nsentences"],
            "sample_size": size,
            **self.counts(scores.detach(), sample, model.training),
        }
        return loss, size, logged

    def size(self, sample: Sample) -> int:
        """What the loss is a sum over."""
        return sample["nsentences"]

    def loss(self, scores: Tensor, sample: Sample) -> Tensor:
        raise NotImplementedError

    def counts(self, scores: Tensor, sample: Sample, training: bool) -> Log:
        """What metrics need: numbers to be summed, lists to be joined."""
        raise NotImplementedError

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[Log]) -> None:
        size = sum(log.get("sample_size", 0) for log in logging_outputs)
        loss = sum(log.get("loss", 0) for log in logging_outputs)
        metrics.log_scalar("loss", loss / size / cls.bit, size, round=3)
        cls.log_metrics(logging_outputs)

    @classmethod
    def log_metrics(cls, logs: list[Log]) -> None:
        raise NotImplementedError

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return False  # there are lists


def gather(logs: list[Log], names: tuple[str, ...]) -> bool:
    """Keep the lists of these names for metrics over a whole data set; whether there are any."""
    joined = {name: list(chain.from_iterable(log.get(name, []) for log in logs)) for name in names}
    for name, values in joined.items():
        if values:
            metrics.log_concat_tensor(f"_{name}", torch.tensor(values), dim=0)
    return any(joined.values())


def log_over_all(names: dict[str, Metric]) -> None:
    """Log functions of all that was predicted in an evaluation and what was right."""
    for name, function in names.items():
        metrics.log_derived(name, partial(_value, function))


def _value(function: Metric, meters: dict[str, Any]) -> float:
    predicted, right = (meters[name].tensor.numpy() for name in ("_predicted", "_right"))
    with warnings.catch_warnings():  # of correlations of what is nearly constant
        warnings.simplefilter("ignore")
        return round(float(function(predicted, right)), 3)


def percent(part: Any, whole: Any) -> float:
    return round(100 * float(part) / float(whole), 2) if whole else 0.0


def total(logs: list[Log], name: str) -> Any:
    return sum(log.get(name, 0) for log in logs)
