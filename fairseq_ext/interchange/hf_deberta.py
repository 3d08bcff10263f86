"""DeBERTa as Hugging Face writes it, and the corresponding names and options here.

Versions 2 and 3 are a "deberta-v2" there, and version 1 a "deberta", whose parameters have these
names after `hf_deberta_first`. Shapes are letters as in `hf_format`, with E features of embeddings,
R relative embeddings and K tokens that the convolution sees.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from fairseq_ext.errors import UsageError
from fairseq_ext.interchange import hf_format as hf
from fairseq_ext.mechanisms.disentangled import TERMS
from fairseq_ext.models.pretrained import DEBERTA

FIRST_VERSION, LATER_VERSIONS = KINDS = "deberta", "deberta-v2"
PREFIX = "deberta"  # of parameters of both
ARCHITECTURE = "deberta_una_base"

DEFAULTS: dict[str, Any] = {
    "relative_attention": False,
    "position_biased_input": True,
    "position_buckets": -1,
    "max_relative_positions": -1,
    "max_position_embeddings": 512,
    "type_vocab_size": 0,
    "pad_token_id": 0,
    "layer_norm_eps": 1e-7,
    "share_att_key": False,
    "norm_rel_ebd": "none",
    "conv_kernel_size": 0,
    "conv_act": "tanh",
}
"""Values of settings that config.json leaves out."""

ACCEPTED: dict[str, list] = {
    "relative_attention": [True],
    "position_biased_input": [False],
    "talking_head": [False],
    "is_decoder": [False],
    "share_att_key": [False, True],
    "norm_rel_ebd": ["none", "layer_norm"],
    "conv_groups": [1],
    "conv_act": ["tanh", *hf.ACTIVATIONS],
    "hidden_act": list(hf.ACTIVATIONS),
}
"""Values that settings may have."""

ACCEPTED_OPTIONS: dict[str, list] = {
    "encoder_scorer": ["disentangled"],
    "encoder_positions": ["none"],
    "encoder_conv_activation_fn": list(dict.fromkeys(["tanh", *hf.ACTIVATIONS.values()])),
}
"""Values that options of our models must have."""

LATER_ALONE = ("position_buckets", "share_att_key", "norm_rel_ebd", "conv_kernel_size")
"""Settings that version 1 does not read."""

LETTERS = {
    "V": "vocab_size",
    "E": "embedding_size",
    "T": "type_vocab_size",
    "D": "hidden_size",
    "F": "intermediate_size",
    "R": "relative_embeddings",
    "K": "conv_kernel_size",
}
"""Letters of shapes: the size in the configuration that `complete` returns."""

LAYER = (
    ("attention.self.query_proj", "self_attn.q_proj", "DD", "D"),
    ("attention.self.key_proj", "self_attn.k_proj", "DD", "D"),
    ("attention.self.value_proj", "self_attn.v_proj", "DD", "D"),
    *hf.LAYER[3:],
)
OWN = {
    "c2p": ("attention.self.pos_key_proj", "self_attn.relative.key", "DD", "D"),
    "p2c": ("attention.self.pos_query_proj", "self_attn.relative.query", "DD", "D"),
}
RELATIVE = f"{hf.ENCODER}.relative"
CONVOLUTION = f"{hf.ENCODER}.layers.0.convolution"
UNUSED = ("mask_predictions.", "embeddings.position_embeddings")
"""Further parameters of the released files: another head, positions that pre-training reads."""


class Form(NamedTuple):
    """Parts that a DeBERTa may have.

    Attributes:
        own: terms whose relative embeddings have projections of their own.
        norm: relative embeddings are normalised.
        convolution: of the embeddings.
        projected: embeddings are of another width.
        segments: there are embeddings of segments.
    """

    own: tuple[str, ...]
    norm: bool
    convolution: bool
    projected: bool
    segments: bool


def read_form(config: Mapping[str, Any]) -> Form:
    """Return the parts of a DeBERTa with this configuration, which `complete` returned."""
    return Form(
        () if config["share_att_key"] else tuple(config["pos_att_type"]),
        config["norm_rel_ebd"] == "layer_norm",
        config["conv_kernel_size"] > 0,
        config["embedding_size"] != config["hidden_size"],
        config["type_vocab_size"] > 0,
    )


def list_parameters(form: Form, layers: int, head: bool) -> dict[str, tuple[str, str]]:
    """Return the parameters of an encoder, as `hf_format.list_parameters` does."""
    modules: list[tuple[str, ...]] = [
        ("embeddings.word_embeddings", f"{hf.ENCODER}.embed_tokens", "VE"),
        ("embeddings.LayerNorm", f"{hf.ENCODER}.layernorm_embedding", "D", "D"),
        ("encoder.rel_embeddings", f"{RELATIVE}.embedding", "RD"),
    ]
    if form.segments:
        modules.append(("embeddings.token_type_embeddings", "encoder.embed_segments", "TE"))
    if form.projected:
        modules.append(("embeddings.embed_proj", "encoder.project", "DE"))
    if form.norm:
        modules.append(("encoder.LayerNorm", f"{RELATIVE}.norm", "D", "D"))
    if form.convolution:
        modules.append(("encoder.conv.conv", f"{CONVOLUTION}.conv", "DDK", "D"))
        modules.append(("encoder.conv.LayerNorm", f"{CONVOLUTION}.layer_norm", "D", "D"))
    if head:
        modules += hf.list_head(LATER_VERSIONS, "E")
    parts = (*LAYER, *(OWN[term] for term in form.own))
    return hf.name_parameters([*modules, *hf.list_layers(layers, parts)])


def complete(content: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the contents of config.json with a value for everything that is read here.

    Raises:
        UsageError: it describes what our models cannot do, or sizes that mean nothing.
    """
    config = {**dict(hf.OPTIONS.values()), "vocab_size": 128100} | DEFAULTS | dict(content)
    if config["model_type"] == FIRST_VERSION:
        config |= {name: DEFAULTS[name] for name in LATER_ALONE}
    config.setdefault("embedding_size", config["hidden_size"])
    config.setdefault("hidden_act", "gelu")
    hf.check_settings(config, ACCEPTED, path, "our models")
    file = path / "config.json"
    whole = {theirs for theirs, _ in hf.OPTIONS.values()} - hf.RATES
    whole |= {"vocab_size", "embedding_size", "max_position_embeddings"}
    hf.check_sizes({name: config[name] for name in whole | hf.RATES}, file, whole)
    hf.check_heads(config["hidden_size"], config["num_attention_heads"], file)
    width = config["hidden_size"] // config["num_attention_heads"]
    if config.setdefault("attention_head_size", width) != width:
        raise UsageError(
            f"{file} has attention_head_size {config['attention_head_size']}; accepted: {width}, "
            "hidden_size divided by num_attention_heads"
        )
    _check_numbers(config, file)
    config["pos_att_type"] = read_terms(config.get("pos_att_type"), file)
    if config["max_relative_positions"] < 1:
        config["max_relative_positions"] = config["max_position_embeddings"]
    config["position_buckets"] = max(config["position_buckets"], 0)
    span = config["position_buckets"] or config["max_relative_positions"]
    return config | {"relative_embeddings": 2 * span}


