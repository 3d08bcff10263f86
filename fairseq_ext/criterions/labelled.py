"""Criterions on labelled text: their base class, metrics over a whole evaluation, sentences.

"sentence_classification", "multiple_choice" and "sentence_regression" are of sentences.
"""

# The values of choices are types for fairseq, made at run time.
# mypy: disable-error-code="valid-type"

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.logging import metrics
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import f1_score, matthews_corrcoef
from torch import Tensor

from fairseq_ext.criterions.logging_outputs import Log, Sample, log_entry, sum_entries
from fairseq_ext.errors import UsageError
from fairseq_ext.models.config import help_from_docstring

Metric = Callable[[np.ndarray, np.ndarray], float]
"""(predicted [N], right [N]) -> value."""


class LabelledCriterion(FairseqCriterion):
    """The loss of a head's scores, summed over the examples of a batch; metrics in evaluation.

    Attributes:
        name: the name of the criterion and of its task.
        unit: the loss that is logged as 1, by default a bit.

    Raises:
        UsageError: the task is another one.
    """

    name: str
    unit: float = math.log(2)

    def __init__(self, task: Any) -> None:
        super().__init__(task)
        if task.cfg._name != self.name:
            raise UsageError(
                f"--criterion {self.name} needs --task {self.name}, not {task.cfg._name}; give both"
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


def log_over_all(logs: list[Log], functions: dict[str, Metric]) -> bool:
    """Log functions of all predictions of an evaluation, from the lists "predicted" and "right".

    Returns:
        Whether there are any predictions.
    """
    for name in ("predicted", "right"):
        values = list(chain.from_iterable(log.get(name, []) for log in logs))
        if not values:
            return False
        metrics.log_concat_tensor(f"_{name}", torch.tensor(values), dim=0)
    for name, function in functions.items():
        metrics.log_derived(name, partial(compute_metric, function))
    return True


def compute_metric(function: Metric, meters: dict[str, Any]) -> float:
    """Return a function of the predictions that were logged, rounded."""
    predicted, right = (meters[name].tensor.numpy() for name in ("_predicted", "_right"))
    with warnings.catch_warnings():  # correlations of nearly constant values
        warnings.simplefilter("ignore")
        return round(float(function(predicted, right)), 3)


def f1(classes: int, predicted: np.ndarray, right: np.ndarray) -> float:
    """Return F1 in per cent: of the second of two classes, as in GLUE; of more, their mean.

    The mean is over the classes that occur.
    """
    average = "binary" if classes == 2 else "macro"
    return 100 * f1_score(right, predicted, average=average, zero_division=0.0)


def matthews(predicted: np.ndarray, right: np.ndarray) -> float:
    """Return Matthews' correlation in per cent."""
    return 100 * matthews_corrcoef(right, predicted)


def correlation(function: Callable, predicted: np.ndarray, right: np.ndarray) -> float:
    """Return a correlation in per cent; 0 for a single example and for constants."""
    if len(right) < 2 or not predicted.std() or not right.std():
        return 0.0
    return 100 * function(predicted, right)[0]


def mean_squared_error(predicted: np.ndarray, right: np.ndarray) -> float:
    """Return the mean squared difference."""
    return ((predicted - right) ** 2).mean()


@register_criterion("sentence_classification", dataclass=FairseqDataclass)
class SentenceClassification(LabelledCriterion):
    """Cross-entropy, in bits; accuracy, F1 and Matthews' correlation in evaluation."""

    name = "sentence_classification"

    def arrange_scores(self, scores: Tensor, sample: Sample) -> Tensor:
        """Return the scores of each example's classes, [B, classes]."""
        return scores

    def loss(self, scores: Tensor, sample: Sample) -> Tensor:
        """Return the cross-entropy, summed over the batch."""
        scores = self.arrange_scores(scores, sample)
        return F.cross_entropy(scores, sample["target"], reduction="sum")

    def count(self, scores: Tensor, sample: Sample, training: bool) -> Log:
        """Return the number of correct predictions, and in evaluation all of them."""
        predicted, right = self.arrange_scores(scores, sample).argmax(-1), sample["target"]
        counts: Log = {"correct": predicted.eq(right).sum()}
        if not training:
            counts |= {"predicted": predicted.tolist(), "right": right.tolist()}
            counts["classes"] = scores.size(-1)
        return counts

    @classmethod
    def log_metrics(cls, logs: list[Log]) -> None:
        """Log accuracy, and F1 and Matthews' correlation in evaluation."""
        sentences = sum_entries(logs, "nsentences")
        accuracy = 100 * sum_entries(logs, "correct") / sentences
        metrics.log_scalar("accuracy", accuracy, sentences, round=2)
        classes = max((log.get("classes", 0) for log in logs), default=0)
        log_over_all(logs, {"f1": partial(f1, classes), "mcc": matthews})


@register_criterion("multiple_choice", dataclass=FairseqDataclass)
class MultipleChoice(SentenceClassification):
    """Cross-entropy over the choices, in bits; accuracy."""

    name = "multiple_choice"

    def arrange_scores(self, scores: Tensor, sample: Sample) -> Tensor:
        """Return the scores of each question's choices, [B, choices], from one row for each."""
        return scores.view(sample["nsentences"], -1)

    def count(self, scores: Tensor, sample: Sample, training: bool) -> Log:
        """Return the number of correct predictions. F1 over places would mean nothing."""
        return super().count(scores, sample, training=True)


def negative_pearson(predicted: Tensor, right: Tensor) -> Tensor:
    """Return -cov(p, r) / (sd(p) sd(r)) over a batch [B] (Jia 2024); 0 where one is constant."""
    predicted, right = predicted - predicted.mean(), right - right.mean()
    scale = predicted.norm() * right.norm()
    covariance = (predicted * right).sum()  # a product of vectors would be in 16 bits under --amp
    return -covariance / torch.where(scale > 1e-8, scale, torch.inf)


LOSSES: dict[str, Callable] = {"mse": F.mse_loss, "pearson": negative_pearson}

RegressionLosses = ChoiceEnum(list(LOSSES))


@dataclass
@help_from_docstring
class SentenceRegressionConfig(FairseqDataclass):
    """The options of "sentence_regression".

    Attributes:
        regression_loss: squared error, or the negative Pearson correlation over a batch (Jia 2024)
    """

    regression_loss: RegressionLosses = "mse"


@register_criterion("sentence_regression", dataclass=SentenceRegressionConfig)
class SentenceRegression(LabelledCriterion):
    """Squared error or negative correlation; correlations and squared error in evaluation."""

    name, unit = "sentence_regression", 1.0

    def __init__(self, task: Any, regression_loss: str) -> None:
        super().__init__(task)
        self.function = LOSSES[regression_loss]

    def loss(self, scores: Tensor, sample: Sample) -> Tensor:
        """Return the loss of the batch, times the number of its examples."""
        return sample["nsentences"] * self.function(scores.view(-1), sample["target"].float())

    def count(self, scores: Tensor, sample: Sample, training: bool) -> Log:
        """Return all predictions, in evaluation."""
        if training:
            return {}
        return {"predicted": scores.view(-1).tolist(), "right": sample["target"].tolist()}

    @classmethod
    def log_metrics(cls, logs: list[Log]) -> None:
        """Log correlations and squared error, in evaluation."""
        kinds = {"pearson": pearsonr, "spearman": spearmanr}
        correlations = {name: partial(correlation, kind) for name, kind in kinds.items()}
        log_over_all(logs, {**correlations, "mse": mean_squared_error})
