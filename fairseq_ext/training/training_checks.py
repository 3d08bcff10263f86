"""Checks of parts that were built apart from each other, before a training begins.

Model, criterion and options have to suit each other.
"""

import logging
from collections.abc import Callable
from typing import Any

from fairseq.criterions import CRITERION_DATACLASS_REGISTRY
from fairseq.models import MODEL_DATACLASS_REGISTRY
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from torch import nn

from fairseq_ext.attention import Attention
from fairseq_ext.attention.masks import DEFAULT_MASKS
from fairseq_ext.attention.normalisers import Softmax
from fairseq_ext.attention.options import Rule, Rules, check_rules, read_rules
from fairseq_ext.criterions.closing_heads import find_gates
from fairseq_ext.criterions.composite import CompositeCriterion
from fairseq_ext.criterions.terms import Term, unwrap
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.second_pass.adversary import Adversary
from fairseq_ext.models import compilation, model_options
from fairseq_ext.models.config import check_requirements, default_options, to_dict
from fairseq_ext.models.mixins import AttentionModel
from fairseq_ext.models.options import DEFAULTS, OPTION_REQUIREMENTS, check_embeddings
from fairseq_ext.models.roberta_options import RobertaOptions
from fairseq_ext.models.transformer import TransformerModel

logger = logging.getLogger(__name__)

ALIGNED = "label_smoothed_cross_entropy_with_alignment"
MASKED_LM = ("masked_lm", "replaced_token_detection")  # how their criterions begin

RULES: Rules = {
    "adaptive_softmax_cutoff": Rule(
        "criterion",
        "{one} is given, which {other} cannot train; give --criterion adaptive_loss, or leave "
        "it out",
        lambda cutoff, criterion: cutoff and criterion != "adaptive_loss",
    ),
    "criterion": Rule(
        "load_alignments",
        "{one} needs alignments, and none are loaded; give --load-alignments, or another one",
        lambda criterion, loads: criterion == ALIGNED and not loads,
    ),
    "d2v2_multi": Rule(
        "criterion",
        "{one} makes batches for data2vec 2, without masks, and {other} predicts masked "
        "tokens; leave one of both out",
        lambda multi, criterion: multi and criterion.startswith(MASKED_LM),
    ),
}
"""Rules for options of fairseq and the criterion."""

REGISTRIES = {
    "criterion": CRITERION_DATACLASS_REGISTRY,
    "task": TASK_DATACLASS_REGISTRY,
    "model": MODEL_DATACLASS_REGISTRY,
}
"""Part of a training -> name -> the dataclass of its options."""


def check_training(model: Any, criterion: Any, cfg: Any) -> None:
    """Raise UsageError if a training with this configuration has to be refused."""
    name = str(cfg.criterion._name)
    check_criterion(model, criterion, name, cfg.optimization.clip_norm)
    compilation.check_model(unwrap(model))
    if isinstance(plain := unwrap(model), AttentionModel):
        model_options.check_gate_sites(plain, cfg.model)
        preset = default_options(MODEL_DATACLASS_REGISTRY[cfg.model._name])
        roberta = default_options(RobertaOptions)
        check_requirements(cfg.model, preset, DEFAULTS | roberta, OPTION_REQUIREMENTS)
    if isinstance(plain, TransformerModel):
        check_embeddings(cfg.model)
    check_options(cfg)


def check_options(cfg: Any) -> None:
    """Raise UsageError for options of a training that exclude each other, with or without effect.

    Those of a criterion, a task and a model are read from the dataclass of each.
    """
    given = {part: getattr(cfg, part, None) for part in REGISTRIES}
    options = [to_dict(each) for each in (*given.values(), cfg.common) if each]
    # what is None is taken from a checkpoint, and was checked when the model was built
    values = {n: value for each in options for n, value in each.items() if value is not None}
    values["criterion"] = cfg.criterion._name
    check_rules(values, RULES, training=True)
    for part, registry in REGISTRIES.items():
        name = getattr(given[part], "_name", None)
        check_rules(values, read_rules(registry.get(name)), training=True)


