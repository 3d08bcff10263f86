"""Checks made when a training begins or resumes, of parts that were built apart from each other.

A training resumes only with the attention that it began with: mechanisms can have the same
parameters (softmax and doubly-normalised attention), or store them relative to an option (the
hybrid weight), so that loading them strictly proves nothing.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from typing import Any

from fairseq.models import MODEL_DATACLASS_REGISTRY
from omegaconf import OmegaConf

from fairseq_ext.attention import Attention, Heads
from fairseq_ext.attention.masks import DEFAULT_MASKS
from fairseq_ext.criterions.composite import Composite
from fairseq_ext.criterions.terms import unwrapped
from fairseq_ext.errors import UsageError
from fairseq_ext.models import adversaries
from fairseq_ext.models.adversaries import adversary_layers
from fairseq_ext.models.config import check_requirements
from fairseq_ext.models.hard_coded import cross_layers
from fairseq_ext.models.layers import build_heads, count_heads
from fairseq_ext.models.mixins import Monitored
from fairseq_ext.models.options import DEFAULTS, HYBRID, OPTION_REQUIREMENTS, OPTIONS

logger = logging.getLogger(__name__)

SITES = ("encoder", "decoder", "cross")
HEADS = ("encoder_attention_heads", "decoder_attention_heads")


def check_model(model: Any, criterion: Any, name: str, clip_norm: float) -> None:
    """Raises UsageError if they do not suit each other.

    Args:
        name: of the criterion.
    """
    model = unwrapped(model)
    if isinstance(criterion, Composite) and not isinstance(model, Monitored):
        raise UsageError(
            f"--criterion {name} needs an architecture of ours; give an --arch like roberta_una or "
            "transformer_una"
        )
    for part in criterion.parts if isinstance(criterion, Composite) else ():
        part.begin()
        check_empty_rows(model, getattr(part, "empty_rows", "unmasked"))
    if "ag" in getattr(criterion, "terms", ()) and not any(
        parameter.requires_grad
        for module in model.encoder.modules()  # the only one that is ever frozen
        if isinstance(module, Attention)
        for parameter in module.parameters()
    ):
        raise UsageError(
            f"--criterion {name} guides attention, and that of a frozen encoder does not learn; "
            "leave out --freeze-encoder, or the _ag of the criterion"
        )
    adversaries.check(model, criterion, name, clip_norm)


def check_training(model: Any, criterion: Any, cfg: Any) -> None:
    """Raises UsageError if a training with this configuration has to be refused."""
    check_model(model, criterion, str(cfg.criterion._name), cfg.optimization.clip_norm)
    if isinstance(unwrapped(model), Monitored):
        config = MODEL_DATACLASS_REGISTRY[cfg.model._name]
        preset = {field.name: field.default for field in fields(config)}
        check_requirements(cfg.model, preset, DEFAULTS, OPTION_REQUIREMENTS)


def check_empty_rows(model: Any, empty_rows: str) -> None:
    """Raises UsageError for rows of the released code where no row can be like that."""
    if empty_rows == "unmasked":
        return
    encoder = [m for m in model.modules() if isinstance(m, Attention) and m.site == "encoder"]
    groups = [group for attention in encoder for group in attention.groups]
    for other, stands_against in OTHER_ROWS.items():
        if any(stands_against(group) for group in groups):
            raise UsageError(
                f"--asa-empty-rows {empty_rows} looks at all positions by softmax, and {other}; "
                "leave one of both out"
            )


OTHER_ROWS: dict[str, Callable[[Heads], bool]] = {
    "--encoder-roles at some of them": lambda group: group.masks != DEFAULT_MASKS,
    "--encoder-gaussian-heads is not normalised": lambda group: not group.learned,
    "--encoder-normaliser is another one": lambda group: group.normaliser.across_queries,
}
"""Heads whose rows are no softmax over all positions."""


def decided_options(model: Any) -> dict[str, Any]:
    """Return the options that a model decided by itself, which its checkpoint must hold."""
    return getattr(model, "decided", dict)()


def check_restored(
    filename: str, state: Mapping[str, Any], trainer: Any, reset_optimizer: bool
) -> None:
    """Raise UsageError if the trainer's model cannot go on from a checkpoint."""
    model = {**_options(trainer.cfg.model), **decided_options(trainer.get_model())}
    check_attention(filename, state, model, reset_optimizer)


