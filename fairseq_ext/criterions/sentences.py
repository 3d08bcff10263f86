"""The criterions "sentence_classification" and "sentence_regression"."""

import math
from collections.abc import Callable
from dataclasses import make_dataclass
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

from fairseq_ext.criterions.labelled_criterion import LabelledCriterion, gather, log_over_all, total
from fairseq_ext.criterions.terms import Log, Sample
from fairseq_ext.models.config import option


def f1(classes: int, predicted: np.ndarray, right: np.ndarray) -> float:
    """In per cent: of the second of two classes, as in GLUE; of more, the mean over those that
    occur."""
    average = "binary" if classes == 2 else "macro"
    return 100 * f1_score(right, predicted, average=average, zero_division=0.0)


def correlation(function: Callable, predicted: np.ndarray, right: np.ndarray) -> float:
    """In per cent; 0 of a single example and of constants."""
    if len(right) < 2 or not predicted.std() or not right.std():
        return 0.0
    return 100 * function(predicted, right)[0]


def log_accuracy(logs: list[Log]) -> None:
    sentences = total(logs, "nsentences")
    metrics.log_scalar("accuracy", 100 * total(logs, "correct") / sentences, sentences, round=2)


@register_criterion("sentence_classification", dataclass=FairseqDataclass)
class SentenceClassification(LabelledCriterion):
    """Cross-entropy, in bits; accuracy, F1 and Matthews' correlation in evaluation."""

    name, bit = "sentence_classification", math.log(2)

    def arranged(self, scores: Tensor, sample: Sample) -> Tensor:
        """[B, classes]"""
        return scores

    def loss(self, scores: Tensor, sample: Sample) -> Tensor:
        return F.cross_entropy(self.arranged(scores, sample), sample["target"], reduction="sum")

    def counts(self, scores: Tensor, sample: Sample, training: bool) -> Log:
        predicted, right = self.arranged(scores, sample).argmax(-1), sample["target"]
        counted: Log = {"correct": predicted.eq(right).sum()}
        if not training:
            counted |= {"predicted": predicted.tolist(), "right": right.tolist()}
            counted["classes"] = scores.size(-1)
        return counted

    @classmethod
    def log_metrics(cls, logs: list[Log]) -> None:
        log_accuracy(logs)
        if gather(logs, ("predicted", "right")):
            classes = max(log.get("classes", 0) for log in logs)
            log_over_all(
                {"f1": partial(f1, classes), "mcc": lambda p, r: 100 * matthews_corrcoef(r, p)}
            )


@register_criterion("multiple_choice", dataclass=FairseqDataclass)
class MultipleChoice(SentenceClassification):
    """Cross-entropy over the choices, in bits; accuracy."""

    name = "multiple_choice"

    def arranged(self, scores: Tensor, sample: Sample) -> Tensor:
        return scores.view(sample["nsentences"], -1)  # of each choice there is one

    def counts(self, scores: Tensor, sample: Sample, training: bool) -> Log:
        return super().counts(scores, sample, training=True)  # F1 over places means nothing


def negative_pearson(predicted: Tensor, right: Tensor) -> Tensor:
    """-cov(p, r) / (sd(p) sd(r)) over a batch [B] (Jia 2024); 0 where one of them is constant."""
    predicted, right = predicted - predicted.mean(), right - right.mean()
    scale = predicted.norm() * right.norm()
    return -(predicted @ right) / torch.where(scale > 1e-8, scale, torch.inf)


def squared_error(predicted: Tensor, right: Tensor) -> Tensor:
    return F.mse_loss(predicted, right)


LOSSES = {"mse": squared_error, "pearson": negative_pearson}

SentenceRegressionConfig = make_dataclass(
    "SentenceRegressionConfig",
    [
        option(
            "regression_loss",
            ChoiceEnum(list(LOSSES)),
            "mse",
            "squared error, or the negative Pearson correlation over a batch (Jia 2024)",
        )
    ],
    bases=(FairseqDataclass,),
)


@register_criterion("sentence_regression", dataclass=SentenceRegressionConfig)
class SentenceRegression(LabelledCriterion):
    """Squared error or negative correlation; correlations and squared error in evaluation."""

    name, bit = "sentence_regression", 1.0

    def __init__(self, task: Any, regression_loss: str) -> None:
        super().__init__(task)
        self.function = LOSSES[regression_loss]

    def loss(self, scores: Tensor, sample: Sample) -> Tensor:
        return sample["nsentences"] * self.function(scores.view(-1), sample["target"].float())

    def counts(self, scores: Tensor, sample: Sample, training: bool) -> Log:
        if training:
            return {}
        return {"predicted": scores.view(-1).tolist(), "right": sample["target"].tolist()}

    @classmethod
    def log_metrics(cls, logs: list[Log]) -> None:
        if gather(logs, ("predicted", "right")):
            log_over_all(
                {
                    "pearson": partial(correlation, pearsonr),
                    "spearman": partial(correlation, spearmanr),
                    "mse": lambda p, r: ((p - r) ** 2).mean(),
                }
            )
