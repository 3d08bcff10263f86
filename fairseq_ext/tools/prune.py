"""Remove the heads that gates closed, and make the smaller checkpoint.

CHECKPOINT is of a training with --head-gate l0 and a criterion ..._l0. The heads whose gates are 0
in evaluation are removed from the projections of queries, keys, values and outputs, and the gates
of the others are multiplied into the projection of outputs: in evaluation OUT computes the same.
Its options say how many heads each layer has left (--encoder-heads-left, --decoder-heads-left,
--cross-heads-left), so that every command reads it; a layer may have none. OUT lacks what only
training needs: the state of the optimizer, moving averages, adversaries, and the regularisers of
the criterion. To train from OUT, give --restore-file OUT --reset-optimizer --reset-lr-scheduler
--reset-dataloader --reset-meters and its numbers of heads.

Example:
  fairseq-ext prune checkpoints/l0/checkpoint_best.pt pruned.pt
"""

import argparse
import re
from argparse import Namespace
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fairseq.criterions import CRITERION_DATACLASS_REGISTRY, CRITERION_REGISTRY
from torch import Tensor

from fairseq_ext.attention import Attention, Inputs
from fairseq_ext.attention.building import count_heads, find_fixed_heads, parse_gate_sites
from fairseq_ext.attention.options import flag
from fairseq_ext.criterions.composite import ALIASES, AliasCriterion, CompositeCriterion
from fairseq_ext.criterions.objectives import OBJECTIVES
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.runs import count_parameters
from fairseq_ext.interchange.new_checkpoint import add_checkpoints, check_output, write_checkpoint
from fairseq_ext.mechanisms.head_gates import L0Gate
from fairseq_ext.models.config import default_options, to_transformer_config
from fairseq_ext.models.layers import build_attention
from fairseq_ext.models.mixins import drop_adversaries
from fairseq_ext.models.options import DEFAULTS
from fairseq_ext.models.pretrained import saved_options
from fairseq_ext.safe_loading import read_checkpoint
from fairseq_ext.tools.average import leave_training_out
from fairseq_ext.training.resuming_checks import SITES

GATE = ".gate.offset"
TOLERANCE = 1e-9  # of outputs in float64


