"""The criterion "vqa": binary cross-entropy of answers, and their official accuracy."""

from typing import Any

import torch
import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor

from fairseq_ext.criterions.logging_outputs import Log, Sample, log_entry, sum_entries
from fairseq_ext.errors import UsageError
from fairseq_ext.vqa.questions import name_kind

KIND = "of_kind_"  # before the name of a kind of answer, in logging outputs


@register_criterion("vqa", dataclass=FairseqDataclass)
class VqaCriterion(FairseqCriterion):
    """Binary cross-entropy -Σ_a [s_a log σ(x_a) + (1 - s_a) log(1 - σ(x_a))], as in Pythia.

    s_a is the official accuracy of answer a. The loss is summed over answers and is a mean over
    questions, in nats. A question's accuracy is s_a of the answer with the highest score; it is
    logged in per cent, over all questions and, in evaluation, over those of each kind of answer.
    """

    def __init__(self, task: Any) -> None:
        super().__init__(task)
        if task.cfg._name != "vqa":
            raise UsageError(f"--criterion vqa needs --task vqa, not {task.cfg._name}; give both")

    def forward(self, model: Any, sample: Sample, reduce: bool = True) -> tuple[Tensor, int, Log]:
        """Return loss, sample size and logging output."""
        if "target" not in sample:
            raise UsageError("these questions have no answers; give a split that has some")
        scores = model(**sample["net_input"])[0].float()
        target, size = sample["target"], sample["nsentences"]
        loss = F.binary_cross_entropy_with_logits(scores, target.to(scores), reduction="sum")
        shares = target.gather(1, scores.detach().argmax(1, keepdim=True)).squeeze(1)
        log = log_entry(loss, sample, size) | {"right": shares.sum()}
        return loss, size, log if model.training else log | count_kinds(shares, sample["kinds"])

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[Log]) -> None:
        """Log the mean loss and the accuracy."""
        size = sum_entries(logging_outputs, "sample_size")
        metrics.log_scalar("loss", sum_entries(logging_outputs, "loss") / size, size, round=3)
        accuracy = 100 * sum_entries(logging_outputs, "right") / size
        metrics.log_scalar("accuracy", accuracy, size, round=2)
        for name in sorted({key for log in logging_outputs for key in log if key.startswith(KIND)}):
            right, count = torch.stack([log[name] for log in logging_outputs if name in log]).sum(0)
            kind = name.removeprefix(KIND)
            metrics.log_scalar(f"accuracy_{kind}", 100 * right / count, count, round=2)


def count_kinds(shares: Tensor, kinds: list[str]) -> Log:
    """Return for each kind of answer the sum of the shares [B] of its questions, and their number.

    Questions without a kind count nowhere.
    """
    counts: Log = {}
    for kind in sorted({*kinds} - {""}):
        chosen = torch.tensor([each == kind for each in kinds], device=shares.device)
        name = KIND + name_kind(kind)
        count = torch.stack([shares[chosen].sum(), chosen.sum().to(shares)]).cpu()
        counts[name] = counts.get(name, 0) + count
    return counts
