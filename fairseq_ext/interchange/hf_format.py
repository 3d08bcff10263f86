"""BERT and RoBERTa as Hugging Face writes them, and the corresponding names in fairseq.

DeBERTa is in `hf_deberta`, which uses this.

Shapes are words of letters: V symbols, P positions, T token types, D features, F features between
the linear layers.
"""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import fairseq_ext.mechanisms  # noqa: F401 (fills the table of kinds of heads)
from fairseq_ext.attention.building import HEAD_KINDS
from fairseq_ext.attention.options import flag
from fairseq_ext.attention.slots import SLOTS
from fairseq_ext.errors import UsageError
from fairseq_ext.files import check_not_pointer

# hidden_act and fairseq's --activation-fn; where two are one function, the last is written back.
ACTIVATIONS = {
    "gelu_python": "gelu",
    "gelu": "gelu",
    "relu": "relu",
    **dict.fromkeys(("gelu_pytorch_tanh", "gelu_fast", "gelu_new"), "gelu_accurate"),
}
HIDDEN_ACTS = {ours: theirs for theirs, ours in ACTIVATIONS.items()}

# Options of our models: the name in config.json, and the default there.
OPTIONS = {
    "encoder_layers": ("num_hidden_layers", 12),
    "encoder_embed_dim": ("hidden_size", 768),
    "encoder_ffn_embed_dim": ("intermediate_size", 3072),
    "encoder_attention_heads": ("num_attention_heads", 12),
    "dropout": ("hidden_dropout_prob", 0.1),
    "attention_dropout": ("attention_probs_dropout_prob", 0.1),
    "layer_norm_eps": ("layer_norm_eps", 1e-12),
}

RATES = {"hidden_dropout_prob", "attention_probs_dropout_prob", "layer_norm_eps"}
OUR_RATES = {ours for ours, (theirs, _) in OPTIONS.items() if theirs in RATES}

ENCODER = "encoder.sentence_encoder"
TOKENS = f"{ENCODER}.embed_tokens.weight"
POSITIONS = f"{ENCODER}.embed_positions.weight"
SEGMENTS = "encoder.embed_segments.weight"
OUTPUT = "encoder.lm_head"
OUTPUT_WEIGHT, OUTPUT_BIAS = f"{OUTPUT}.weight", f"{OUTPUT}.bias"
BY_SYMBOL = {TOKENS, OUTPUT_WEIGHT, OUTPUT_BIAS}  # with a row for each symbol

Module = tuple[str, ...]
"""Name of a module there, name here, shape of its weight and, if it has one, of its bias."""

EMBEDDINGS = (
    ("embeddings.word_embeddings", f"{ENCODER}.embed_tokens", "VD"),
    ("embeddings.position_embeddings", f"{ENCODER}.embed_positions", "PD"),
    ("embeddings.token_type_embeddings", "encoder.embed_segments", "TD"),
    ("embeddings.LayerNorm", f"{ENCODER}.layernorm_embedding", "D", "D"),
)
LAYER = (
    ("attention.self.query", "self_attn.q_proj", "DD", "D"),
    ("attention.self.key", "self_attn.k_proj", "DD", "D"),
    ("attention.self.value", "self_attn.v_proj", "DD", "D"),
    ("attention.output.dense", "self_attn.out_proj", "DD", "D"),
    ("attention.output.LayerNorm", "self_attn_layer_norm", "D", "D"),
    ("intermediate.dense", "fc1", "FD", "F"),
    ("output.dense", "fc2", "DF", "D"),
    ("output.LayerNorm", "final_layer_norm", "D", "D"),
)
ROBERTAS = dict.fromkeys(("camembert", "xlm-roberta"), "roberta")
"""Kinds of models that are a RoBERTa with another tokeniser."""

# The head for masked language modelling: its name, and the names of its first two modules.
HEADS = dict.fromkeys(("bert", "deberta", "deberta-v2"), "cls.predictions") | {"roberta": "lm_head"}
TRANSFORM = dict.fromkeys(HEADS, ("transform.dense", "transform.LayerNorm"))
TRANSFORM["roberta"] = ("dense", "layer_norm")


def list_parameters(
    kind: str, layers: int, head: bool, pooler: bool = False
) -> dict[str, tuple[str, str]]:
    """Return the parameters of an encoder: name there -> name here and shape.

    Args:
        kind: "bert" or "roberta"; names there lack this prefix.
        layers: the number of layers.
        head: whether the head for masked language modelling is included.
        pooler: whether the pooler is included.
    """
    pooled: list[Module] = [("pooler.dense", "pooler", "DD", "D")] if pooler else []
    modules: list[Module] = [*EMBEDDINGS, *pooled]
    if head:
        modules += list_head(kind, "D")
    return name_parameters([*modules, *list_layers(layers, LAYER)])


