"""Parameters of fairseq's attention that computes what softmax attention of ours computes."""

import torch
from torch import Tensor, nn

from fairseq_ext.attention import Attention
from fairseq_ext.mechanisms.head_gates import L0Gate


def fold_attention(attention: Attention) -> dict[str, Tensor]:
    """Return the projections of all heads that a layer had before any was pruned.

    Weights of heads, which gates are, go into the output projection. A pruned head comes back as
    zeros, and a head of keys and values once for each head of queries that shares it.
    """
    width, columns = attention.head_dim, attention.out_proj.weight.size(1)
    size = attention.embed_dim
    weights = gate_weights(attention).repeat_interleave(width)
    parts: dict[str, Tensor] = {}
    for name, inputs in {"q": size, "k": attention.kdim, "v": attention.vdim}.items():
        projection = getattr(attention, f"{name}_proj")
        for kind, shape in {"weight": (0, inputs), "bias": (0,)}.items():
            value = getattr(projection, kind, None)  # of no projection, too
            rows = weights.new_zeros(shape) if value is None else value
            if 0 < len(rows) < columns:
                rows = rows.unflatten(0, (-1, width))
                rows = rows.repeat_interleave(columns // width // len(rows), 0).flatten(0, 1)
            missing = rows.new_zeros(size - len(rows), *shape[1:])
            parts[f"{name}_proj.{kind}"] = torch.cat([rows, missing])
    output = attention.out_proj.weight * weights
    pad = output.new_zeros(size, size - columns)
    parts["out_proj.weight"] = torch.cat([output, pad], 1)
    bias = attention.out_proj.bias
    parts["out_proj.bias"] = output.new_zeros(size) if bias is None else bias
    return parts


def gate_weights(attention: Attention) -> Tensor:
    """Return the weight of each head in evaluation, [H]."""
    gate = attention.gate
    if isinstance(gate, nn.Parameter):
        return 1 + gate
    if isinstance(gate, L0Gate):
        return gate.gate()
    return attention.out_proj.weight.new_ones(attention.num_heads)


@torch.no_grad()
def fold_model(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters of a model by fairseq's names, the projections of all its attention."""
    parameters: dict[str, Tensor] = {**dict(model.named_parameters(remove_duplicate=False))}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, Attention):
            parameters |= {f"{name}.{part}": x for part, x in fold_attention(module).items()}
    return {name: value.detach() for name, value in parameters.items()}
