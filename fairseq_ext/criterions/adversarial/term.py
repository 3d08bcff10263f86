"""The term "asa": adversarial self-attention (Wu et al. 2023, Eq. 9, 10) beside a task's loss, or
what it is compared with."""

import logging
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
import torch
from fairseq.logging import metrics
from torch import Tensor

from fairseq_ext.attention import SecondPass
from fairseq_ext.attention.model_report import report_of
from fairseq_ext.attention.second_pass import Adversarial, Bernoulli, Count, Magnitude
from fairseq_ext.criterions.adversarial.divergence import (
    DIVERGENCES,
    Divergence,
    across_batch,
    squared,
)
from fairseq_ext.criterions.adversarial.embedding_noise import FreeLB, Smart
from fairseq_ext.criterions.adversarial.masking_rates import SHARE, read_masking_rates
from fairseq_ext.criterions.adversarial.options import OPTIONS, check, rival_option
from fairseq_ext.criterions.terms import Log, Step, Term

logger = logging.getLogger(__name__)

TAU, TAU_PRETRAINING = 0.3, 0.1
PRETRAINING = ("masked_lm", "replaced_token_detection")

Counts = Mapping[int, Count]


class TwoPass:
    """alpha D(clean, masked) + tau sum_b w_b K_b, a second pass being masked.

    K_b is how many units the adversaries keep in sentence b, w_b what it adds to the sample size.
    The model descends on D. Adversaries stand behind a reversed gradient: they ascend on both.
    """

    def __init__(self, cfg: Any, task: Any) -> None:
        self.alpha, self.penalty = cfg.asa_alpha, str(cfg.asa_penalty)
        self.divergence = _divergence(cfg)
        self.options: dict[str, Any] = {
            "together": not cfg.asa_in_sequence,
            "empty_rows": str(cfg.asa_empty_rows),
            "padded_rows": self.penalty == "padded",
        }

    def begin(self) -> None:
        """Nothing to do."""

    def second(self, updates: int) -> SecondPass:
        """Nothing is masked: the control."""
        return SecondPass(**self.options)

    def keywords(self, updates: int) -> dict[str, Any]:
        return {"second": self.second(updates)}

    def loss(self, step: Step) -> tuple[Tensor, Log]:
        extra = step.output[1]
        apart = self.divergence.total(step.compared(step.output), step.compared(extra["second"]))
        counts: Counts = extra["counts"]
        logged: Log = {"asa_divergence": apart.detach()}
        nothing = torch.zeros((), device=apart.device)  # as of others, of a layer that was dropped
        for name, of in {"": list(counts.values()), **self.of_layers(counts)}.items():
            logged[f"asa_kept{name}"] = sum((count.kept.detach().sum() for count in of), nothing)
            logged[f"asa_units{name}"] = sum((count.units.sum() for count in of), nothing)
        return self.alpha * apart + self.price(counts, step.weights), logged

    def of_layers(self, counts: Counts) -> dict[str, list[Count]]:
        """What is logged of single layers, the same names in each step."""
        return {}

    def price(self, counts: Counts, weights: Tensor) -> Tensor | float:
        """tau sum_b w_b K_b; nothing if nobody pays."""
        return 0.0


class Adversaries(TwoPass):
    """Wu et al. 2023."""

    def __init__(self, cfg: Any, task: Any) -> None:
        super().__init__(cfg, task)
        self.task, self.sample = task, cfg.asa_sample
        tau = TAU_PRETRAINING if cfg._name.startswith(PRETRAINING) else TAU
        self.tau = tau if cfg.asa_tau is None else cfg.asa_tau
        if cfg.asa_tau_squared:
            self.tau **= 2

    @property
    def layers(self) -> list[int]:
        """Those with an adversary; a model that is only evaluated may have none."""
        return list(report_of(self.task).adversary_layers)

    def second(self, updates: int) -> SecondPass:
        return Adversarial(self.layers[0], self.sample, **self.options)

    def of_layers(self, counts: Counts) -> dict[str, list[Count]]:
        return {f"_{i}": [counts[i]] if i in counts else [] for i in self.layers}

    def price(self, counts: Counts, weights: Tensor) -> Tensor | float:
        if not counts:  # LayerDrop
            return 0.0
        if self.penalty == "share":
            each = torch.stack([c.kept / c.units.clamp(min=1) for c in counts.values()]).mean(0)
        else:
            each = torch.stack([c.kept for c in counts.values()]).sum(0)
        return self.tau * (weights * each).sum()