def check_attention(
    filename: str, state: Mapping[str, Any], model: Any, reset_optimizer: bool
) -> None:
    """Compare the attention of a checkpoint with that of the model to be trained.

    With --reset-optimizer another one is only warned of: it may begin from this checkpoint; and
    adversaries come and go.

    Raises:
        UsageError: it is another one, or the weights of its heads would become others.
    """
    before = (state.get("cfg") or {}).get("model") or state.get("args") or {}  # args: old ones
    saved, current = _options(before), _options(model)
    names = [n for n, *_ in OPTIONS if not (reset_optimizer and n.startswith("asa_"))]
    differing = [name for name in names if _value(saved, name) != _value(current, name)]
    sizes = {**saved, **{name: value for name, value in current.items() if value is not None}}
    heads = [n for n in HEADS if n in saved and saved[n] != sizes[n]]
    if not heads and (not differing or _attention(saved, sizes) == _attention(current, sizes)):
        return
    differing += heads
    said = ", ".join(f"{n} {_value(saved, n)} (now {_value(current, n)})" for n in differing)
    if not reset_optimizer:
        raise UsageError(
            f"{filename} was trained with {said}; give the same options to go on, "
            "--reset-optimizer to begin from its parameters all the same, or another --save-dir"
        )
    hybrid = any(_hybrid(saved, site) and _hybrid(current, site) for site in SITES)
    gated = _value(saved, "head_gate") and _value(current, "head_gate")
    bound = {*(HYBRID if hybrid else ()), *(heads if hybrid or gated else ())} & set(differing)
    if bound:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in sorted(bound))
        raise UsageError(
            f"{filename} was trained with {said}, and weights of its heads are stored relative to "
            f"that; give the same {flags}"
        )
    logger.warning(
        "%s was trained with %s; those of its parameters that the model has are used all the same",
        filename,
        said,
    )


def _hybrid(options: Mapping[str, Any], site: str) -> bool:
    return _value(options, f"{site}_normaliser") == "hybrid"


def _options(model: Any) -> Mapping[str, Any]:
    if OmegaConf.is_config(model):
        return OmegaConf.to_container(model, resolve=True)
    return model if isinstance(model, Mapping) else vars(model)


def _value(options: Mapping[str, Any], name: str) -> Any:
    """An option as text or number; its default if the checkpoint is older, or fairseq's own."""
    value = options.get(name, DEFAULTS.get(name))
    return value if isinstance(value, int | float) else str(value)


def _attention(options: Mapping[str, Any], sizes: Mapping[str, Any]) -> list[str] | None:
    """What the options make of a model of these sizes; None if they do not fit it."""
    given = {name: _value(options, name) for name, *_ in OPTIONS}
    with suppress(UsageError):
        two_sided = "decoder_layers" in sizes
        made = [repr(adversary_layers(given["asa_layers"], sizes["encoder_layers"]))]
        made += [repr(given["asa_per_head"])] if made != ["[]"] else []
        made.append(repr(given["head_gate"]))
        if two_sided:
            made.append(repr(cross_layers(given["cross_layers"], sizes["decoder_layers"])))
            made.append(repr(given["share_encoder_decoder_layers"]))
        for site in SITES if two_sided else ("encoder",):
            side = "encoder" if site == "encoder" else "decoder"
            layers = sizes[f"{side}_layers"]
            heads = count_heads(site, sizes[f"{side}_attention_heads"], given)
            made += [
                repr((heads, build_heads(site, i, heads, layers, given))) for i in range(layers)
            ]
        return made
    return None
