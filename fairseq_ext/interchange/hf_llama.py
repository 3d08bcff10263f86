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

KINDS = {False: ("llama", "LlamaForCausalLM"), True: ("qwen3", "Qwen3ForCausalLM")}
"""Whether queries and keys are normalised -> name and class of the model there."""

NAMES = [name for name, _ in KINDS.values()]

ARCHITECTURE = "transformer_lm_una_today_base"
THETA = 10_000.0
EPSILON = 1e-5
GATES = {"swiglu": "silu", "geglu": "gelu"}

ACCEPTED: dict[str, list] = {
    "--norm": ["rms"],
    "--ffn": list(GATES),
    "--no-biases": [True],
    "--qk-norm": list(KINDS),
    "--decoder-positions": ["rotary"],
    "--decoder-normalize-before": [True],
    "--no-decoder-final-norm": [False],
    "--no-scale-embedding": [True],
    "--layernorm-embedding": [False],
    "--decoder-normaliser": ["softmax"],
    "--decoder-scorer": ["dot"],
    "--decoder-gaussian-heads": ["0"],
    "--decoder-masks": ["none"],
    "--decoder-head-mixer": ["none"],
    "--decoder-heads-left": ["all"],
    "--head-gate": ["none"],
    "--decoder-layers-to-keep": [None],
    "--adaptive-softmax-cutoff": [None],
    "--adaptive-input": [False],
    "--character-embeddings": [False],
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

PARAMETERS = {
    "decoder.embed_tokens.weight": "model.embed_tokens.weight",
    "decoder.layer_norm.weight": "model.norm.weight",
    "decoder.output_projection.weight": "lm_head.weight",
}
EMBEDDED, OUTPUT = "decoder.embed_tokens.weight", "decoder.output_projection.weight"
LAYER = {
    "self_attn.q_proj.weight": "self_attn.q_proj.weight",
    "self_attn.k_proj.weight": "self_attn.k_proj.weight",
    "self_attn.v_proj.weight": "self_attn.v_proj.weight",
    "self_attn.out_proj.weight": "self_attn.o_proj.weight",
    "self_attn.q_norm.weight": "self_attn.q_norm.weight",
    "self_attn.k_norm.weight": "self_attn.k_norm.weight",
    "self_attn_layer_norm.weight": "input_layernorm.weight",
    "final_layer_norm.weight": "post_attention_layernorm.weight",
    "fc2.weight": "mlp.down_proj.weight",
}
GATED = ("mlp.gate_proj.weight", "mlp.up_proj.weight")  # together fc1


def to_halves(rows: Tensor, heads: int) -> Tensor:
    """Return rows of pairs (2n, 2n + 1) of each head as rows of halves (n, n + D/2)."""
    return rows.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def to_pairs(rows: Tensor, heads: int) -> Tensor:
    """Return rows of halves of each head as rows of pairs."""
    return rows.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def is_today(options: Mapping[str, Any]) -> bool:
    """Return whether a language model has the norm of today's, which decides its kind here."""
    return options.get("norm") == "rms"


def export_model(
    options: Mapping[str, Any], parameters: Mapping[str, Tensor], place: Path
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return config.json and the parameters of a language model of ours.

    Raises:
        UsageError: the model computes what neither Llama nor Qwen3 does.
    """
    flags = {f"--{name.replace('_', '-')}": value for name, value in options.items()}
    hf.check_settings(flags, ACCEPTED, place, "Llama and Qwen3 of Hugging Face")
    heads, state = count_heads(options), {name: x.float() for name, x in parameters.items()}
    tied = EMBEDDED in state and OUTPUT in state and state[EMBEDDED].equal(state[OUTPUT])
    kind, architecture = KINDS[bool(options.get("qk_norm"))]
    tensors: dict[str, Tensor] = {}
    for name, theirs, which in list_parameters(options):
        if name not in state:
            raise UsageError(f"{place} has no {name}; give a whole language model")
        part = state.pop(name)
        if len(theirs) == 2:
            tensors |= dict(zip(theirs, part.chunk(2), strict=True))
        else:
            tensors[theirs[0]] = to_halves(part, heads[which]) if which else part
    if state:
        raise UsageError(f"{place} has {min(state)}, which {kind} of Hugging Face has not")
    if tied:
        del tensors["lm_head.weight"]
    width = options["decoder_embed_dim"]
    config = {
        "architectures": [architecture],
        "model_type": kind,
        **{theirs: options[ours] for ours, theirs in SIZES.items()},
        "num_key_value_heads": heads["k"],
        "head_dim": width // heads["q"],
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
    hf.check_settings(
        config, {**THEIRS, "head_dim": [None, find_width(config)]}, file, "our models"
    )
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
    # without its version fairseq takes the last norm away
    heads, state = count_heads(options), {"decoder.version": torch.tensor([3.0])}
    for name, theirs, which in list_parameters(options):
        parts = [tensors[each] for each in theirs if each in tensors]
        if len(parts) == len(theirs):
            part = torch.cat([part.float() for part in parts])
            state[name] = to_pairs(part, heads[which]) if which else part
        elif name == OUTPUT and options["share_decoder_input_output_embed"]:
            state[name] = state[EMBEDDED]
        else:
            raise UsageError(f"{place} has no {theirs[0]}; give a whole language model")
    return options, state


def find_width(config: Mapping[str, Any]) -> int:
    """Return the width of a head; raise UsageError for sizes that are none."""
    sizes: dict[str, Any] = {name: config.get(name) for name in SIZES.values()}
    hf.check_sizes(sizes, Path("config.json"), sizes)
    hf.check_heads(sizes["hidden_size"], sizes["num_attention_heads"], Path("config.json"))
    return sizes["hidden_size"] // sizes["num_attention_heads"]


def count_heads(options: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of heads of queries, of keys, and of a gain that all heads share."""
    queries = options["decoder_attention_heads"]
    return {"q": queries, "k": options.get("decoder_kv_heads") or queries, "norm": 1}


def list_parameters(options: Mapping[str, Any]) -> list[tuple[str, tuple[str, ...], str]]:
    """Return for each parameter its name, its names there, and whose rows are rotated, or ""."""
    rotated = {"q_proj": "q", "k_proj": "k", "q_norm": "norm", "k_norm": "norm"}
    names: list[tuple[str, tuple[str, ...], str]] = [
        (ours, (theirs,), "") for ours, theirs in PARAMETERS.items()
    ]
    for number in range(options["decoder_layers"]):
        here, there = f"decoder.layers.{number}.", f"model.layers.{number}."
        names.append((f"{here}fc1.weight", tuple(there + name for name in GATED), ""))
        for ours, theirs in LAYER.items():
            part = ours.split(".")[1]
            if options.get("qk_norm") or not part.endswith("_norm"):
                names.append((here + ours, (there + theirs,), rotated.get(part, "")))
    return names
