"""The term "l0": a price of open heads, which lets gates of heads close (Voita et al. 2019)."""

from dataclasses import dataclass

import torch
from fairseq.dataclass import FairseqDataclass
from torch import Tensor

from fairseq_ext.attention.options import WEIGHT, option
from fairseq_ext.criterions.logging_outputs import Log, log_percentage, log_sums
from fairseq_ext.criterions.terms import Term, TrainingStep, unwrap
from fairseq_ext.mechanisms.head_gates import L0Gate, are_open, open_probability
from fairseq_ext.models.config import help_from_docstring


@dataclass
@help_from_docstring
class L0Config(FairseqDataclass):
    """The options of the term "l0".

    Attributes:
        l0_lambda: weight of the expected number of open heads, against the loss of a token (paper:
            .01 to .3, for models that are trained already)
    """

    l0_lambda: float = option(0.05, WEIGHT)


class OpenHeads(Term):
    """lambda sum_h P(g_h != 0), over all heads with `--head-gate l0` (Voita et al. 2019)."""

    config = L0Config

    def loss(self, step: TrainingStep) -> tuple[Tensor, Log]:
        """Return the weighted number of open heads; log how many are open in evaluation."""
        gates = find_gates(unwrap(step.model))
        offsets = torch.cat([gate.offset for gate in gates])
        expected, opened = open_probability(offsets).sum(), are_open(offsets)
        log = {"l0_open": opened.sum(), "l0_heads": len(opened)}
        return self.cfg.l0_lambda * step.sample_size * expected, log

    @classmethod
    def reduce_metrics(cls, logs: list[Log]) -> None:
        """Log the percentage of heads that are left."""
        if any("l0_heads" in log for log in logs):
            log_sums(logs, ("l0_open", "l0_heads"))
            log_percentage("l0_left", "l0_open", "l0_heads")


def find_gates(model: torch.nn.Module) -> list[L0Gate]:
    """Return the gates of a model that may close heads."""
    return [module for module in model.modules() if isinstance(module, L0Gate)]
