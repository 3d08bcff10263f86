"""The criterion "replaced_token_detection": ELECTRA's discriminator."""

import math
from typing import Any

import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor

from fairseq_ext.criterions.labelled_criterion import percent
from fairseq_ext.criterions.terms import Log, Sample
from fairseq_ext.errors import UsageError
from fairseq_ext.tasks.replaced_tokens import HEAD

COUNTS = ("correct", "hits", "found", "replaced")


@register_criterion(HEAD, dataclass=FairseqDataclass)
class ReplacedTokenDetection(FairseqCriterion):
    """Logistic loss over all real tokens: was each replaced? Logs bits, accuracy and F1.

    Raises:
        UsageError: the task replaces nothing.
    """

    def __init__(self, task: Any) -> None:
        super().__init__(task)
        if not hasattr(task.cfg, "replace_prob"):
            raise UsageError(f"--criterion {HEAD} needs the text of --task {HEAD}; give it")

    def forward(self, model: Any, sample: Sample, reduce: bool = True) -> tuple[Tensor, Any, Log]:
        real = sample["net_input"]["src_tokens"].ne(self.padding_idx)
        output = model(**sample["net_input"], classification_head_name=HEAD)
        scores, replaced = output[0].squeeze(-1)[real].float(), sample["target"][real]
        loss = F.binary_cross_entropy_with_logits(scores, replaced.float(), reduction="sum")
        size, found = real.sum(), scores > 0
        logged = {
            "loss": loss.detach(),
            "ntokens": sample["ntokens"],
            "nsentences": sample["nsentences"],
            "sample_size": size,
            "correct": (found == replaced).sum(),
            "hits": (found & (replaced == 1)).sum(),
            "found": found.sum(),
            "replaced": replaced.sum(),
        }
        return loss, size, logged

    @staticmethod
    def reduce_metrics(logging_outputs: list[Log]) -> None:
        sums = {n: sum(log.get(n, 0) for log in logging_outputs) for n in ("loss", "sample_size")}
        size = sums["sample_size"]
        metrics.log_scalar("loss", sums["loss"] / size / math.log(2), size, round=5)
        for name in COUNTS:
            metrics.log_scalar_sum(f"_{name}", sum(log.get(name, 0) for log in logging_outputs))
        metrics.log_scalar_sum("_tokens", size)
        metrics.log_derived("accuracy", lambda m: percent(m["_correct"].sum, m["_tokens"].sum))
        metrics.log_derived(
            "f1", lambda m: percent(2 * m["_hits"].sum, m["_found"].sum + m["_replaced"].sum)
        )

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True
