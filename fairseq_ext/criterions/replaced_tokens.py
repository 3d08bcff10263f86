"""The criterion "replaced_token_detection": ELECTRA's discriminator."""

import math
from typing import Any

import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor

from fairseq_ext.criterions.logging_outputs import (
    Log,
    log_entry,
    log_percentage,
    log_sums,
    sum_entries,
)
from fairseq_ext.criterions.terms import Sample
from fairseq_ext.errors import UsageError
from fairseq_ext.tasks.plain_text import REPLACED


@register_criterion(REPLACED, dataclass=FairseqDataclass)
class ReplacedTokenDetection(FairseqCriterion):
    """The logistic loss over all real tokens: was each replaced? Logs bits, accuracy and F1.

    Raises:
        UsageError: the task replaces nothing.
    """

    def __init__(self, task: Any) -> None:
        super().__init__(task)
        if not hasattr(task.cfg, "replace_prob"):
            raise UsageError(f"--criterion {REPLACED} needs the text of --task {REPLACED}; give it")

    def forward(self, model: Any, sample: Sample, reduce: bool = True) -> tuple[Tensor, Any, Log]:
        """Return loss, sample size and logging output."""
        real = sample["net_input"]["src_tokens"].ne(self.padding_idx)
        output = model(**sample["net_input"], classification_head_name=REPLACED)
        scores, replaced = output[0].squeeze(-1)[real].float(), sample["target"][real]
        loss = F.binary_cross_entropy_with_logits(scores, replaced.float(), reduction="sum")
        size, predicted = real.sum(), scores > 0
        counts = {
            "correct": (predicted == replaced).sum(),
            "hits": (predicted & (replaced == 1)).sum(),
            "found": predicted.sum(),
            "replaced": replaced.sum(),
        }
        return loss, size, log_entry(loss, sample, size) | counts

    @staticmethod
    def reduce_metrics(logging_outputs: list[Log]) -> None:
        """Log the loss in bits, and accuracy and F1 in per cent."""
        size = sum_entries(logging_outputs, "sample_size")
        loss = sum_entries(logging_outputs, "loss") / size / math.log(2)
        metrics.log_scalar("loss", loss, size, round=5)
        log_sums(logging_outputs, ("correct", "hits", "found", "replaced"))
        metrics.log_scalar_sum("_tokens", size)
        log_percentage("accuracy", "correct", "tokens")
        log_percentage("f1", "hits", "found", "replaced")

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """Return True: logging outputs hold nothing but numbers."""
        return True
