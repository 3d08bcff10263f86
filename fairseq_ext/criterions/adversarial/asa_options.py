"""The options of adversarial self-attention and of the baselines it is compared with."""

# The values of choices are types for fairseq, made at run time.
# mypy: disable-error-code="valid-type"

from argparse import Namespace
from dataclasses import dataclass
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

from fairseq_ext.attention.options import (
    SHARE,
    WEIGHT,
    Rule,
    Rules,
    check_ranges,
    check_rules,
    option,
    read_rules,
    whole,
)
from fairseq_ext.criterions.divergence import DIVERGENCES, REGRESSIONS
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.second_pass.passes import EMPTY_ROWS
from fairseq_ext.models.config import (
    Requirements,
    check_requirements,
    contradict,
    default_options,
    help_from_docstring,
    list_requirements,
    read_facts,
    to_dict,
)
from fairseq_ext.models.model_report import get_model_report

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
Tagging = ChoiceEnum(["words", "tokens"])

RELEASED: dict[str, Any] = {
    "asa_tau": 0.5,
    "asa_tau_squared": True,
    "asa_divergence": "symmetric",
    "asa_regression": "batch",
    "asa_tagging": "tokens",
    "asa_penalty": "padded",
    "asa_padded_length": 128,
}
"""Options as the released code of Wu et al. 2023 has them, but for those of empty rows."""

PRESETS: dict[str, dict[str, Any]] = {"none": {}, "released": RELEASED}
Presets = ChoiceEnum(list(PRESETS))

CONFIGURABLE = ("asa_tau", "asa_padded_length", "asa_tau_squared")
"""Options of the released code too, and one that the preset switches on."""

FIXED = {"asa_alpha": 1.0, "asa_sample": False}  # further values that it has
RELEASED_EMPTY_ROWS = {True: "uniform", False: "scores"}  # of BERT, of RoBERTa


PADDED = whole("[1, 100000]", "a number of positions")
STEPS = whole("[1, 100000]", "a number of iterations")


def _option(default: Any, *baselines: str, **facts: Any) -> Any:
    """Return the field of an option that has an effect with these values of --asa-baseline."""
    return option(default, needs=("asa_baseline",), values=baselines, **facts)