def check_criterion(model: Any, criterion: Any, name: str, clip_norm: float) -> None:
    """Raise UsageError if a model and a criterion called `name` do not suit each other."""
    model = unwrap(model)
    if isinstance(criterion, CompositeCriterion) and not isinstance(model, AttentionModel):
        raise UsageError(
            f"--criterion {name} needs an --arch of ours, such as roberta_una or transformer_una"
        )
    if "asa" in getattr(criterion, "terms", ()) and not hasattr(model, "encoder"):
        raise UsageError(
            f"--criterion {name} masks or disturbs what an encoder reads, and this --arch has no "
            "encoder; leave out the _asa of the criterion, or give an --arch like transformer_asa"
        )
    for part in criterion.parts if isinstance(criterion, CompositeCriterion) else ():
        part.begin()
        check_empty_rows(model, getattr(part, "empty_rows", "unmasked"))
        check_mixed_heads(model, getattr(part, "per_head", False))
        check_samples(model, part, name)
    check_adversaries(model, criterion, name, clip_norm)
    check_gates(model, "l0" in getattr(criterion, "terms", ()), name)


def check_samples(model: nn.Module, part: Term, name: str) -> None:
    """Raise UsageError if a term compares passes for which a generator samples other tokens."""
    if part.reruns and getattr(model, "generator", None) is not None:
        raise UsageError(
            f"--criterion {name} computes the objective again ({type(part).__name__}), for which "
            "a learned generator would sample other tokens; leave out one of it and "
            "--generator-size"
        )


def check_gates(model: nn.Module, priced: bool, name: str) -> None:
    """Raise UsageError if gates may close heads and nothing asks for it, or the other way round."""
    gates = find_gates(model)
    if gates and not priced:
        raise UsageError(
            f"--head-gate l0 closes no head with --criterion {name}; give {name}_l0 or another gate"
        )
    if priced and not gates:
        raise UsageError(f"--criterion {name} closes heads by their gates; give --head-gate l0 too")


def check_adversaries(model: nn.Module, criterion: Any, name: str, clip_norm: float) -> None:
    """Raise UsageError if nothing would train the adversaries, or there are none to train."""
    adversaries = [module for module in model.modules() if isinstance(module, Adversary)]
    if not getattr(criterion, "uses_adversaries", False):
        if adversaries:
            raise UsageError(
                f"--criterion {name} does not train adversaries (of --asa-layers or roberta_asa); "
                "give one with _asa and no --asa-baseline, or --asa-layers none"
            )
        return
    if not adversaries:
        raise UsageError(
            f"--criterion {name} needs an architecture with adversaries; give --asa-layers all, an "
            "--arch like roberta_asa or transformer_asa, or an --asa-baseline"
        )
    if clip_norm:
        logger.warning(
            "--clip-norm %g cuts all gradients by one norm, and adversaries have by far the "
            "largest; their authors do not clip: give --clip-norm 0",
            clip_norm,
        )


def check_empty_rows(model: nn.Module, empty_rows: str) -> None:
    """Raise UsageError for --asa-empty-rows as in the released code, if heads do not allow it.

    There a row without any key left is a softmax over all positions.
    """
    if empty_rows == "unmasked":
        return
    encoder = _list_encoder_attention(model)
    if any(attention.mixer for attention in encoder):
        raise UsageError(
            f"--asa-empty-rows {empty_rows} looks at all positions by softmax, and "
            "--encoder-head-mixer changes its weights; leave one of both out, or the preset that "
            "sets the rows"
        )
    groups = [group for attention in encoder for group in attention.groups]
    for reason, differs in OTHER_ROWS.items():
        if any(differs(group) for group in groups):
            raise UsageError(
                f"--asa-empty-rows {empty_rows} looks at all positions by softmax, and {reason}; "
                "leave one of both out, or the preset that sets the rows"
            )


def check_mixed_heads(model: nn.Module, per_head: bool) -> None:
    """Raise UsageError if a second pass masks each head on its own, and heads are mixed."""
    mixers = [attention.mixer for attention in _list_encoder_attention(model)]
    if per_head and any(mixer is not None and mixer.mixes_heads for mixer in mixers):
        raise UsageError(
            "--asa-baseline magnitude masks a unit in one head, which with --encoder-head-mixer "
            "gets weights of the others; give another baseline, or --encoder-head-mixer none or "
            "differential"
        )


def _list_encoder_attention(model: nn.Module) -> list[Attention]:
    return [m for m in model.modules() if isinstance(m, Attention) and m.site == "encoder"]


OTHER_ROWS: dict[str, Callable[[Any], bool]] = {
    "--encoder-roles at some of them": lambda group: group.masks != DEFAULT_MASKS,
    "--encoder-gaussian-heads is not normalised": lambda group: not group.learned,
    "--encoder-normaliser is another one": lambda group: not isinstance(group.normaliser, Softmax),
}
"""Reason in an error -> whether the rows of these heads are no softmax over all positions."""
