"""The options of adversarial self-attention and its rivals."""

import math
from collections.abc import Iterator
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum

from fairseq_ext.attention.second_pass import EMPTY_ROWS
from fairseq_ext.criterions.adversarial.divergence import DIVERGENCES, REGRESSIONS
from fairseq_ext.errors import UsageError
from fairseq_ext.models.config import Option, Requirements, check_requirements, option

PENALTIES = ("sum", "padded", "share")

OPTIONS: list[Option] = [
    option(
        "asa_tau",
        Optional[float],  # noqa: UP045 (argparse)
        None,
        "weight of the units that adversaries keep; the lower, the more they mask (default, the "
        "paper's: .1 for pre-training, else .3)",
    ),
    option("asa_alpha", float, 1.0, "weight of the divergence of the two passes (SMART: lambda)"),
    option(
        "asa_sample",
        bool,
        False,
        "draw masks by a Gumbel-sigmoid, as in the paper (default: a threshold, as its code)",
    ),
    option(
        "asa_divergence",
        ChoiceEnum(list(DIVERGENCES)),
        "kl",
        "KL from the clean pass to the masked one, or symmetric, as in the released code",
    ),
    option(
        "asa_regression",
        ChoiceEnum(list(REGRESSIONS)),
        "squared",
        "distance of numbers, of sentence_regression: squared difference (ours), or batch, the "
        "divergence of softmaxes across a batch, as in the released code",
    ),
    option(
        "asa_penalty",
        ChoiceEnum(list(PENALTIES)),
        "sum",
        "of the units kept: their number in all layers (the paper's), the same with padded queries "
        "(released code), or the mean share of a layer (ours)",
    ),
    option("asa_tau_squared", bool, False, "the weight is tau squared, as in the released code"),
    option(
        "asa_empty_rows",
        ChoiceEnum(list(EMPTY_ROWS)),
        "unmasked",
        "a query that is left without a key: as if not masked (ours); uniform over all positions "
        "(released code, BERT); scores of all positions (released code, RoBERTa)",
    ),
    option(
        "asa_in_sequence",
        bool,
        False,
        "one pass after the other instead of one larger batch: with --checkpoint-activations in "
        "less memory",
    ),
    option(
        "asa_rate",
        float,
        0.1,
        "share of units masked by bernoulli (paper: .05 or .1) and of each row by magnitude (ours)",
    ),
    option(
        "asa_log",
        Optional[str],  # noqa: UP045
        None,
        "for scheduled: run, or log, of a training with adversaries, whose rates are taken over",
    ),
    option(
        "asa_steps",
        Optional[int],  # noqa: UP045
        None,
        "K of freelb (default: 2) and smart (default: 1)",
    ),
    option(
        "asa_radius",
        float,
        0.15,
        "of the noise of a sentence, its Frobenius norm at most (ours; freelb, smart)",
    ),
    option("asa_step_size", float, 0.03, "of the ascent of that noise (ours)"),
    option(
        "smart_mu", float, 1.0, "weight of the distance to the mean of earlier models (smart; ours)"
    ),
    option("smart_beta", float, 0.99, "how slowly that mean follows the model (smart; ours)"),
]


def rival_option(names: list[str]) -> Option:
    return option(
        "asa_rival",
        ChoiceEnum(names),
        "none",
        "instead of adversaries: two_pass (the control), bernoulli, scheduled, magnitude (naive "
        "masks), freelb, smart (noise on embeddings)",
    )


RANGES = {
    "asa_tau": (0, float("inf")),
    "asa_alpha": (0, float("inf")),
    "asa_rate": (0, 1),
    "asa_steps": (1, float("inf")),
    "asa_radius": (0, float("inf")),
    "asa_step_size": (0, float("inf")),
    "smart_mu": (0, float("inf")),
    "smart_beta": (0, 1),
}

_MASKS = ["none", "bernoulli", "scheduled", "magnitude"]
_PASSES = [*_MASKS, "two_pass"]
_NOISE = ["freelb", "smart"]

RIVALS = {
    "asa_tau": ["none"],
    "asa_tau_squared": ["none"],
    "asa_penalty": ["none"],
    "asa_sample": ["none"],
    "asa_alpha": [*_PASSES, "smart"],
    "asa_divergence": _PASSES,
    "asa_regression": _PASSES,
    "asa_in_sequence": _PASSES,
    "asa_empty_rows": _MASKS,
    "asa_rate": ["bernoulli", "magnitude"],
    "asa_log": ["scheduled"],
    "asa_steps": _NOISE,
    "asa_radius": _NOISE,
    "asa_step_size": _NOISE,
    "smart_mu": ["smart"],
    "smart_beta": ["smart"],
}
"""With which rivals (none: adversaries) an option has an effect."""

NUMBERS = "sentence_regression"  # the task that predicts them


def users(task: str) -> Iterator[Requirements]:
    """With what options have an effect in a task of this name."""
    yield {name: (["asa_rival"], rivals) for name, rivals in RIVALS.items()}
    yield {"asa_regression": (["task"], [NUMBERS]), "smart_beta": (["smart_mu"], [])}
    if task == NUMBERS:  # by their squared difference, which is no divergence
        yield {"asa_divergence": (["asa_regression"], ["batch"])}


def check(cfg: Any, task: str) -> None:
    """Raises UsageError for a number that has no meaning, and for what would have no effect.

    Args:
        task: its name.
    """
    for name, (low, high) in RANGES.items():
        value = getattr(cfg, name)
        if value is not None and not (low <= value <= high and math.isfinite(value)):
            upwards = "upwards" if high == float("inf") else f"to {high}"
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} is {value:g}; give a number from {low} {upwards}")
    given = {name: getattr(cfg, name) for name in ("asa_rival", *RIVALS)} | {"task": task}
    preset = {name: field.default for name, _, field in OPTIONS}
    for table in users(task):
        check_requirements(given, preset, {"smart_mu": 0.0}, table)
