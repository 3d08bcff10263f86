"""DeBERTa's first version, turned into the later ones that compute the same, and back.

One projection is cut into those of queries, keys and values, and biases that keys and their
positions lack become 0.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fairseq_ext.interchange.hf_deberta import read_form

FIRST_NAMES = {
    "q_bias": "query_proj.bias",
    "v_bias": "value_proj.bias",
    "pos_q_proj.weight": "pos_query_proj.weight",
    "pos_q_proj.bias": "pos_query_proj.bias",
}
"""Names of parameters there -> those of later versions."""


def modernise(tensors: dict[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return parameters by the names of later versions, the head for masked words by its usual one.

    What does not look as it should keeps its name.
    """
    width, heads = config["hidden_size"], config["num_attention_heads"]
    renamed = {}
    for name, value in tensors.items():
        start, _, end = name.rpartition(".self.")
        if name.startswith("lm_predictions.lm_head."):
            end = name.removeprefix("lm_predictions.lm_head.")
            renamed[f"cls.predictions.{'' if end == 'bias' else 'transform.'}{end}"] = value
        elif end == "in_proj.weight" and value.shape == (3 * width, width):
            parts = value.view(heads, 3, -1, width).unbind(1)
            for part, weight in zip(("query", "key", "value"), parts, strict=True):
                renamed[f"{start}.self.{part}_proj.weight"] = weight.reshape(width, width)
            renamed[f"{start}.self.key_proj.bias"] = value.new_zeros(width)
        elif end == "pos_proj.weight":
            renamed[f"{start}.self.pos_key_proj.weight"] = value
            renamed[f"{start}.self.pos_key_proj.bias"] = value.new_zeros(width)
        elif end in FIRST_NAMES:
            renamed[f"{start}.self.{FIRST_NAMES[end]}"] = value
        else:
            renamed[name] = value
    return renamed


def is_first_version(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bool:
    """Return whether version 1 can hold an encoder: it has no biases of keys."""
    form = read_form(config)
    if config["position_buckets"] > 0 or config["share_att_key"] or form.norm or form.convolution:
        return False
    biases = (x for n, x in tensors.items() if n.endswith(("key_proj.bias", "pos_key_proj.bias")))
    return not any(bias.any() for bias in biases)


def rename_for_first_version(tensors: Mapping[str, Tensor], heads: int) -> dict[str, Tensor]:
    """Return the parameters of a "deberta-v2" without biases of keys, as a "deberta" has them."""
    older = {new: old for old, new in FIRST_NAMES.items()}
    older["pos_key_proj.weight"] = "pos_proj.weight"
    renamed = {}
    for name, value in tensors.items():
        start, _, end = name.rpartition(".self.")
        if end == "query_proj.weight":
            parts = (
                tensors[f"{start}.self.{part}_proj.weight"] for part in ("query", "key", "value")
            )
            rows = [part.unflatten(0, (heads, -1)) for part in parts]
            renamed[f"{start}.self.in_proj.weight"] = torch.stack(rows, 1).flatten(0, 2)
        elif end in older:
            renamed[f"{start}.self.{older[end]}"] = value
        elif not end.startswith(("key_proj.", "value_proj.", "pos_key_proj.")):
            renamed[name] = value
    return renamed
