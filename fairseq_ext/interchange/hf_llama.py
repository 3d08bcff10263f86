"""Language models of today as Hugging Face has them: Llama, and Qwen3 with --qk-norm.

Both rotate the halves of a head, (n, n + D/2), where ours rotates pairs, (2n, 2n + 1): rows of the
projections to queries and keys, and gains of their norms, change places.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_ext.errors import UsageError
from fairseq_ext.interchange import hf_format as hf
from fairseq_ext.interchange.hf_weights import take_parameter

KINDS = {False: ("llama", "LlamaForCausalLM"), True: ("qwen3", "Qwen3ForCausalLM")}
"""Whether queries and keys are normalised -> name and class of the model there."""

NAMES = [name for name, _ in KINDS.values()]

ARCHITECTURE = "transformer_lm_una_today_base"
THETA = 10_000.0
EPSILON = 1e-5
GATES = {"swiglu": "silu", "geglu": "gelu"}

ACCEPTED: dict[str, list] = {
    "norm": ["rms"],
    "ffn": list(GATES),
    "no_biases": [True],
    "qk_norm": list(KINDS),
    "decoder_positions": ["rotary"],
    "decoder_normalize_before": [True],
    "no_decoder_final_norm": [False],
    "no_scale_embedding": [True],
    "layernorm_embedding": [False],
    **hf.list_plain("decoder"),
    "decoder_heads_left": ["all"],
    "decoder_layers_to_keep": [None],
    "adaptive_softmax_cutoff": [None],
    "adaptive_input": [False],
    "character_embeddings": [False],
}
"""Values that our options must have; the first is that of a checkpoint without the option."""

THEIRS: dict[str, list] = {
    "hidden_act": list(GATES.values()),
    "attention_bias": [False],
    "mlp_bias": [False],
    "use_sliding_window": [False],
    "rms_norm_eps": [EPSILON],
}
"""Values that settings of config.json must have."""

SIZES = {
    "decoder_embed_dim": "hidden_size",
    "decoder_ffn_embed_dim": "intermediate_size",
    "decoder_layers": "num_hidden_layers",
    "decoder_attention_heads": "num_attention_heads",
    "decoder_kv_heads": "num_key_value_heads",
}

EMBEDDED, OUTPUT = "decoder.embed_tokens.weight", "decoder.output_projection.weight"
PARAMETERS = {
    EMBEDDED: (("model.embed_tokens.weight",), "VD"),
    "decoder.layer_norm.weight": (("model.norm.weight",), "D"),
    OUTPUT: (("lm_head.weight",), "VD"),
}
LAYER = {
    "fc1.weight": (("mlp.gate_proj.weight", "mlp.up_proj.weight"), "FD"),
    "fc2.weight": (("mlp.down_proj.weight",), "DF"),
    "self_attn.q_proj.weight": (("self_attn.q_proj.weight",), "QD"),
    "self_attn.k_proj.weight": (("self_attn.k_proj.weight",), "KD"),
    "self_attn.v_proj.weight": (("self_attn.v_proj.weight",), "KD"),
    "self_attn.out_proj.weight": (("self_attn.o_proj.weight",), "DQ"),
    "self_attn.q_norm.weight": (("self_attn.q_norm.weight",), "W"),
    "self_attn.k_norm.weight": (("self_attn.k_norm.weight",), "W"),
    "self_attn_layer_norm.weight": (("input_layernorm.weight",), "D"),
    "final_layer_norm.weight": (("post_attention_layernorm.weight",), "D"),
}
"""Parameter -> its names there, and the shape of each: V symbols, D features, F features between
the linear maps, Q and K of all heads of queries and keys, W of one head."""

ROTATED = {"q_proj": "Q", "k_proj": "K", "q_norm": "W", "k_norm": "W"}
BUFFERS = ".rotary_emb.inv_freq"  # of early files


def to_halves(rows: Tensor, heads: int) -> Tensor:
    """Return rows of pairs (2n, 2n + 1) of each head as rows of halves (n, n + D/2)."""
    return rows.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def to_pairs(rows: Tensor, heads: int) -> Tensor:
    """Return rows of halves of each head as rows of pairs."""
    return rows.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def is_today(options: Mapping[str, Any]) -> bool:
    """Return whether a model is a language model with the norm of today's."""
    return options.get("norm") == "rms" and "encoder_layers" not in options