@dataclass
@help_from_docstring
class AdversarialConfig(FairseqDataclass):
    """The options of the term "asa".

    Attributes:
        asa_baseline: instead of adversaries: two_pass (the control), bernoulli, scheduled,
            magnitude (naive masks), freelb, smart (noise on embeddings)
        asa_preset: released sets the options below to what the authors' released code computes: tau
            .5 and padded length 128, unless others are given, and the rest as there; what else is
            given must not contradict it
        asa_tau: weight of the units that adversaries keep; the lower, the more they mask (default,
            the paper's: .1 for pre-training, else .3)
        asa_alpha: weight of the divergence of the two passes (SMART: lambda)
        asa_sample: draw masks by a Gumbel-sigmoid, as in the paper (default: a threshold, as its
            code)
        asa_divergence: kl from the clean pass to the masked one (default), or symmetric, as in the
            released code
        asa_regression: distance of numbers, of sentence_regression: squared difference (default,
            ours), or batch, the divergence of softmaxes across a batch, as in the released code
        asa_tagging: divergence of sequence_tagging: mean over words that have a tag (default,
            ours), or sum over all tokens of a row with its padding, divided by the number of
            sentences (tokens, as in the released code)
        asa_penalty: what is paid for units that are kept: sum, their number in all layers (default,
            the paper's); padded, the same with padded queries (released code); share, the mean
            share of a layer (ours)
        asa_padded_length: pad rows in training to so many tokens, and embed padding as other tokens
            (released code: 128); labelled text alone (default: to the longest row of a batch)
        asa_tau_squared: the weight is tau squared, as in the released code
        asa_empty_rows: what a query without a key attends to: unmasked, as if nothing were masked
            (default, ours); uniform, all positions alike (released code, BERT); scores, all
            positions (released code, RoBERTa)
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

    asa_baseline: Baselines = ADVERSARIES
    asa_preset: Presets = _option("none", *PASSES)
    asa_tau: Optional[float] = _option(None, ADVERSARIES, range=WEIGHT)
    asa_alpha: float = _option(1.0, *PASSES, "smart", range=WEIGHT)
    asa_sample: bool = _option(False, ADVERSARIES)
    asa_divergence: Optional[Divergences] = _option(None, *PASSES)
    asa_regression: Optional[Regressions] = _option(None, *PASSES)
    asa_tagging: Optional[Tagging] = _option(None, *PASSES)
    asa_penalty: Optional[Penalties] = _option(None, ADVERSARIES)
    asa_padded_length: Optional[int] = _option(None, *PASSES, range=PADDED)
    asa_tau_squared: bool = _option(False, ADVERSARIES)
    asa_empty_rows: Optional[EmptyRows] = _option(None, *MASKS)
    asa_in_sequence: bool = _option(False, *PASSES)
    asa_rate: float = _option(0.1, "bernoulli", "magnitude", range=SHARE)
    asa_log: Optional[str] = _option(None, "scheduled")
    asa_steps: Optional[int] = _option(None, *NOISE, range=STEPS)
    asa_radius: float = _option(0.15, *NOISE, range=WEIGHT)
    asa_step_size: float = _option(
        0.03,
        *NOISE,
        range=WEIGHT,
        excludes=Rule(
            "asa_steps asa_baseline",
            "{one} has no effect with {other}, whose one pass has the noise as it is drawn; "
            "leave it out, or give 2 steps or more",
            lambda size, *others: size != 0.03 and others == (1, "freelb"),
        ),
    )
    smart_mu: float = _option(1.0, "smart", range=WEIGHT)
    smart_beta: float = _option(0.99, "smart", range=SHARE)


DEFAULTS = {
    "asa_divergence": "kl",
    "asa_regression": "squared",
    "asa_tagging": "words",
    "asa_penalty": "sum",
    "asa_empty_rows": "unmasked",
}
"""Values of options that neither the user nor a preset has set."""

BASELINE_REQUIREMENTS = list_requirements(read_facts(AdversarialConfig))

CONTRADICTIONS: Rules = {
    option: [contradict("asa_preset", {"released": accepted})]
    for option, accepted in {
        **{option: [value] for option, value in {**RELEASED, **FIXED}.items()},
        "asa_empty_rows": [*RELEASED_EMPTY_ROWS.values()],
    }.items()
    if option not in CONFIGURABLE
}
"""Option -> the rule that it must not contradict a preset."""

REGRESSION_TASK = "sentence_regression"  # the task whose predictions are numbers
TAGGING_TASK = "sequence_tagging"
LABELLED_TASKS = ["sentence_classification", REGRESSION_TASK, "multiple_choice", TAGGING_TASK]
"""Tasks that the released code has."""


def resolve_options(cfg: Any, task: Any) -> Namespace:
    """Return the options with those of the preset, and defaults of what is still None."""
    values = to_dict(cfg)
    preset = PRESETS[str(values.get("asa_preset", "none"))]
    if preset:
        bert = getattr(task, "segments", 0) > 0
        preset = {**preset, "asa_empty_rows": RELEASED_EMPTY_ROWS[bert]}
    for name, value in {**DEFAULTS, **preset}.items():
        if values.get(name) is None or preset.get(name) is True:
            values[name] = value
    return Namespace(**values)


def check_options(cfg: Any, baseline: str, task: Any) -> None:
    """Raise UsageError for a number out of range and for an option without effect.

    Args:
        baseline: the value of --asa-baseline.
        task: the task, whose name and rows options have to fit.
    """
    check_ranges(AdversarialConfig, cfg)
    check_rules(to_dict(cfg), CONTRADICTIONS)
    resolved, name = vars(resolve_options(cfg, task)), str(getattr(task.cfg, "_name", ""))
    values = {option: resolved[option] for option in BASELINE_REQUIREMENTS}
    values |= {"asa_baseline": baseline, "task": name}
    usual = {**default_options(AdversarialConfig), **DEFAULTS}
    unchanged = {option: values.get(option) for option in values if getattr(cfg, option, 0) is None}
    preset = PRESETS[str(cfg.asa_preset)]
    for requirements in _list_requirements(name):
        check_requirements(values, usual | unchanged | preset, {"smart_mu": 0.0}, requirements)
    check_rules(values, read_rules(AdversarialConfig))
    _check_padded_length(resolved["asa_padded_length"], task)


def _check_padded_length(length: int | None, task: Any) -> None:
    """Raise UsageError if rows may be longer than they are padded to, or positions are too few."""
    if length is None:
        return
    if (longest := task.max_positions()) > length:
        raise UsageError(
            f"--asa-padded-length is {length}, and rows have up to {longest} tokens; give "
            f"--tokens-per-sample {length}, or a larger --asa-padded-length"
        )
    positions = get_model_report(task).positions
    if positions is not None and positions < length:
        raise UsageError(
            f"--asa-padded-length is {length}, and the encoder has {positions} positions; give "
            f"--asa-padded-length {positions}, or a new encoder more --max-positions"
        )


def _list_requirements(task: str) -> tuple[Requirements, ...]:
    """Return what options need to have an effect in a task; all tables must be met."""
    others = {
        "asa_regression": (["task"], [REGRESSION_TASK]),
        "asa_tagging": (["task"], [TAGGING_TASK]),
        "asa_preset": (["task"], LABELLED_TASKS),
        "asa_padded_length": (["task"], LABELLED_TASKS),
        "smart_beta": (["smart_mu"], []),
    }
    if task == REGRESSION_TASK:  # a squared difference of numbers is no divergence
        others["asa_divergence"] = (["asa_regression"], ["batch"])
    return BASELINE_REQUIREMENTS, others, {"asa_padded_length": (["asa_penalty"], ["padded"])}