def _check_numbers(config: Mapping[str, Any], file: Path) -> None:
    """Raise UsageError for whole numbers that `hf_format` does not check."""
    rules = {
        "type_vocab_size": lambda n: n == 0 or n > 1,
        "position_buckets": lambda n: n < 1 or n > 3 and n % 2 == 0,
        "max_relative_positions": lambda n: True,
        "conv_kernel_size": lambda n: n < 1 or n % 2 == 1,
    }
    for name, holds in rules.items():
        if type(config[name]) is not int or not holds(config[name]):
            raise UsageError(f"{file} has {name} {str(config[name])[:60]}, which our models lack")


def read_terms(value: Any, file: Path) -> list[str]:
    """Return terms of disentangled attention, written as in "p2c|c2p" or as a list.

    Raises:
        UsageError: there are none, or others than ours.
    """
    names = value.lower().split("|") if isinstance(value, str) else value
    names = [str(name).strip() for name in names] if isinstance(names, list) else []
    if not names or not {*names} <= {*TERMS} or len({*names}) < len(names):
        raise UsageError(f"{file} has pos_att_type {value}; accepted: p2c, c2p, or p2c|c2p")
    return [term for term in TERMS if term in names]


def make_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of our model for a configuration."""
    form = read_form(config)
    return {
        "_name": ARCHITECTURE,
        **{ours: config[theirs] for ours, (theirs, _) in hf.OPTIONS.items()},
        "activation_fn": hf.ACTIVATIONS[config["hidden_act"]],
        "max_positions": config["max_position_embeddings"],
        "segments": config["type_vocab_size"],
        "embedding_width": config["embedding_size"] if form.projected else 0,
        "disentangled_terms": ",".join(config["pos_att_type"]),
        "disentangled_buckets": config["position_buckets"],
        "disentangled_distance": config["max_relative_positions"],
        "disentangled_own_projections": not config["share_att_key"],
        "disentangled_raw_embeddings": not form.norm,
        "encoder_conv_kernel": max(config["conv_kernel_size"], 0),
        "encoder_conv_activation_fn": hf.ACTIVATIONS.get(config["conv_act"], config["conv_act"]),
    }


def read_letters(model: Mapping[str, Any]) -> dict[str, int]:
    """Return the sizes of shapes that the options of a model say and a BERT does not have."""
    options = _complete_options(model)
    span = options["disentangled_buckets"] or options["disentangled_distance"]
    width = options["embedding_width"] or model["encoder_embed_dim"]
    return {"E": width, "R": 2 * span, "K": options["encoder_conv_kernel"]}


def _complete_options(model: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: model.get(name) for name in DEBERTA}
    return {n: DEBERTA[n] if value is None else value for n, value in given.items()}


def make_config(model: Mapping[str, Any], state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return what config.json has for a DeBERTa beside what it has for a BERT.

    Args:
        model: options.
        state: parameters by our names.
    """
    options = _complete_options(model)
    act = str(options["encoder_conv_activation_fn"])
    segments = state.get(hf.SEGMENTS)
    return {
        "max_position_embeddings": model["max_positions"],
        "type_vocab_size": 0 if segments is None else len(segments),
        "embedding_size": options["embedding_width"] or model["encoder_embed_dim"],
        "relative_attention": True,
        "position_biased_input": False,
        "pos_att_type": options["disentangled_terms"].split(","),
        "position_buckets": options["disentangled_buckets"] or -1,
        "max_relative_positions": options["disentangled_distance"],
        "share_att_key": not options["disentangled_own_projections"],
        "norm_rel_ebd": "none" if options["disentangled_raw_embeddings"] else "layer_norm",
        "conv_kernel_size": options["encoder_conv_kernel"],
        "conv_act": hf.HIDDEN_ACTS.get(act, act),
        "pooler_hidden_act": "gelu",
        "legacy": True,
    }
