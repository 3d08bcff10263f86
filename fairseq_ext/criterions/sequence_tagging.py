"""The criterion "sequence_tagging"."""

import math
from collections.abc import Sequence

import numpy as np
import torch.nn.functional as F
from fairseq.criterions import register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from nervaluate import Evaluator
from sklearn.metrics import f1_score
from torch import Tensor

from fairseq_ext.criterions.labelled_criterion import (
    LabelledCriterion,
    gather,
    log_over_all,
    percent,
    total,
)
from fairseq_ext.criterions.terms import Log, Sample
from fairseq_ext.data.labelled_dataset import IGNORED
from fairseq_ext.data.tags import Entity, entities

COUNTS = ("found", "marked", "hits")


@register_criterion("sequence_tagging", dataclass=FairseqDataclass)
class SequenceTagging(LabelledCriterion):
    """Cross-entropy over words, in bits; in evaluation accuracy, and F1 of entities (kind and both
    ends right, as "f1") and of the tags that are not O ("token_f1")."""

    name, bit = "sequence_tagging", math.log(2)

    def size(self, sample: Sample) -> int:
        rows = [row for item in sample["items"] for row in item.target]  # a GPU is not waited for
        return max(1, sum(int((row != IGNORED).sum()) for row in rows))

    def loss(self, scores: Tensor, sample: Sample) -> Tensor:
        return F.cross_entropy(
            scores.transpose(1, 2), sample["target"], ignore_index=IGNORED, reduction="sum"
        )

    def counts(self, scores: Tensor, sample: Sample, training: bool) -> Log:
        if training:
            return {}
        predicted = self.task.tags(scores, sample["items"])
        right = [item.example.values["tags"] for item in sample["items"]]
        number = {tag: place for place, tag in enumerate(self.task.labels)}
        return {
            "predicted": [number[tag] for tags in predicted for tag in tags],
            "right": [number[tag] for tags in right for tag in tags],
            **match([entities(tags) for tags in predicted], [entities(tags) for tags in right]),
        }

    @classmethod
    def log_metrics(cls, logs: list[Log]) -> None:
        if not gather(logs, ("predicted", "right")):
            return
        log_over_all(
            {
                "accuracy": lambda p, r: 100 * (p == r).mean(),
                "token_f1": token_f1,
            }
        )
        for name in COUNTS:
            metrics.log_scalar_sum(f"_{name}", total(logs, name))
        metrics.log_derived("precision", lambda m: percent(m["_hits"].sum, m["_found"].sum))
        metrics.log_derived("recall", lambda m: percent(m["_hits"].sum, m["_marked"].sum))
        metrics.log_derived(
            "f1", lambda m: percent(2 * m["_hits"].sum, m["_found"].sum + m["_marked"].sum)
        )


def token_f1(predicted: np.ndarray, right: np.ndarray) -> float:
    """In per cent, over the words that have or should have another tag than O (number 0)."""
    marks = range(1, max(*predicted, *right, 1) + 1)
    return 100 * f1_score(right, predicted, labels=marks, average="micro", zero_division=0.0)


def match(predicted: Sequence[list[Entity]], right: Sequence[list[Entity]]) -> Log:
    """How many entities were found, are marked, and are the same."""
    sides = [
        [[{"label": e.kind, "start": e.first, "end": e.last} for e in each] for each in side]
        for side in (right, predicted)
    ]
    kinds = sorted({e.kind for side in (right, predicted) for each in side for e in each})
    strict = Evaluator(*sides, tags=kinds, loader="dict").evaluate()["overall"]["strict"]
    return {"found": strict.actual, "marked": strict.possible, "hits": strict.correct}
