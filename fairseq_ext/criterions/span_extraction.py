"""The criterion "span_extraction"."""

import math

import torch.nn.functional as F
from fairseq.criterions import register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor

from fairseq_ext.criterions.labelled_criterion import LabelledCriterion
from fairseq_ext.criterions.logging_outputs import Log, sum_entries
from fairseq_ext.criterions.squad import score_answer
from fairseq_ext.criterions.terms import Sample
from fairseq_ext.data.rows import IGNORED


@register_criterion("span_extraction", dataclass=FairseqDataclass)
class SpanExtraction(LabelledCriterion):
    """The loss of answers as spans, in bits; exact match and F1 in evaluation.

    It is the mean of the cross-entropies of first and last token, for windows that have an answer,
    plus the logistic loss of having one. Both are sums over windows.
    """

    name, unit = "span_extraction", math.log(2)

    def sample_size(self, sample: Sample) -> int:
        """Return the number of windows."""
        return len(sample["target"])

    def loss(self, scores: Tensor, sample: Sample) -> Tensor:
        """Return the loss, summed over windows."""
        places, answered = sample["target"][:, :2], sample["target"][:, 2]
        padding = sample["net_input"]["src_tokens"].eq(self.padding_idx).unsqueeze(-1)
        tokens = scores[..., :2].masked_fill(padding, -1e4)
        spans = F.cross_entropy(tokens, places, ignore_index=IGNORED, reduction="sum") / 2
        return spans + F.binary_cross_entropy_with_logits(
            scores[:, 0, 2], answered.float(), reduction="sum"
        )

    def count(self, scores: Tensor, sample: Sample, training: bool) -> Log:
        """Return exact match and F1 of SQuAD, summed over questions, in evaluation."""
        if training:
            return {}
        answers = self.task.read_answers(scores, sample)
        exact = overlap = 0.0
        for item, answer in zip(sample["items"], answers, strict=True):
            references = [each["text"] for each in item.example.values["answers"]] or [""]
            matches, f1 = score_answer(answer["answer"], references)
            exact, overlap = exact + 100 * matches, overlap + 100 * f1
        return {"exact": exact, "overlap": overlap}

    @classmethod
    def log_metrics(cls, logs: list[Log]) -> None:
        """Log exact match and F1, in evaluation."""
        if any("exact" in log for log in logs):
            questions = sum_entries(logs, "nsentences")
            for name, entry in {"exact_match": "exact", "f1": "overlap"}.items():
                value = sum_entries(logs, entry) / questions
                metrics.log_scalar(name, value, questions, round=2)
