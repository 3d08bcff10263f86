"""Checks of a checkpoint before a training resumes, or begins from its parameters.

The model has to have the attention that the checkpoint was trained with. Loading the parameters
strictly does not prove it: mechanisms can have the same parameters (softmax and doubly-normalised
attention), or store them relative to an option (the hybrid weight).
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_ext.attention import MIXERS, building
from fairseq_ext.attention.options import flag
from fairseq_ext.attention.slots import list_parts
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.second_pass.adversary import parse_adversary_layers
from fairseq_ext.models import model_options, origins
from fairseq_ext.models.config import read_facts, to_dict
from fairseq_ext.models.options import DEFAULTS, FACTS, OPTIONS
from fairseq_ext.models.pretrained import saved_options
from fairseq_ext.models.roberta_options import RobertaOptions

logger = logging.getLogger(__name__)

SITES = {"encoder": "encoder", "decoder": "decoder", "cross": "decoder"}
"""Site of attention -> side of the model that has its layers."""

State = Mapping[str, Any]

HEADS = ("encoder_attention_heads", "decoder_attention_heads")
OTHERS = (
    *HEADS,
    *("activation_fn", "no_scale_embedding"),
    *("encoder_normalize_before", "decoder_normalize_before", "no_decoder_final_norm"),
    *(name for name, facts in read_facts(RobertaOptions).items() if facts.alike),
)
"""Options of fairseq, and of RoBERTa-style models, that change what equal parameters compute."""

TIES = ("untie_weights_roberta", "share_all_embeddings", "share_decoder_input_output_embed")
"""Its options that share embeddings; all names are in a state dict, shared or not."""

KEPT = ("encoder_layers_to_keep", "decoder_layers_to_keep")

POSITIONS = ("no_token_positional_embeddings", "encoder_learned_pos", "decoder_learned_pos")
"""Its options of positions, for which there are ours too."""


def adopted_options(model: Any) -> dict[str, Any]:
    """Return the options that a model filled in by itself, which its checkpoint must hold."""
    return getattr(model, "adopted_options", dict)()


def check_restored(filename: str, state: State, trainer: Any, reset_optimizer: bool) -> None:
    """Raise UsageError if the trainer's model cannot continue from a checkpoint."""
    options = {**to_dict(trainer.cfg.model), **adopted_options(trainer.get_model())}
    check_attention(filename, state, options, reset_optimizer)
    check_shared(filename, state["model"], trainer.get_model())


def check_shared(filename: str, parameters: Mapping[str, Tensor], model: nn.Module) -> None:
    """Raise UsageError if the model shares parameters of which a checkpoint has several values.

    Each would overwrite the one before.
    """
    first: dict[int, str] = {}
    for name, value in model.named_parameters(remove_duplicate=False):
        other = first.setdefault(id(value), name)
        if other == name or not {other, name} <= parameters.keys():
            continue
        one, two = map(torch.nan_to_num, (parameters[other], parameters[name]))
        if not torch.equal(one, two):
            raise UsageError(
                f"{filename} has other values for {other} than for {name}, which this model "
                f"shares; share what was shared in its training (see {', '.join(map(flag, TIES))})"
            )


def check_attention(filename: str, state: State, model: Any, reset_optimizer: bool) -> None:
    """Compare the attention of a checkpoint with the attention of the model to be trained.

    With --reset-optimizer the model may begin from the parameters of another one: a difference is
    only logged, and adversaries may come and go.

    Args:
        filename: of the checkpoint.
        state: the checkpoint.
        model: options of the model.

    Raises:
        UsageError: it is another attention, or the weights of its heads would get another meaning.
    """
    saved, current = saved_options(state), to_dict(model)
    differing = _list_differing(saved, current, reset_optimizer)
    if not differing:
        return
    listed = ", ".join(f"{n} {_value(saved, n)} (now {_value(current, n)})" for n in differing)
    if not reset_optimizer:
        raise UsageError(
            f"{filename} was trained with {listed}; give the same options to go on, "
            "--reset-optimizer to begin from its parameters all the same, or another --save-dir"
        )
    if relative := sorted(_relative_to(saved, current).intersection(differing)):
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in relative)
        raise UsageError(
            f"{filename} was trained with {listed}, and weights of its heads are stored relative "
            f"to that; give the same {flags}"
        )
    logger.warning(
        "%s was trained with %s; those of its parameters that the model has are used all the same",
        filename,
        listed,
    )