class NaiveMasks(TwoPass):
    """Masks of one kind, at one rate."""

    def __init__(self, kind: Callable[..., SecondPass], cfg: Any, task: Any) -> None:
        super().__init__(cfg, task)
        self.kind, self.rate = kind, cfg.asa_rate

    def second(self, updates: int) -> SecondPass:
        return self.kind(self.rate, **self.options)


class ScheduledMasks(TwoPass):
    """Bernoulli masks, at each update of the rate that adversaries had learned by then."""

    def __init__(self, cfg: Any, task: Any) -> None:
        super().__init__(cfg, task)
        self.log = cfg.asa_log

    @cached_property
    def rates(self) -> tuple[list[int], list[float]]:
        """Updates, and the rate at each; what is only evaluated need not find the log."""
        return read_masking_rates(self.log)

    def begin(self) -> None:
        logger.info("naive masks: rates of %d updates, from %s", len(self.rates[0]), self.log)

    def second(self, updates: int) -> SecondPass:
        return Bernoulli(float(np.interp(updates, *self.rates)), **self.options)


def _divergence(cfg: Any) -> Divergence:
    of_scores = DIVERGENCES[str(cfg.asa_divergence)]
    batch = str(cfg.asa_regression) == "batch"
    return Divergence(of_scores, across_batch(of_scores) if batch else squared)


class Rival(Protocol):
    """As a term, without options."""

    def begin(self) -> None: ...

    def keywords(self, updates: int) -> dict[str, Any]: ...

    def loss(self, step: Step) -> tuple[Tensor | float, Log]: ...


RIVALS: dict[str, Callable[[Any, Any], Rival]] = {
    "none": Adversaries,
    "two_pass": TwoPass,
    "bernoulli": partial(NaiveMasks, Bernoulli),
    "scheduled": ScheduledMasks,
    "magnitude": partial(NaiveMasks, Magnitude),
    "freelb": FreeLB,
    "smart": Smart,
}


class AdversarialSelfAttention(Term):
    """The term; which of the rivals it is, --asa-rival says.

    Raises:
        UsageError: an option has no meaning.
    """

    options = [rival_option([*RIVALS]), *OPTIONS]

    def __init__(self, cfg: Any, task: Any) -> None:
        check(cfg, str(getattr(task.cfg, "_name", "")))
        self.rival = RIVALS[str(cfg.asa_rival)](cfg, task)
        self.uses_adversaries = isinstance(self.rival, Adversaries)
        self.empty_rows = str(cfg.asa_empty_rows)

    def begin(self) -> None:
        self.rival.begin()

    def keywords(self, updates: int) -> dict[str, Any]:
        return self.rival.keywords(updates)

    def loss(self, step: Step) -> tuple[Tensor | float, Log]:
        return self.rival.loss(step)

    @staticmethod
    def reduce_metrics(logs: list[Log]) -> None:
        def over_all(name: str) -> Any:
            return sum(log.get(name, 0) for log in logs)

        size = over_all("sample_size")
        for name in ("asa_divergence", "asa_gain"):
            if any(name in log for log in logs):
                metrics.log_scalar(name, over_all(name) / size, size, round=5)
        names = dict.fromkeys(name for log in logs for name in log if name.startswith("asa_units"))
        for name in names:
            units, layer = over_all(name), name.removeprefix("asa_units")
            if units:
                kept = over_all(f"asa_kept{layer}")
                metrics.log_scalar(SHARE + layer, 1 - float(kept / units), units, round=4)