def export_model(
    options: Mapping[str, Any], parameters: Mapping[str, Tensor], place: Path
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return config.json and the parameters of a language model of ours.

    Raises:
        UsageError: the model computes what neither Llama nor Qwen3 does.
    """
    hf.check_options(options, ACCEPTED, place, "Llama and Qwen3 of Hugging Face")
    heads, state = count_heads(options), {name: x.float() for name, x in parameters.items()}
    tied = EMBEDDED in state and OUTPUT in state and state[EMBEDDED].equal(state[OUTPUT])
    kind, architecture = KINDS[bool(options.get("qk_norm"))]
    tensors: dict[str, Tensor] = {}
    for name, (theirs, _) in list_parameters(options).items():
        if name not in state:
            raise UsageError(f"{place} has no {name}; give a whole language model")
        rows, rotated = state.pop(name), ROTATED.get(name.split(".")[-2])
        rows = to_halves(rows, heads[rotated]) if rotated else rows
        tensors |= dict(zip(theirs, rows.chunk(len(theirs)), strict=True))
    if state:
        raise UsageError(f"{place} has {min(state)}, which {kind} of Hugging Face has not")
    if tied:
        del tensors["lm_head.weight"]
    width = options["decoder_embed_dim"]
    config = {
        "architectures": [architecture],
        "model_type": kind,
        **{theirs: options[ours] for ours, theirs in SIZES.items()},
        "num_key_value_heads": heads["K"],
        "head_dim": width // heads["Q"],
        "vocab_size": len(parameters[EMBEDDED]),
        "hidden_act": GATES[options["ffn"]],
        "max_position_embeddings": options["max_target_positions"] or options["tokens_per_sample"],
        "rms_norm_eps": EPSILON,
        "rope_theta": THETA,
        "attention_dropout": options["attention_dropout"],
        "tie_word_embeddings": tied,
    }
    return config, tensors


def import_model(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], place: Path
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the options and the parameters of a Llama or Qwen3 as a language model of ours.

    Raises:
        UsageError: its settings or parameters are not those of a model that ours can be.
    """
    file = place / "config.json"
    config = {"num_key_value_heads": config.get("num_attention_heads"), **config}
    width = find_width(config, file)
    hf.check_settings(config, {**THEIRS, "head_dim": [None, width]}, file, "our models")
    rope = {**(config.get("rope_parameters") or config.get("rope_scaling") or {})}
    theta = rope.get("rope_theta", config.get("rope_theta", THETA))
    if theta != THETA or rope.get("rope_type", "default") != "default":
        raise UsageError(
            f"{file} has other rotary positions than those of theta {THETA:g}, which are all that "
            "our models have; give a model that was trained with these"
        )
    gates = {theirs: ours for ours, theirs in GATES.items()}
    options = {
        "_name": ARCHITECTURE,
        **{ours: config.get(theirs) for ours, theirs in SIZES.items()},
        "decoder_input_dim": config["hidden_size"],
        "decoder_output_dim": config["hidden_size"],
        "ffn": gates[config.get("hidden_act", "silu")],
        "qk_norm": config["model_type"] == KINDS[True][0],
        "share_decoder_input_output_embed": bool(config.get("tie_word_embeddings")),
        "attention_dropout": config.get("attention_dropout", 0.0),
        "dropout": 0.0,
        "max_target_positions": config["max_position_embeddings"],
    }
    heads = count_heads(options)
    sizes = {"V": config["vocab_size"], "D": config["hidden_size"], "W": width}
    sizes |= {"F": config["intermediate_size"], **{n: heads[n] * width for n in "QK"}}
    # without its version fairseq takes the last norm away
    rest, state = dict(tensors), {"decoder.version": torch.tensor([3.0])}
    for name, (theirs, letters) in list_parameters(options).items():
        if name == OUTPUT and options["share_decoder_input_output_embed"]:
            rest.pop(theirs[0], None)
            state[name] = state[EMBEDDED]
            continue
        shape = tuple(sizes[letter] for letter in letters)
        parts = [take_parameter(rest, n, shape, place, "Llama or Qwen3") for n in theirs]
        rows = torch.cat(parts)
        rotated = ROTATED.get(name.split(".")[-2])
        state[name] = to_pairs(rows, heads[rotated]) if rotated else rows
    if further := sorted(name for name in rest if not name.endswith(BUFFERS)):
        raise UsageError(
            f"{place} has parameters without a place in our models ({', '.join(further[:3])}); "
            "give a plain Llama or Qwen3"
        )
    return options, state


def find_width(config: Mapping[str, Any], file: Path) -> int:
    """Return the width of a head; raise UsageError for sizes in a file that are none."""
    names = (*SIZES.values(), "vocab_size", "max_position_embeddings")
    sizes: dict[str, Any] = {name: config.get(name) for name in names}
    hf.check_sizes(sizes, file, sizes)
    hf.check_heads(sizes["hidden_size"], sizes["num_attention_heads"], file)
    return sizes["hidden_size"] // sizes["num_attention_heads"]


def count_heads(options: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of heads of queries Q, of keys K, and of a gain W that all heads share."""
    queries = options["decoder_attention_heads"]
    return {"Q": queries, "K": options.get("decoder_kv_heads") or queries, "W": 1}


def list_parameters(options: Mapping[str, Any]) -> dict[str, tuple[tuple[str, ...], str]]:
    """Return the parameters of a model: name -> names there, and letters of their shape."""
    found: dict[str, tuple[tuple[str, ...], str]] = {**PARAMETERS}
    for number in range(options["decoder_layers"]):
        for ours, (theirs, letters) in LAYER.items():
            if options.get("qk_norm") or letters != "W":
                names = tuple(f"model.layers.{number}.{name}" for name in theirs)
                found[f"decoder.layers.{number}.{ours}"] = names, letters
    return found
