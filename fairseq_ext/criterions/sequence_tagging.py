"""The criterion "sequence_tagging"."""

import math
from collections.abc import Sequence

import numpy as np
import torch.nn.functional as F
from fairseq.criterions import register_criterion
from fairseq.dataclass import FairseqDataclass
from nervaluate import Evaluator
from sklearn.metrics import f1_score
from torch import Tensor

from fairseq_ext.criterions.labelled_criterion import LabelledCriterion, log_over_all
from fairseq_ext.criterions.logging_outputs import Log, log_percentage, log_sums
from fairseq_ext.criterions.terms import Sample
from fairseq_ext.data.rows import IGNORED
from fairseq_ext.data.tags import Entity, entities


@register_criterion("sequence_tagging", dataclass=FairseqDataclass)
class SequenceTagging(LabelledCriterion):
    """Cross-entropy over words, in bits; accuracy and F1 in evaluation.

    "f1" is of entities (kind and both ends right), "token_f1" of the tags that are not O.
    """

    name, unit = "sequence_tagging", math.log(2)

    def sample_size(self, sample: Sample) -> int:
        """Return the number of tagged words, counted on the CPU: a GPU would have to be awaited."""
        rows = [row for item in sample["items"] for row in item.target]
        return max(1, sum(int((row != IGNORED).sum()) for row in rows))

    def loss(self, scores: Tensor, sample: Sample) -> Tensor:
        """Return the cross-entropy of tagged words, summed over the batch."""
        return F.cross_entropy(
            scores.transpose(1, 2), sample["target"], ignore_index=IGNORED, reduction="sum"
        )

    def count(self, scores: Tensor, sample: Sample, training: bool) -> Log:
        """Return the tags of all words by number and the counts of entities, in evaluation."""
        if training:
            return {}
        predicted = self.task.predict_tags(scores, sample["items"])
        right = [item.example.values["tags"] for item in sample["items"]]
        number = {tag: place for place, tag in enumerate(self.task.labels)}
        return {
            "predicted": [number[tag] for tags in predicted for tag in tags],
            "right": [number[tag] for tags in right for tag in tags],
            **match_entities([entities(t) for t in predicted], [entities(t) for t in right]),
        }

    @classmethod
    def log_metrics(cls, logs: list[Log]) -> None:
        """Log accuracy, F1 of tags, and precision, recall and F1 of entities, in evaluation."""
        if log_over_all(logs, {"accuracy": accuracy, "token_f1": token_f1}):
            log_sums(logs, ("found", "marked", "hits"))
            log_percentage("precision", "hits", "found")
            log_percentage("recall", "hits", "marked")
            log_percentage("f1", "hits", "found", "marked")


def accuracy(predicted: np.ndarray, right: np.ndarray) -> float:
    """Return the share of right tags, in per cent."""
    return 100 * (predicted == right).mean()


def token_f1(predicted: np.ndarray, right: np.ndarray) -> float:
    """Return F1 in per cent, over the words that have or should have another tag than O (0)."""
    marks = range(1, max(*predicted, *right, 1) + 1)
    return 100 * f1_score(right, predicted, labels=marks, average="micro", zero_division=0.0)


def match_entities(predicted: Sequence[list[Entity]], right: Sequence[list[Entity]]) -> Log:
    """Return how many entities were found, are marked, and are the same."""
    sides = [
        [[{"label": e.kind, "start": e.first, "end": e.last} for e in each] for each in side]
        for side in (right, predicted)
    ]
    kinds = sorted({e.kind for side in (right, predicted) for each in side for e in each})
    strict = Evaluator(*sides, tags=kinds, loader="dict").evaluate()["overall"]["strict"]
    return {"found": strict.actual, "marked": strict.possible, "hits": strict.correct}