def _list_differing(saved: Any, current: Any, reset_optimizer: bool) -> list[str]:
    """Return the names of options that make the attention, or what is around it, another one."""
    names = [n for n, *_ in OPTIONS if not (reset_optimizer and n.startswith("asa_"))]
    differing = [name for name in names if _value(saved, name) != _value(current, name)]
    differing += [n for n in POSITIONS if bool(saved.get(n)) != bool(current.get(n))]
    sizes = {**saved, **{name: value for name, value in current.items() if value is not None}}
    compared = OTHERS if reset_optimizer else (*OTHERS, *TIES)
    before, now = map(_effective, (saved, sizes))
    others = [n for n in compared if n in saved and before[n] != now[n]]
    others += [n for n in KEPT if _has_other_numbers(n, saved, current, sizes)]
    if not others and (not differing or _describe(saved, sizes) == _describe(current, sizes)):
        return []
    return differing + others


def _effective(options: Mapping[str, Any]) -> dict[str, str]:
    """Return options as text, None as False, where another option decides as that one does."""
    values = {name: str(options.get(name) or False) for name in (*OTHERS, *TIES)}
    if values["share_all_embeddings"] == "True":
        values["share_decoder_input_output_embed"] = "True"
    if values["decoder_normalize_before"] == "False":
        values["no_decoder_final_norm"] = "False"
    return values


def _has_other_numbers(name: str, saved: Any, current: Any, sizes: Mapping[str, Any]) -> bool:
    """Return whether parts of both models depend on the numbers of layers, which differ."""
    one, two = (_numbers(name, options, sizes) for options in (saved, current))
    return one is not None and two is not None and one != two


def _numbers(name: str, options: Mapping[str, Any], sizes: Mapping[str, Any]) -> list[int] | None:
    """Return the numbers of a side's layers in training; None if no part depends on them."""
    side = name.removesuffix("_layers_to_keep")
    mixers = [_value(options, f"{site}_head_mixer") for site in SITES if SITES[site] == side]
    kinds = [MIXERS.parts()[name].default() for name in mixers if name in MIXERS]
    if not any(kind is not None and kind.numbered for kind in kinds):
        return None
    kept = options.get(name) or ",".join(map(str, range(sizes.get(f"{side}_layers") or 0)))
    return sorted(int(number) for number in kept.split(",") if number)


def _relative_to(*models: Mapping[str, Any]) -> set[str]:
    """Return the options that give weights of heads their meaning, if all models have such ones."""
    starts = {
        name
        for slot, part in list_parts()
        for name in part.options
        if (by := FACTS[name].relative)
        and any(
            {_value(options, slot.name_option(site)) for options in models} == {part.name}
            for site in slot.sites or ("",)
        )
        and (by is True or all(_value(options, str(by)) for options in models))
    }
    gated = all(_value(options, "head_gate") == "static" for options in models)
    return starts | {*(HEADS if starts or gated else ())}


def _value(options: Mapping[str, Any], name: str) -> Any:
    """Return an option as text or number; its default if the checkpoint is older, or fairseq's."""
    value = options.get(name, DEFAULTS.get(name))
    return value if isinstance(value, int | float | None) else str(value)


def _describe(options: Mapping[str, Any], sizes: Mapping[str, Any]) -> list[Any] | None:
    """Return the attention that the options give a model of these sizes; None if they misfit."""
    values = {name: _value(options, name) for name, *_ in OPTIONS}
    sides = [side for side in ("encoder", "decoder") if f"{side}_layers" in sizes]
    with suppress(UsageError):
        adversaries = parse_adversary_layers(values["asa_layers"], sizes.get("encoder_layers", 0))
        parts = [adversaries, adversaries and values["asa_per_head"], values["head_gate"]]
        parts += [sorted(building.parse_gate_sites(values)), *origins.read_options(values)]
        parts += [values[name] for name, facts in FACTS.items() if facts.alike]
        parts += [model_options.name_positions(side, options) for side in sides]
        if len(sides) == 2:
            layers = sizes["decoder_layers"]
            parts.append(model_options.parse_cross_layers(values["cross_layers"], layers))
        for site, side in SITES.items() if len(sides) == 2 else zip(sides, sides, strict=True):
            layers = sizes[f"{side}_layers"]
            heads = building.count_heads(site, sizes[f"{side}_attention_heads"], values)
            parts += [heads, values[f"{site}_head_mixer"]]
            for layer, left in enumerate(building.list_heads_left(site, heads, layers, values)):
                parts.append(repr(building.build_heads(site, layer, left, layers, values)))
        return parts
    return None
