"""The term "asa": adversarial self-attention (Wu et al. 2023, Eq. 9 and 10) and its baselines."""

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from fairseq.logging import metrics
from torch import Tensor

from fairseq_ext.criterions.adversarial import asa_options
from fairseq_ext.criterions.adversarial.asa_options import TAGGING_TASK
from fairseq_ext.criterions.adversarial.embedding_noise import FreeLB, Smart
from fairseq_ext.criterions.adversarial.masking_rates import read_masking_rates
from fairseq_ext.criterions.divergence import Divergence, Predictions
from fairseq_ext.criterions.logging_outputs import Log, Sample, log_means, sum_entries
from fairseq_ext.criterions.terms import Term, TrainingStep
from fairseq_ext.data.rows import pad_batch
from fairseq_ext.mechanisms.second_pass import passes
from fairseq_ext.models.config import to_dict
from fairseq_ext.models.model_report import get_model_report
from fairseq_ext.training_logs import MASKED_SHARE

logger = logging.getLogger(__name__)

TAU, TAU_PRETRAINING = 0.3, 0.1
PRETRAINING = ("masked_lm", "replaced_token_detection")

Counts = Mapping[int, passes.UnitCounts]
"""Layer -> units kept and units in all, of the second pass."""


class TwoPass(Term):
    """alpha D(clean, masked) + penalty, where nothing is masked yet: the control.

    D is the divergence of the predictions of both passes, on which the model descends.

    Attributes:
        masks: whether the second pass is masked, so that a row may have no key left.
    """

    masks = False

    def __init__(self, cfg: Any, task: Any) -> None:
        cfg = asa_options.resolve_options(cfg, task)
        super().__init__(cfg, task)
        self.penalty_kind, rows = str(cfg.asa_penalty), str(cfg.asa_empty_rows)
        self.empty_rows = rows if self.masks else "unmasked"
        self.divergence = Divergence.build(str(cfg.asa_divergence), str(cfg.asa_regression))
        self.all_tokens = str(cfg.asa_tagging) == "tokens" and task.cfg._name == TAGGING_TASK
        embedded = "roberta" if rows == "scores" else "bert"
        self.options: Any = {
            "one_batch": not cfg.asa_in_sequence,
            "empty_rows": self.empty_rows,
            "padded_rows": self.penalty_kind == "padded",
            "embedded_padding": embedded if cfg.asa_padded_length else None,
        }

    def prepare(self, sample: Sample) -> Sample:
        """Return the batch with rows of --asa-padded-length."""
        length = self.cfg.asa_padded_length
        return pad_batch(sample, length, self.task.source_dictionary.pad()) if length else sample

    def build_second_pass(self, updates: int) -> passes.SecondPass:
        """Return the second pass of the step after so many updates."""
        return passes.SecondPass(**self.options)

    def keywords(self, updates: int) -> dict[str, Any]:
        """Return the second pass, which the model makes within one call."""
        return {"second": self.build_second_pass(updates)}

    def loss(self, step: TrainingStep) -> tuple[Tensor, Log]:
        """Return weighted divergence and penalty; log the divergence and the counts of units."""
        more = step.output[1]
        predictions = (self.select_predictions(step, x) for x in (step.output, more["second"]))
        divergence, counts = self.divergence.total(*predictions), more["counts"]
        log: Log = {"asa_divergence": divergence.detach()}
        log["asa_counts"] = self.sum_counts(counts, divergence.device)
        return self.cfg.asa_alpha * divergence + self.penalty(counts, self.weigh_rows(step)), log

    def select_predictions(self, step: TrainingStep, output: Any) -> list[Predictions]:
        """Return the predictions to compare: the objective's, or those of all tokens and padding.

        The latter have the weight of a sentence each, as in the released code.
        """
        if not self.all_tokens:
            return step.select_predictions(output)
        scores = output[0].flatten(0, 1)
        return [Predictions(scores, self.weigh_rows(step)[:1].expand(len(scores)))]

    def weigh_rows(self, step: TrainingStep) -> Tensor:
        """Return the weight of each row [R] in the penalty; equal ones if all tokens count."""
        if not self.all_tokens:
            return step.weights
        share = step.sample_size / len(step.weights)
        return step.weights.new_full(step.weights.shape, share, dtype=torch.float)

    def sum_counts(self, counts: Counts, device: torch.device) -> Tensor:
        """Return the units kept and units in all, [2]; 0 if all layers were dropped."""
        if not counts:
            return torch.zeros(2, device=device)
        return torch.stack(_stack_counts(counts.values())).detach().sum((1, 2))

    def penalty(self, counts: Counts, weights: Tensor) -> Tensor | float:
        """Return the penalty for units that are kept, given the weights [B] of sentences."""
        return 0.0


