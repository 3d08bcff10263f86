"""The description of a model in the config.json of a folder with code; see `export_code`."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fairseq_ext.attention.building import (
    HEAD_KINDS,
    count_heads,
    default_options,
    list_heads_left,
)
from fairseq_ext.attention.options import flag
from fairseq_ext.attention.parts import OWN
from fairseq_ext.attention.positions import EMBEDDED
from fairseq_ext.attention.sites import SITES
from fairseq_ext.attention.slots import SLOTS
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.runs import get_architecture
from fairseq_ext.interchange import hf_format as hf
from fairseq_ext.interchange.carried_files import VERSION
from fairseq_ext.interchange.export_fairseq import FOLDED
from fairseq_ext.interchange.hf_llama import is_today
from fairseq_ext.models.model_options import name_positions, parse_cross_layers
from fairseq_ext.models.options import DEFAULTS
from fairseq_ext.models.pretrained import FIRST_POSITION

MODELING = "modeling_fairseq_ext"
CLASSES = {
    "encoder": [
        ("AutoModel", "FairseqExtModel"),
        ("AutoModelForMaskedLM", "FairseqExtForMaskedLM"),
    ],
    "both": [("AutoModelForSeq2SeqLM", "FairseqExtForConditionalGeneration")],
    "decoder": [("AutoModelForCausalLM", "FairseqExtForCausalLM")],
}
"""Sides of a model -> classes of transformers that load it, each with its class in the folder."""

FORMS = {"norm": "layer", "ffn": "plain", "no_biases": False, "qk_norm": False} | {
    f"{site}_kv_heads": 0 for site in SITES
}


POSITIONS_OPTIONS = SLOTS["positions"].list_names()
PLAIN = (*EMBEDDED, "none")


def list_mechanisms(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return option -> value of the parts in slots, kinds of heads and forms that are not softmax.

    Adversaries are left out, which only training uses.
    """
    values = {**DEFAULTS, **model}
    slots = {n: s.off for s in SLOTS.values() for n in s.list_names()}
    kinds = {f"{site}_{n}": kind.off for n, kind in HEAD_KINDS.items() for site in SITES}
    off = {**slots, **kinds, **FORMS}
    given = {n: values[n] for n in off if n in model and str(values[n]) != str(off[n])}
    return {n: v for n, v in given.items() if not (n in POSITIONS_OPTIONS and v in PLAIN)}


def needs_code(model: Mapping[str, Any]) -> bool:
    """Return whether a model has mechanisms that no class of transformers knows."""
    mechanisms = list_mechanisms(model)
    if is_today(model):  # with the forms of Llama's layers
        known, names = {(name, "rotary") for name in POSITIONS_OPTIONS}, [*FORMS]
    elif get_architecture(model).startswith("transformer"):  # these are folded
        known = {(name, gate) for name in SLOTS["head_gate"].list_names() for gate in FOLDED}
        names = [f"{site}_kv_heads" for site in SITES]
        sides = [side for side in ("encoder", "decoder") if f"{side}_layers" in model]
        kinds = {name_positions(side, {**DEFAULTS, **model}) for side in sides}
        if "none" in kinds and len(kinds) > 1:
            return True
    else:
        known, names = {("encoder_scorer", "disentangled")}, []  # DeBERTa's
    return any((n, value) not in known and n not in names for n, value in mechanisms.items())


def find_modules(model: Mapping[str, Any]) -> set[str]:
    """Return the modules of this package that register the parts and kinds of heads of a model.

    Raises:
        UsageError: a part belongs to another package.
    """
    options = {**default_options(), **model}
    modules = {
        type(kind).__module__
        for kind in HEAD_KINDS.values()
        for site in SITES
        if kind.is_at(site, options)
    }
    for slot in SLOTS.values():
        for option in slot.list_names():
            value = options.get(option, slot.off)
            for name in [] if value is None else slot.read_names(option, value):
                part = slot.parts.parts()[name]
                if part.package != OWN:
                    raise UsageError(
                        f"{flag(option, name)} is one of the package "
                        f"{part.package}, whose files a folder of {OWN} cannot carry; export a "
                        "model without it"
                    )
                modules.add(part.make.__module__)
    return {name for name in modules if name.startswith(f"{OWN}.mechanisms")}


