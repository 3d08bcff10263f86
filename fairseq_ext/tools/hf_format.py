"""BERT and RoBERTa as Hugging Face writes them, beside what fairseq calls the same things."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_ext.errors import UsageError

# hidden_act and fairseq's --activation-fn; where two are one function, the last is written back.
ACTIVATIONS = {
    "gelu": "gelu",
    "relu": "relu",
    "gelu_pytorch_tanh": "gelu_accurate",
    "gelu_new": "gelu_accurate",
}
HIDDEN_ACTS = {ours: theirs for theirs, ours in ACTIVATIONS.items()}

# Options of our models: the name in config.json, and what it is there if not given.
OPTIONS = {
    "encoder_layers": ("num_hidden_layers", 12),
    "encoder_embed_dim": ("hidden_size", 768),
    "encoder_ffn_embed_dim": ("intermediate_size", 3072),
    "encoder_attention_heads": ("num_attention_heads", 12),
    "dropout": ("hidden_dropout_prob", 0.1),
    "attention_dropout": ("attention_probs_dropout_prob", 0.1),
    "layer_norm_eps": ("layer_norm_eps", 1e-12),
}

ENCODER = "encoder.sentence_encoder"
TOKENS = f"{ENCODER}.embed_tokens.weight"
POSITIONS = f"{ENCODER}.embed_positions.weight"
SEGMENTS = "encoder.embed_segments.weight"
OUTPUT = "encoder.lm_head"
OUTPUT_WEIGHT, OUTPUT_BIAS = f"{OUTPUT}.weight", f"{OUTPUT}.bias"
BY_SYMBOL = {TOKENS, OUTPUT_WEIGHT, OUTPUT_BIAS}  # with a row for each

# Module there and here, shapes of its weight and its bias: V symbols, P positions, T token types,
# D features, F features between the linear layers.
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
HEADS = {"bert": "cls.predictions", "roberta": "lm_head"}
HEAD_MODULES = {
    "bert": (
        ("cls.predictions.transform.dense", f"{OUTPUT}.dense", "DD", "D"),
        ("cls.predictions.transform.LayerNorm", f"{OUTPUT}.layer_norm", "D", "D"),
        ("cls.predictions.decoder", OUTPUT, "VD", "V"),
    ),
    "roberta": (
        ("lm_head.dense", f"{OUTPUT}.dense", "DD", "D"),
        ("lm_head.layer_norm", f"{OUTPUT}.layer_norm", "D", "D"),
        ("lm_head.decoder", OUTPUT, "VD", "V"),
    ),
}


def parameters(kind: str, layers: int, head: bool) -> dict[str, tuple[str, str]]:
    """Of each parameter there, without the prefix "bert." or "roberta.": its name here, its shape.

    Args:
        kind: "bert" or "roberta". head: with the one for masked language modelling.
    """
    modules = [*EMBEDDINGS, *(HEAD_MODULES[kind] if head else ())]
    for i in range(layers):
        there, here = f"encoder.layer.{i}", f"{ENCODER}.layers.{i}"
        modules += [(f"{there}.{theirs}", f"{here}.{ours}", *s) for theirs, ours, *s in LAYER]
    return {
        f"{theirs}.{part}": (f"{ours}.{part}", shape)
        for theirs, ours, *shapes in modules
        for part, shape in zip(("weight", "bias"), shapes, strict=False)
    }


def move_positions(rows: Tensor, first: int, wanted: int) -> Tensor:
    """Embeddings [P, D] whose first position is in row `wanted` instead of row `first`."""
    if first == wanted:
        return rows
    return torch.cat([rows.new_zeros(wanted, rows.size(1)), rows[first:]])


def read_json(file: Path) -> dict[str, Any]:
    """Raises UsageError if the file is not there, or holds anything else."""
    with suppress(OSError, ValueError):
        if isinstance(found := json.loads(file.read_text("utf-8")), dict):
            return found
    raise UsageError(
        f"{file} is missing or no JSON object; give a folder that save_pretrained of Hugging "
        "Face's transformers wrote"
    )


def write_json(content: dict[str, Any], file: Path) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", "utf-8")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, that gets its name when all has gone well.

    Raises:
        UsageError: there is something of that name, or it cannot be made.
    """
    if path.exists():
        raise UsageError(f"{path} exists already; give the name of a folder to be made")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        holder = tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise UsageError(f"{path} cannot be made ({error.strerror}); give another place") from None
    with holder as name:
        work = Path(name) / path.name
        work.mkdir()
        yield work
        work.rename(path)