class Adversaries(TwoPass):
    """alpha D(clean, masked) + tau sum_b w_b K_b, masked by adversaries (Wu et al. 2023).

    K_b is how many units the adversaries keep in sentence b, and w_b what the sentence adds to the
    sample size. Adversaries stand behind a reversed gradient: they ascend on both parts.
    """

    uses_adversaries = masks = True

    def __init__(self, cfg: Any, task: Any) -> None:
        super().__init__(cfg, task)
        cfg = self.cfg
        default = TAU_PRETRAINING if cfg._name.startswith(PRETRAINING) else TAU
        tau = default if cfg.asa_tau is None else cfg.asa_tau
        self.tau = tau**2 if cfg.asa_tau_squared else tau

    @property
    def layers(self) -> list[int]:
        """The layers with an adversary. A model that is only evaluated may have none."""
        return list(get_model_report(self.task).adversary_layers)

    def build_second_pass(self, updates: int) -> passes.SecondPass:
        """Return a pass that adversaries mask."""
        return passes.AdversarialPass(self.layers[0], self.cfg.asa_sample, **self.options)

    def sum_counts(self, counts: Counts, device: torch.device) -> Tensor:
        """Return the units kept and units in all of layers, [n, 2]; 0 where there is none."""
        layers = range(self.layers[-1] + 1)
        if not counts:
            return torch.zeros(len(layers), 2, device=device)
        none = passes.UnitCounts(*map(torch.zeros_like, next(iter(counts.values()))))
        rows = [counts.get(layer, none) for layer in layers]
        return torch.stack(_stack_counts(rows), 1).detach().sum(2)

    def penalty(self, counts: Counts, weights: Tensor) -> Tensor | float:
        """Return tau sum_b w_b K_b, or with the mean share of a layer in the place of K_b."""
        if not counts:  # LayerDrop
            return 0.0
        kept, units = _stack_counts(counts.values())
        share = self.penalty_kind == "share"
        paid = (kept / units.clamp(min=1)).mean(0) if share else kept.sum(0)
        return self.tau * (weights * paid).sum()


def _stack_counts(counts: Iterable[passes.UnitCounts]) -> list[Tensor]:
    """Return units kept and units in all, each [layers, B]."""
    return [torch.stack(each) for each in zip(*counts, strict=True)]


class NaiveMasks(TwoPass):
    """A second pass with masks of one kind, at one rate.

    Attributes:
        per_head: heads have masks of their own.
    """

    masks = True

    def __init__(self, kind: Callable[..., passes.SecondPass], cfg: Any, task: Any) -> None:
        super().__init__(cfg, task)
        self.kind, self.per_head = kind, kind is passes.MagnitudePass

    def build_second_pass(self, updates: int) -> passes.SecondPass:
        """Return a pass with masks of this kind."""
        return self.kind(self.cfg.asa_rate, **self.options)


class ScheduledMasks(TwoPass):
    """A second pass with Bernoulli masks, at the rate that adversaries had learned by then."""

    masks = True

    @cached_property
    def rates(self) -> tuple[list[int], list[float]]:
        """Updates and the rate at each. A model that is only evaluated does without the log."""
        return read_masking_rates(self.cfg.asa_log)

    def begin(self) -> None:
        """Read the rates; raise UsageError if there are none."""
        count, log = len(self.rates[0]), self.cfg.asa_log
        logger.info("naive masks: rates of %d updates, from %s", count, log)

    def build_second_pass(self, updates: int) -> passes.SecondPass:
        """Return a pass with masks at the rate of this update."""
        return passes.BernoulliPass(float(np.interp(updates, *self.rates)), **self.options)


BASELINES: dict[str, Callable[[Any, Any], Term]] = {
    "none": Adversaries,
    "two_pass": TwoPass,
    "bernoulli": partial(NaiveMasks, passes.BernoulliPass),
    "scheduled": ScheduledMasks,
    "magnitude": partial(NaiveMasks, passes.MagnitudePass),
    "freelb": FreeLB,
    "smart": Smart,
}


class AdversarialSelfAttention(Term):
    """The term "asa", built as adversaries or as the baseline that --asa-baseline names."""

    config = asa_options.AdversarialConfig
    second_pass = True

    @classmethod
    def build(cls, cfg: Any, task: Any) -> Term:
        """Return the term; raise UsageError for an option that has no meaning or no effect."""
        baseline = str(to_dict(cfg)["asa_baseline"])
        asa_options.check_options(cfg, baseline, task)
        return BASELINES[baseline](cfg, task)

    @classmethod
    def reduce_metrics(cls, logs: list[Log]) -> None:
        """Log divergence, gain and the share of masked units, of all layers and of each."""
        log_means(logs, ("asa_divergence", "asa_gain"))
        counts = sum_entries(logs, "asa_counts")
        if not isinstance(counts, Tensor):  # noise has none
            return
        rows = counts.view(-1, 2).tolist()
        groups = {"": [sum(column) for column in zip(*rows, strict=True)]}
        if counts.dim() > 1:
            groups |= {f"_{layer}": row for layer, row in enumerate(rows)}
        for layer, (kept, units) in groups.items():
            if units:
                metrics.log_scalar(MASKED_SHARE + layer, 1 - kept / units, units, round=4)
