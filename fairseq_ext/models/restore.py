"""A training goes on only with the attention that it began with.

Mechanisms can have the same parameters (softmax and doubly-normalised attention), or store them
relative to an option (the hybrid weight), so that loading them strictly proves nothing.
"""

import logging
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from omegaconf import OmegaConf

from fairseq_ext import safe_loading
from fairseq_ext.data.vocabulary import digest
from fairseq_ext.errors import UsageError
from fairseq_ext.models.adversaries import adversary_layers
from fairseq_ext.models.hard_coded import cross_layers
from fairseq_ext.models.layers import build_heads, count_heads
from fairseq_ext.models.options import DEFAULTS, HYBRID, OPTIONS
from fairseq_ext.models.pretrained import DIGEST
from fairseq_ext.patching import around

logger = logging.getLogger(__name__)

SITES = ("encoder", "decoder", "cross")
HEADS = ("encoder_attention_heads", "decoder_attention_heads")


def install() -> None:
    """Check every checkpoint that fairseq's trainer restores; complete what it saves."""

    def load(original: Callable, trainer: Any, filename: str, *args: Any, **kwargs: Any) -> Any:
        if zipfile.is_zipfile(filename):
            reset = args[0] if args else kwargs.get("reset_optimizer", False)
            decided = getattr(trainer.get_model(), "decided", dict)()
            check(filename, {**_options(trainer.cfg.model), **decided}, reset)
        trainer.get_model().own_head = filename == trainer.cfg.checkpoint.finetune_from_model
        return original(trainer, filename, *args, **kwargs)

    def state_dict(original: Callable, trainer: Any) -> dict[str, Any]:
        state = original(trainer)
        if words := getattr(trainer.task, "source_dictionary", None):
            state["extra_state"][DIGEST] = digest(words.symbols)
        if decided := getattr(trainer.get_model(), "decided", dict)():
            state["cfg"]["model"] = {**state["cfg"]["model"], **decided}
        return state

    around("fairseq.trainer:Trainer", "load_checkpoint", load)
    around("fairseq.trainer:Trainer", "state_dict", state_dict)


def check(filename: str, model: Any, reset_optimizer: bool) -> None:
    """Compare the attention of a checkpoint with that of the model to be trained.

    With --reset-optimizer another one is only warned of: it may begin from this checkpoint; and
    adversaries come and go.

    Raises:
        UsageError: it is another one, or the weights of its heads would become others.
    """
    state = safe_loading.load_checkpoint(filename, map_location="cpu", mmap=True)
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
