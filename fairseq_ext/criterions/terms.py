"""The interface between a composite criterion and its terms."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fairseq.dataclass import FairseqDataclass
from torch import Tensor

from fairseq_ext.attention.options import check_ranges
from fairseq_ext.criterions.divergence import Predictions
from fairseq_ext.criterions.logging_outputs import Log, Sample


class TrainingStep(NamedTuple):
    """A forward pass of the objective on one batch, as terms see it.

    Attributes:
        sample: the batch.
        model: the model, in training mode.
        output: the output of the model.
        loss: the loss of the objective, summed over the batch.
        weights: [R] how much each row of the source adds to the sample size.
        sample_size: the sum of the weights.
        updates: the number of parameter updates made so far.
        select_predictions: returns the predictions that a divergence compares, from an output of
            the model or from the output of its second pass.
        rerun: computes the objective again, with further arguments of the model or with other
            `parameters`; returns its loss and the output of the model.
        compute_copy: computes the objective for the second copy of the batch, if a term doubles it;
            returns its loss and the output of the model.
        task_terms: the terms that belong to the task.
    """

    sample: Sample
    model: Any
    output: Any
    loss: Tensor
    weights: Tensor
    sample_size: Any
    updates: int
    select_predictions: Callable[[Any], list[Predictions]]
    rerun: Callable[..., tuple[Tensor, Any]]
    compute_copy: Callable[[], tuple[Tensor, Any]]
    task_terms: Sequence["Term"]

    def further_loss(self, output: Any) -> Tensor | float:
        """Return the loss of the terms that belong to the task, of an output."""
        return sum(part.loss(self._replace(output=output))[0] for part in self.task_terms)


class Term:
    """A loss that is added to an objective.

    Attributes:
        config: the dataclass of the options that the term adds to a criterion, if any.
        in_evaluation: whether the term belongs to the task, and is computed in evaluation too.
        uses_adversaries: whether the term trains the adversaries of the model.
        second_pass: whether the term sends the sentences through the model twice; a criterion has
            one such term at most.
        reruns: whether the term computes the objective again, of this batch or a copy.
        doubles: whether the model reads each batch twice at once, as one of twice the size; then
            `TrainingStep.compute_copy` has the second copy.
        cfg, task: the criterion's configuration and its task.
    """

    config: type[FairseqDataclass] | None = None
    in_evaluation = False
    uses_adversaries = False
    second_pass = False
    reruns = doubles = False

    def __init__(self, cfg: Any, task: Any) -> None:
        self.cfg, self.task = cfg, task

    @classmethod
    def build(cls, cfg: Any, task: Any) -> "Term":
        """Build the term of a criterion; raise UsageError for a number out of its range."""
        if cls.config is not None:
            check_ranges(cls.config, cfg)
        return cls(cfg, task)

    def begin(self) -> None:
        """Prepare a training. Raise UsageError if something is missing that only training needs."""

    def prepare(self, sample: Sample) -> Sample:
        """Return the batch that the objective and all terms are to see in training."""
        return sample

    def keywords(self, updates: int) -> dict[str, Any]:
        """Return further arguments of the model for the next forward pass."""
        return {}

    def loss(self, step: TrainingStep) -> tuple[Tensor | float, Log]:
        """Return the weighted loss and what is logged of it, both summed over the batch."""
        raise NotImplementedError

    @classmethod
    def reduce_metrics(cls, logs: list[Log]) -> None:
        """Log the metrics of the term, from the logging outputs of all steps and workers."""
        raise NotImplementedError


WRAPPED = ("module", "_fsdp_wrapped_module", "_fpw_module")
"""Names under which wrappers have the model."""


def unwrap(model: Any) -> Any:
    """Return the model inside wrappers such as DistributedDataParallel, or fairscale's for FSDP.

    Its parameters have the same names in any number of processes.
    """
    while inside := next((x for name, x in model.named_children() if name in WRAPPED), None):
        model = inside
    return model
