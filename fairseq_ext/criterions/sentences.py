"""The criterions "sentence_classification", "multiple_choice" and "sentence_regression"."""

# The values of choices are types for fairseq, made at run time.
# mypy: disable-error-code="valid-type"

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from fairseq.criterions import register_criterion
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.logging import metrics
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import f1_score, matthews_corrcoef
from torch import Tensor

from fairseq_ext.criterions.labelled_criterion import LabelledCriterion, Metric, log_over_all
from fairseq_ext.criterions.logging_outputs import Log, sum_entries
from fairseq_ext.criterions.terms import Sample
from fairseq_ext.models.config import described


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

    name, unit = "sentence_classification", math.log(2)

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


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse": F.mse_loss,
    "pearson": negative_pearson,
}

RegressionLosses = ChoiceEnum(list(LOSSES))


@dataclass
class SentenceRegressionConfig(FairseqDataclass):
    """The options of "sentence_regression"."""

    regression_loss: RegressionLosses = described(
        "mse", "squared error, or the negative Pearson correlation over a batch (Jia 2024)"
    )


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
        functions: dict[str, Metric] = {
            "pearson": partial(correlation, pearsonr),
            "spearman": partial(correlation, spearmanr),
            "mse": mean_squared_error,
        }
        log_over_all(logs, functions)