def describe_model(model: Mapping[str, Any], state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the contents of config.json, apart from numbers of special tokens.

    Args:
        model: its options.
        state: its parameters.

    Raises:
        UsageError: it has embeddings of another kind than a vector for each token.
    """
    head = hf.OUTPUT_BIAS in state
    own: dict[str, Any] = {"segments": 0}
    if hf.TOKENS in state:
        classes, sides = CLASSES["encoder"][: 1 + head], {"encoder": hf.ENCODER}
        own |= {
            "segments": len(state[hf.SEGMENTS]) if hf.SEGMENTS in state else 0,
            "head_activation": str(model["activation_fn"]) if head else None,
            "layer_norm_eps": model.get("layer_norm_eps") or 1e-5,
        }
    elif any(name.startswith("encoder.") for name in state):
        classes, sides = CLASSES["both"], {"encoder": "encoder", "decoder": "decoder"}
    else:
        classes, sides = CLASSES["decoder"], {"decoder": "decoder"}
    options = list_options(model, next(iter(sides)))
    sided = {f"{s}_side": describe_side(s, p, model, state, options) for s, p in sides.items()}
    last, tied = [*sided.values()][-1], find_tied(state)
    return {
        "architectures": [classes[-1][1]],
        "model_type": "fairseq_ext",
        "fairseq_ext_version": VERSION,
        "auto_map": {
            "AutoConfig": f"{MODELING}.FairseqExtConfig",
            **{theirs: f"{MODELING}.{ours}" for theirs, ours in classes},
        },
        "is_encoder_decoder": len(sides) > 1,
        "vocab_size": last["symbols"],
        "hidden_size": last["width"],
        "num_hidden_layers": len(last["numbers"]),
        "num_attention_heads": last["heads"],
        "tie_word_embeddings": bool(tied),
        "tied": tied,
        **own,
        **sided,
    }


def list_options(model: Mapping[str, Any], first: str) -> dict[str, Any]:
    """Return the options of attention that are not at their default.

    Args:
        first: the first side of the model, whose heads have gates if no option says where.
    """
    defaults = default_options()
    options = {n: model[n] for n in defaults if n in model and model[n] != defaults[n]}
    return options | {"head_gate_sites": model.get("head_gate_sites", first)}


def describe_side(
    side: str,
    prefix: str,
    model: Mapping[str, Any],
    state: Mapping[str, Tensor],
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Return what config.json says of a side; see `side.Side`.

    Raises:
        UsageError: the checkpoint has no embeddings of tokens there.
    """
    values = {**DEFAULTS, **model}
    if (tokens := state.get(f"{prefix}.embed_tokens.weight")) is None:
        raise UsageError(
            f"the checkpoint has no {prefix}.embed_tokens.weight, and embeddings of other kinds "
            "cannot be exported; give a model with a vector for each token"
        )
    layers, heads = int(model[f"{side}_layers"]), int(model[f"{side}_attention_heads"])
    width, kept = int(model[f"{side}_embed_dim"]), model.get(f"{side}_layers_to_keep")
    positions = name_positions(side, model)
    rows = state.get(f"{prefix}.embed_positions.weight")
    scaled = not model.get("no_scale_embedding", f"{prefix}." == f"{hf.ENCODER}.")
    cross, whole = {}, count_heads("cross", heads, values)
    attends = []
    if side == "decoder" and not model.get("no_cross_attention") and "encoder_layers" in model:
        attends = parse_cross_layers(values["cross_layers"], layers)
        left = list_heads_left("cross", whole, layers, values)
        cross = {"heads": whole, "heads_left": left, "kv_heads": values["cross_kv_heads"]}
    projected = state.get(f"{prefix}.project_out_dim.weight")
    return {
        "site": side,
        "symbols": tokens.size(0),
        "embedding": tokens.size(1),
        "width": width,
        "inner": int(model[f"{side}_ffn_embed_dim"]),
        "heads": heads,
        "heads_left": list_heads_left(side, heads, layers, values),
        "kv_heads": values[f"{side}_kv_heads"],
        "numbers": sorted(map(int, kept.split(","))) if kept else [*range(layers)],
        "normalize_before": bool(model.get(f"{side}_normalize_before")),
        "final_norm": f"{prefix}.layer_norm.weight" in state,
        "norm_embedding": f"{prefix}.layernorm_embedding.weight" in state,
        "positions": positions,
        "rows": 0 if rows is None else len(rows),
        "first": FIRST_POSITION,
        "scale": math.sqrt(width) if scaled else 1.0,
        "activation": str(model["activation_fn"]),
        "biases": not values["no_biases"],
        **{name: values[name] for name in ("norm", "ffn", "qk_norm")},
        **{n: float(model.get(n) or 0.0) for n in ("dropout", "attention_dropout")},
        "activation_dropout": float(model.get("activation_dropout") or 0.0),
        "attends": attends,
        "memory": int(model.get("encoder_embed_dim") or 0),
        "cross": cross,
        "output": 0 if projected is None else len(projected),
        "options": dict(options),
    }


def find_tied(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Return parameter -> the parameter that it is, of embeddings and of positions."""
    embeddings = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    outputs = ("decoder.output_projection.weight", hf.OUTPUT_WEIGHT)
    groups = [[n for n in (hf.TOKENS, *embeddings, *outputs) if n in state]]
    tables = [name for name in state if name.endswith(".positions.table")]
    groups += [[n for n in tables if n.startswith(side)] for side in ("encoder.", "decoder.")]
    return {
        name: other
        for group in groups
        for i, name in enumerate(group)
        for other in group[:i][::-1]
        if torch.equal(state[name], state[other])
    }
