"""The criterion "span_extraction"."""

import math
from typing import Any

import torch.nn.functional as F
from fairseq.criterions import register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor

from fairseq_ext.criterions.labelled_criterion import LabelledCriterion, total
from fairseq_ext.criterions.terms import Log, Sample
from fairseq_ext.data.labelled_dataset import IGNORED


@register_criterion("span_extraction", dataclass=FairseqDataclass)
class SpanExtraction(LabelledCriterion):
    """Mean of the cross-entropies of first and last token, of windows that have an answer, plus
    the logistic loss of having one, over windows, in bits. In evaluation exact match and F1."""

    name, bit = "span_extraction", math.log(2)

    def size(self, sample: Sample) -> int:
        return len(sample["target"])

    def loss(self, scores: Tensor, sample: Sample) -> Tensor:
        places, answered = sample["target"][:, :2], sample["target"][:, 2]
        padding = sample["net_input"]["src_tokens"].eq(self.padding_idx).unsqueeze(-1)
        tokens = scores[..., :2].masked_fill(padding, -1e4)
        spans = F.cross_entropy(tokens, places, ignore_index=IGNORED, reduction="sum") / 2
        return spans + F.binary_cross_entropy_with_logits(
            scores[:, 0, 2], answered.float(), reduction="sum"
        )

    def counts(self, scores: Tensor, sample: Sample, training: bool) -> Log:
        if training:
            return {}
        from torchmetrics.functional.text import squad  # seconds, which training need not wait

        said = self.task.answers(scores, sample)
        predicted: list[Any] = []
        right: list[Any] = []
        for number, (item, answer) in enumerate(zip(sample["items"], said, strict=True)):
            texts = [a["text"] for a in item.example.values["answers"]] or [""]
            answers = {"text": texts, "answer_start": [0] * len(texts)}
            predicted.append({"id": str(number), "prediction_text": answer["answer"]})
            right.append({"id": str(number), "answers": answers})
        found = squad(predicted, right)
        return {
            "exact": float(found["exact_match"]) * len(said),
            "overlap": float(found["f1"]) * len(said),
        }

    @classmethod
    def log_metrics(cls, logs: list[Log]) -> None:
        if not any("exact" in log for log in logs):
            return
        questions = total(logs, "nsentences")
        metrics.log_scalar("exact_match", total(logs, "exact") / questions, questions, round=2)
        metrics.log_scalar("f1", total(logs, "overlap") / questions, questions, round=2)