class Pruned(NamedTuple):
    """A checkpoint without closed heads, and what was removed.

    Attributes:
        state: the checkpoint.
        before: site -> the number of heads of each layer before.
        after: site -> the number of heads of each layer that are left.
        parameters: how many there were and are.
    """

    state: dict[str, Any]
    before: dict[str, list[int]]
    after: dict[str, list[int]]
    parameters: tuple[int, int]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fairseq-ext prune`."""
    add_checkpoints(parser)


def run(args: argparse.Namespace) -> None:
    """Write the smaller checkpoint, and print what is left of heads and parameters."""
    check_output(args.output, args.force)
    pruned = prune_checkpoint(read_checkpoint(args.checkpoint), args.checkpoint)
    write_checkpoint(pruned.state, args.output)
    for site, before in pruned.before.items():
        after = pruned.after[site]
        layers = f"by layer {'/'.join(map(str, before))} -> {'/'.join(map(str, after))}"
        print(f"{site}: {sum(before)} -> {sum(after)} heads, {layers}")
    whole, rest = pruned.parameters
    print(f"parameters: {whole:,} -> {rest:,}, {rest / whole:.1%}")
    print(f"{args.output} is ready")


def prune_checkpoint(state: dict[str, Any], path: Path) -> Pruned:
    """Return a checkpoint without its closed heads; the given one is left as it is.

    Raises:
        UsageError: it has no gates that close heads, or what is left could not compute the same.
    """
    options = DEFAULTS | saved_options(state) | {"asa_layers": "none"}
    check_prunable(options, path)
    parameters = drop_adversaries(state["model"])
    names = [name.removesuffix(GATE) for name in parameters if name.endswith(GATE)]
    full = build_sites(options, names)
    for layers in full.values():
        for name, attention in layers.values():
            attention.load_state_dict(_select(parameters, name))
    left = {site: count_open_heads(site, layers, options) for site, layers in full.items()}
    settings = {"head_gate": "none", "head_gate_sites": DEFAULTS["head_gate_sites"]}
    settings |= {f"{site}_heads_left": "/".join(map(str, each)) for site, each in left.items()}
    for site, layers in build_sites(options | settings, names).items():
        for layer, (name, small) in layers.items():
            copy_open_heads(full[site][layer][1], small)
            check_same(full[site][layer][1], small, f"{site} layer {layer}")
            replaced = _select(parameters, name)
            parameters = {n: x for n, x in parameters.items() if not n.startswith(f"{name}.")}
            dtype = replaced["out_proj.weight"].dtype
            parameters |= {f"{name}.{n}": x.to(dtype) for n, x in small.state_dict().items()}
    counts = count_parameters(drop_adversaries(state["model"])), count_parameters(parameters)
    cfg = {**state["cfg"], "model": {**state["cfg"]["model"], **settings}}
    cfg["criterion"] = drop_regularisers(cfg["criterion"])
    made = leave_training_out({**state, "model": parameters, "cfg": cfg})
    made["extra_state"] |= {"pruned": str(path)}
    before = {site: [m.num_heads for _, m in layers.values()] for site, layers in full.items()}
    after = {site: [left[site][layer] for layer in layers] for site, layers in full.items()}
    return Pruned(made, before, after, counts)


def check_prunable(options: Mapping[str, Any], path: Path) -> None:
    """Raise UsageError for a model without gates that close heads, or whose heads have places."""
    name = options["head_gate"]
    if name != "l0":
        raise UsageError(
            f"{path} has --head-gate {name}, which closes no heads; give a checkpoint of a "
            "training with --head-gate l0 and a criterion with _l0"
        )
    for key in ("encoder_layers_to_keep", "decoder_layers_to_keep"):
        if options.get(key):
            raise UsageError(
                f"{path} has {flag(key, options[key])}, and layers are to be pruned after heads; "
                "give a checkpoint without it"
            )
    if options.get("share_encoder_decoder_layers"):
        raise UsageError(
            f"{path} has --share-encoder-decoder-layers, so that its heads are those of both sides "
            "and cannot be removed from one; give a checkpoint without it"
        )
    for site in parse_gate_sites(options):
        if reason := find_fixed_heads(site, options):
            raise UsageError(
                f"{path} has {reason}, which says by their place what heads do or is shared by "
                "all layers; heads can be removed from models without it only"
            )


def build_sites(
    options: Mapping[str, Any], names: Iterable[str]
) -> dict[str, dict[int, tuple[str, Attention]]]:
    """Build attention by its names in a model: site -> layer -> its name, and the module."""
    cfg = to_transformer_config(Namespace(**options))
    sites: dict[str, dict[int, tuple[str, Attention]]] = {}
    for name in names:
        match = re.search(r"(encoder|decoder)\.(?:\w+\.)*layers\.(\d+)\.(self|encoder)_attn$", name)
        assert match, name
        side, layer, kind = match[1], int(match[2]), match[3]
        site = "cross" if kind == "encoder" else side
        attention = build_attention(site, layer, cfg).double().eval()
        sites.setdefault(site, {})[layer] = name, attention
    return sites


def count_open_heads(
    site: str, layers: Mapping[int, tuple[str, Attention]], options: Mapping[str, Any]
) -> list[int]:
    """Return how many heads are open in each layer; all of them in a layer without attention."""
    side = SITES[site]
    heads = count_heads(site, options[f"{side}_attention_heads"], options)
    return [
        int(_gate(layers[layer][1]).open_heads().sum()) if layer in layers else heads
        for layer in range(options[f"{side}_layers"])
    ]


def copy_open_heads(full: Attention, small: Attention) -> None:
    """Fill the smaller attention with the parameters of the open heads of the full one.

    The columns of the output projection are multiplied with the gates of their heads.

    Raises:
        UsageError: a parameter has not one axis along which heads stand.
    """
    gate = _gate(full)
    opened = gate.open_heads()
    width, kept = full.head_dim, opened.repeat_interleave(full.head_dim)
    source = full.state_dict()
    source["out_proj.weight"] = source["out_proj.weight"] * gate.gate().repeat_interleave(width)
    for name, target in small.state_dict().items():
        value = source[name]
        if name.split(".")[0] in ("q_proj", "k_proj", "v_proj", "relative"):
            value = value[kept]
        elif name == "out_proj.weight":
            value = value[:, kept]
        elif value.shape != target.shape:
            value = _select_heads(name, value, target, opened)
        target.copy_(value)


def _select_heads(name: str, value: Tensor, target: Tensor, opened: Tensor) -> Tensor:
    """Return the part of a parameter of all heads that is of the open ones."""
    both = zip(value.shape, target.shape, strict=True)
    axes = [axis for axis, (old, new) in enumerate(both) if old != new]
    if value.dim() != target.dim() or len(axes) != 1 or value.size(axes[0]) != len(opened):
        raise UsageError(
            f"{name} is {[*value.shape]} with all heads and {[*target.shape]} with those that are "
            "left, so that closed heads cannot be removed from it; use the checkpoint as it is"
        )
    return value.index_select(axes[0], opened.nonzero()[:, 0])


@torch.no_grad()
def check_same(full: Attention, small: Attention, place: str) -> None:
    """Raise UsageError unless both compute the same, of a random input."""
    generator = torch.Generator().manual_seed(1)

    def sample(length: int, width: int) -> Tensor:
        return torch.randn(length, 2, width, generator=generator, dtype=torch.float64)

    x = sample(5, full.embed_dim)
    keys = x if full.self_attention else sample(7, full.kdim)
    inputs = Inputs()
    if full.relative is not None:
        inputs.relative = sample(full.relative.scorer.span, full.embed_dim).flatten(0, 1)
    both = (module(x, keys, keys, inputs, need_weights=False) for module in (full, small))
    one, other = (output for output, _ in both)
    if (difference := float((one - other).abs().max())) > TOLERANCE:
        raise UsageError(
            f"without its closed heads {place} would compute something else (by {difference:.2g}), "
            "since a part of its attention depends on the number of heads, as ALiBi's slopes do; "
            "use the checkpoint as it is"
        )


def drop_regularisers(criterion: Any) -> dict[str, Any]:
    """Return the configuration of a criterion without regularisers, which evaluation never uses."""
    options = dict(criterion if isinstance(criterion, Mapping) else vars(criterion))
    name = str(options["_name"])
    kind = CRITERION_REGISTRY[name]
    if issubclass(kind, AliasCriterion):
        name = next(alias for alias in ALIASES if name.startswith(alias))
    elif issubclass(kind, CompositeCriterion):
        name = next(each for each, row in OBJECTIVES.items() if row is kind.objective)
    known = default_options(CRITERION_DATACLASS_REGISTRY[name])
    return {key: value for key, value in options.items() if key in known} | {"_name": name}


def _select(parameters: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    start = f"{prefix}."
    return {n.removeprefix(start): x for n, x in parameters.items() if n.startswith(start)}


def _gate(attention: Attention) -> L0Gate:
    assert isinstance(attention.gate, L0Gate)
    return attention.gate