def list_head(kind: str, width: str) -> list[Module]:
    """Return the modules of the head for masked words, of the letter of its width."""
    prefix, (dense, norm) = HEADS[kind], TRANSFORM[kind]
    return [
        (f"{prefix}.{dense}", f"{OUTPUT}.dense", f"{width}D", width),
        (f"{prefix}.{norm}", f"{OUTPUT}.layer_norm", width, width),
        (f"{prefix}.decoder", OUTPUT, f"V{width}", "V"),
    ]


def list_layers(layers: int, parts: Iterable[Module]) -> list[Module]:
    """Return the modules of all layers, given those of one."""
    return [
        (f"encoder.layer.{i}.{theirs}", f"{ENCODER}.layers.{i}.{ours}", *shapes)
        for i in range(layers)
        for theirs, ours, *shapes in parts
    ]


def name_parameters(modules: Iterable[Module]) -> dict[str, tuple[str, str]]:
    """Return the parameters of modules: name there -> name here and shape."""
    return {
        f"{theirs}.{part}": (f"{ours}.{part}", shape)
        for theirs, ours, *shapes in modules
        for part, shape in zip(("weight", "bias"), shapes, strict=False)
    }


def list_plain(*sites: str) -> dict[str, list]:
    """Return the values of options with which attention at these sites is softmax alone.

    Positions are left out, of which several are plain.
    """
    slots = [slot for slot in SLOTS.values() if slot.name != "positions"]
    return {
        **{slot.name_option(site): [slot.off] for slot in slots for site in sites},
        **{f"{site}_{kind.name}": [kind.off] for kind in HEAD_KINDS.values() for site in sites},
    }


def check_options(
    options: Mapping[str, Any], accepted: Mapping[str, list], place: Path, models: str
) -> None:
    """Raise UsageError for an option of a model, as `check_settings` does for a setting."""
    given, allowed = ({flag(n): x for n, x in each.items()} for each in (options, accepted))
    check_settings(given, allowed, place, models)


def check_settings(
    settings: Mapping[str, Any], accepted: Mapping[str, list], place: Path, models: str
) -> None:
    """Raise UsageError for a setting that a kind of models cannot have.

    Args:
        settings: their names and values.
        accepted: values that each may have; the first is the value of a missing setting.
        place: the file or folder of the settings.
        models: the models to be written.
    """
    for name, values in accepted.items():
        if (value := settings.get(name, values[0])) not in values:
            raise UsageError(
                f"{place} has {name} {value}, which {models} cannot do; accepted: "
                f"{', '.join(map(str, values))}"
            )


def check_sizes(settings: Mapping[str, Any], place: Path, whole: Iterable[str]) -> None:
    """Raise UsageError for sizes and rates of config.json, or of our options, that mean nothing.

    Args:
        settings: their names and values.
        place: the file of the settings.
        whole: the settings that are whole numbers from 1; the others are numbers from 0 to 1.
    """
    for name, value in settings.items():
        kinds, most = ((int,), inf) if name in whole else ((int, float), 1)
        least = int(name in whole)
        if type(value) not in kinds or not least <= value <= most:
            raise UsageError(
                f"{place} has {name} {str(value)[:60]}; accepted: "
                + ("whole numbers from 1" if least else "numbers from 0 to 1")
            )


def check_heads(width: int, heads: int, place: Path) -> None:
    """Raise UsageError unless all heads have the same width."""
    if width % heads:
        raise UsageError(f"{place} has {heads} heads, which do not divide its width {width}")


def rearrange(state: dict[str, Tensor], order: list[int], first: int, wanted: int) -> None:
    """Put symbols into an order, and the first position from row `first` into row `wanted`."""
    for name in BY_SYMBOL & state.keys():
        state[name] = state[name][order]
    rows = state.get(POSITIONS)
    if rows is not None and first != wanted:
        state[POSITIONS] = torch.cat([rows.new_zeros(wanted, rows.size(1)), rows[first:]])


def find_shards(file: Path) -> list[Path]:
    """Return the file, or the files that its index names, or nothing if there is neither."""
    index = file.with_name(f"{file.name}.index.json")
    if file.exists() or not index.exists():
        check_not_pointer(file)
        return [file] if file.exists() else []
    parts = read_json(index).get("weight_map")
    names = list(parts.values()) if isinstance(parts, dict) else []
    if not names or any(not part or Path(str(part)).name != part for part in names):
        raise UsageError(f"{index} does not name files beside it; get the encoder again")
    shards = [file.with_name(part) for part in sorted(set(names))]
    for shard in shards:
        check_not_pointer(shard)
    return shards


def read_text(file: Path) -> str:
    """Return the text of a file, without a byte order mark; raise UsageError for a pointer."""
    check_not_pointer(file)
    return file.read_text("utf-8-sig")


def read_json(file: Path) -> dict[str, Any]:
    """Return a JSON object; raise UsageError if the file is missing or holds anything else."""
    check_not_pointer(file)
    with suppress(OSError, ValueError, RecursionError):
        if isinstance(content := json.loads(read_text(file)), dict):
            return content
    raise UsageError(f"{file} is missing or no JSON object; give a folder that transformers wrote")


def write_json(content: dict[str, Any], file: Path) -> None:
    """Write an indented JSON object."""
    file.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
