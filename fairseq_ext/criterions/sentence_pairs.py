"""The terms "nsp" and "sop": whether the second segment of a pair belongs where it is."""

import math
from typing import Any

import torch.nn.functional as F
from fairseq.logging import metrics
from torch import Tensor

from fairseq_ext.criterions.logging_outputs import Log, sum_entries
from fairseq_ext.criterions.terms import Term, TrainingStep
from fairseq_ext.errors import UsageError
from fairseq_ext.tasks.plain_text import PAIRS


class SentencePair(Term):
    """sum_b w_b CE_b, the cross-entropy of a pair's label, predicted from the first token.

    w_b is what sentence b adds to the sample size. The result is the sum of the mean losses of
    masked tokens and pairs, as in BERT, in a form that batching does not change.

    Attributes:
        kind: "nsp" or "sop", the kind of pairs and the prefix of log keys.

    Raises:
        UsageError: the task makes no such pairs.
    """

    in_evaluation = True
    kind: str

    def __init__(self, cfg: Any, task: Any) -> None:
        if getattr(task, "kind", None) != self.kind:
            raise UsageError(f"--criterion {cfg._name} needs --task masked_lm_{self.kind}; give it")

    def keywords(self, updates: int) -> dict[str, Any]:
        """Return the name of the head that classifies pairs."""
        return {"further_heads": (PAIRS,)}

    def loss(self, step: TrainingStep) -> tuple[Tensor, Log]:
        """Return the weighted cross-entropy; log it and the number of correct predictions."""
        scores, labels = step.output[1]["heads"][PAIRS].float(), step.sample["pair"]
        total = (step.weights * F.cross_entropy(scores, labels, reduction="none")).sum()
        correct = scores.argmax(-1).eq(labels).sum()
        return total, {f"{self.kind}_loss": total.detach(), f"{self.kind}_correct": correct}

    @classmethod
    def reduce_metrics(cls, logs: list[Log]) -> None:
        """Log the loss in bits and the accuracy in per cent."""
        size, pairs = sum_entries(logs, "sample_size"), sum_entries(logs, "nsentences")
        bits = sum_entries(logs, f"{cls.kind}_loss") / size / math.log(2)
        metrics.log_scalar(f"{cls.kind}_loss", bits, size, round=3)
        accuracy = 100 * sum_entries(logs, f"{cls.kind}_correct") / pairs
        metrics.log_scalar(f"{cls.kind}_accuracy", accuracy, pairs, round=2)


class NextSentence(SentencePair):
    """Next-sentence prediction (BERT; the attention guidance paper's Filipino models)."""

    kind = "nsp"


class SentenceOrder(SentencePair):
    """Sentence-order prediction (ALBERT; Ding et al. 2020)."""

    kind = "sop"
