"""The terms "nsp" and "sop": does the second segment belong where it is? Beside masked LM."""

import math
from typing import Any

import torch.nn.functional as F
from fairseq.logging import metrics
from torch import Tensor

from fairseq_ext.criterions.terms import Log, Step, Term
from fairseq_ext.errors import UsageError
from fairseq_ext.tasks.sentence_pairs import HEAD

NATS = math.log(2)  # of a bit, in which fairseq logs


class SentencePair(Term):
    """sum_b w_b CE_b, the cross-entropy of a pair's label, read off the first token.

    w_b is what sentence b adds to the sample size: the sum of the mean losses of masked tokens and
    pairs, as in BERT, in a form that batching does not change.

    Attributes:
        kind: "nsp" or "sop", of pairs and in the log.

    Raises:
        UsageError: the task makes no such pairs.
    """

    evaluated = True
    kind: str

    def __init__(self, cfg: Any, task: Any) -> None:
        if getattr(task, "kind", None) != self.kind:
            raise UsageError(
                f"--criterion {cfg._name} needs the pairs of --task masked_lm_{self.kind}; give it"
            )

    def keywords(self, updates: int) -> dict[str, Any]:
        return {"further_heads": (HEAD,)}

    def loss(self, step: Step) -> tuple[Tensor, Log]:
        scores, labels = step.output[1]["heads"][HEAD].float(), step.sample["pair"]
        total = (step.weights * F.cross_entropy(scores, labels, reduction="none")).sum()
        correct = scores.argmax(-1).eq(labels).sum()
        return total, {f"{self.kind}_loss": total.detach(), f"{self.kind}_correct": correct}

    @classmethod
    def reduce_metrics(cls, logs: list[Log]) -> None:
        loss, correct, size, pairs = (
            sum(log.get(name, 0) for log in logs)
            for name in (f"{cls.kind}_loss", f"{cls.kind}_correct", "sample_size", "nsentences")
        )
        metrics.log_scalar(f"{cls.kind}_loss", loss / size / NATS, size, round=3)
        metrics.log_scalar(f"{cls.kind}_accuracy", 100 * correct / pairs, pairs, round=2)


class NextSentence(SentencePair):
    """Next-sentence prediction (BERT; the attention guidance paper's Filipino models)."""

    kind = "nsp"


class SentenceOrder(SentencePair):
    """Sentence-order prediction (ALBERT; Ding et al. 2020)."""

    kind = "sop"
