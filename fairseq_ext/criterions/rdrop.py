"""The term "rdrop": two passes that differ by dropout predict the same (Liang et al. 2021)."""

from dataclasses import dataclass
from typing import Any

from fairseq.dataclass import FairseqDataclass
from torch import Tensor

from fairseq_ext.attention.options import WEIGHT, option
from fairseq_ext.criterions.divergence import Divergence
from fairseq_ext.criterions.logging_outputs import Log, log_means
from fairseq_ext.criterions.terms import Term, TrainingStep
from fairseq_ext.models.config import help_from_docstring


@dataclass
@help_from_docstring
class RDropConfig(FairseqDataclass):
    """The options of the term "rdrop".

    Attributes:
        rdrop_alpha: weight of the divergence of both passes (paper: 5 for translation, 1 for
            language models, .1 to 1 for fine-tuning)
    """

    rdrop_alpha: float = option(5.0, WEIGHT)


class RDrop(Term):
    """L_2 + alpha (KL(P_1 || P_2) + KL(P_2 || P_1)) / 2 (Liang et al. 2021, Eq. 2 to 4).

    P_1 and P_2 are the predictions of two copies of each row, in one batch of twice the size, with
    dropout of their own from the embeddings on, L_1 (the objective, with the loss of pairs where
    there is one) and L_2 their losses. What is sampled once for a batch is the same for both: the
    layers that LayerDrop leaves, gates, quantisation noise. Adversarial self-attention (the term
    "asa") has the loss of one pass and the KL from it to the other, whose attention an adversary
    masks; both share embeddings and their dropout. Its control `two_pass` is R-Drop without L_2 and
    one of the KLs. Predictions that are numbers have their squared difference in the place of KLs.
    """

    config = RDropConfig
    second_pass = reruns = doubles = True

    def __init__(self, cfg: Any, task: Any) -> None:
        super().__init__(cfg, task)
        self.divergence = Divergence.build("symmetric", "squared")

    def loss(self, step: TrainingStep) -> tuple[Tensor, Log]:
        """Return the loss of the other copy and the weighted divergence; log both."""
        other, output = step.compute_copy()
        other = other + step.further_loss(output)
        # further ones are of hidden states
        pair = (step.select_predictions(each)[:1] for each in (step.output, output))
        divergence = self.divergence.total(*pair)
        log = {"rdrop_divergence": divergence.detach(), "rdrop_loss": other.detach()}
        return other + self.cfg.rdrop_alpha * divergence, log

    @classmethod
    def reduce_metrics(cls, logs: list[Log]) -> None:
        """Log the divergence, and the loss of the other copy, by the sample size."""
        log_means(logs, ("rdrop_divergence", "rdrop_loss"))
