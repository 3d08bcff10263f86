"""The options of adversarial self-attention and of the baselines it is compared with."""

# The values of choices are types for fairseq, made at run time.
# mypy: disable-error-code="valid-type"

import logging
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

from fairseq_ext.attention.second_pass import EMPTY_ROWS
from fairseq_ext.criterions.divergence import DIVERGENCES, REGRESSIONS
from fairseq_ext.errors import UsageError
from fairseq_ext.models.config import (
    Requirements,
    check_requirements,
    default_options,
    help_from_docstring,
)

logger = logging.getLogger(__name__)

# Values of --asa-baseline: what masks a second pass, what makes one, what adds noise.
ADVERSARIES = "none"
MASKS = [ADVERSARIES, "bernoulli", "scheduled", "magnitude"]
PASSES = [*MASKS, "two_pass"]
NOISE = ["freelb", "smart"]
Baselines = ChoiceEnum([ADVERSARIES, "two_pass", *MASKS[1:], *NOISE])

Divergences = ChoiceEnum(list(DIVERGENCES))
Regressions = ChoiceEnum(list(REGRESSIONS))
Penalties = ChoiceEnum(["sum", "padded", "share"])
EmptyRows = ChoiceEnum(list(EMPTY_ROWS))


@dataclass
@help_from_docstring
class AdversarialConfig(FairseqDataclass):
    """The options of the term "asa".

    Attributes:
        asa_rival: the old name of --asa-baseline
        asa_baseline: instead of adversaries: two_pass (the control), bernoulli, scheduled,
            magnitude (naive masks), freelb, smart (noise on embeddings)
        asa_tau: weight of the units that adversaries keep; the lower, the more they mask (default,
            the paper's: .1 for pre-training, else .3)
        asa_alpha: weight of the divergence of the two passes (SMART: lambda)
        asa_sample: draw masks by a Gumbel-sigmoid, as in the paper (default: a threshold, as its
            code)
        asa_divergence: KL from the clean pass to the masked one, or symmetric, as in the released
            code
        asa_regression: distance of numbers, of sentence_regression: squared difference (ours), or
            batch, the divergence of softmaxes across a batch, as in the released code
        asa_penalty: what is paid for units that are kept: sum, their number in all layers (the
            paper's); padded, the same with padded queries (released code); share, the mean share of
            a layer (ours)
        asa_tau_squared: the weight is tau squared, as in the released code
        asa_empty_rows: what a query without a key attends to: unmasked, as if nothing were masked
            (ours); uniform, all positions alike (released code, BERT); scores, all positions
            (released code, RoBERTa)
        asa_in_sequence: one pass after the other instead of one larger batch: with
            --checkpoint-activations in less memory
        asa_rate: share of units masked by bernoulli (paper: .05 or .1) and of each row by magnitude
            (ours)
        asa_log: for scheduled: run, or log, of a training with adversaries, whose rates are taken
            over
        asa_steps: steps of ascent K, of freelb (default: 2) and smart (default: 1)
        asa_radius: largest Frobenius norm of the noise of a sentence (freelb, smart; ours)
        asa_step_size: step size of the ascent of that noise (ours)
        smart_mu: weight of the distance to the mean of earlier models (smart; ours)
        smart_beta: how slowly that mean follows the model (smart; ours)
    """

    asa_rival: Baselines = ADVERSARIES
    asa_baseline: Baselines = ADVERSARIES
    asa_tau: Optional[float] = None
    asa_alpha: float = 1.0
    asa_sample: bool = False
    asa_divergence: Divergences = "kl"
    asa_regression: Regressions = "squared"
    asa_penalty: Penalties = "sum"
    asa_tau_squared: bool = False
    asa_empty_rows: EmptyRows = "unmasked"
    asa_in_sequence: bool = False
    asa_rate: float = 0.1
    asa_log: Optional[str] = None
    asa_steps: Optional[int] = None
    asa_radius: float = 0.15
    asa_step_size: float = 0.03
    smart_mu: float = 1.0
    smart_beta: float = 0.99


RANGES = {
    **dict.fromkeys(("asa_tau", "asa_alpha", "asa_radius", "asa_step_size", "smart_mu"), (0, inf)),
    **dict.fromkeys(("asa_rate", "smart_beta"), (0, 1)),
    "asa_steps": (1, inf),
}

BASELINE_REQUIREMENTS = {
    **dict.fromkeys(("asa_tau", "asa_tau_squared", "asa_penalty", "asa_sample"), [ADVERSARIES]),
    "asa_alpha": [*PASSES, "smart"],
    **dict.fromkeys(("asa_divergence", "asa_regression", "asa_in_sequence"), PASSES),
    "asa_empty_rows": MASKS,
    "asa_rate": ["bernoulli", "magnitude"],
    "asa_log": ["scheduled"],
    **dict.fromkeys(("asa_steps", "asa_radius", "asa_step_size"), NOISE),
    **dict.fromkeys(("smart_mu", "smart_beta"), ["smart"]),
}
"""Option -> the values of --asa-baseline with which it has an effect."""

REGRESSION_TASK = "sentence_regression"  # the task whose predictions are numbers


def read_baseline(cfg: Any) -> str:
    """Return the value of --asa-baseline, or of its old name --asa-rival, with a warning.

    Raises:
        UsageError: both are given and differ.
    """
    baseline, rival = str(cfg.asa_baseline), str(cfg.asa_rival)
    if rival == ADVERSARIES:
        return baseline
    if baseline not in (rival, ADVERSARIES):
        raise UsageError(
            f"--asa-rival, old for --asa-baseline, is {rival} and not {baseline}; leave it out"
        )
    logger.warning("--asa-rival is the old name of --asa-baseline; give --asa-baseline %s", rival)
    return rival


def check_options(cfg: Any, baseline: str, task: str) -> None:
    """Raise UsageError for a number out of range and for an option without effect.

    Args:
        baseline: the value of --asa-baseline.
        task: the name of the task.
    """
    for name, (low, high) in RANGES.items():
        value = getattr(cfg, name)
        if value is not None and not (low <= value <= high and isfinite(value)):
            limit = "upwards" if high == inf else f"to {high}"
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} is {value:g}; give a number from {low} {limit}")
    values = {name: getattr(cfg, name) for name in BASELINE_REQUIREMENTS}
    values |= {"asa_baseline": baseline, "task": task}
    defaults = default_options(AdversarialConfig)
    for requirements in _list_requirements(task):
        check_requirements(values, defaults, {"smart_mu": 0.0}, requirements)


def _list_requirements(task: str) -> tuple[Requirements, ...]:
    """Return what options need to have an effect in a task; both tables must be met."""
    baselines = {name: (["asa_baseline"], values) for name, values in BASELINE_REQUIREMENTS.items()}
    others = {"asa_regression": (["task"], [REGRESSION_TASK]), "smart_beta": (["smart_mu"], [])}
    if task == REGRESSION_TASK:  # a squared difference of numbers is no divergence
        others["asa_divergence"] = (["asa_regression"], ["batch"])
    return baselines, others
