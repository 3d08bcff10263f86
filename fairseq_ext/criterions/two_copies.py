"""Batches of twice the size, with which a model reads each row twice at once."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fairseq_ext.data import batch_facts

STATES = "inner_states"
"""The part of a model's output whose tensors are [T, B, C]; in all others rows come first."""


def double_inputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a model for two copies of a batch.

    Places of masked tokens are those in the flattened batch.
    """
    doubled = {k: _double(x) if isinstance(x, Tensor) else x for k, x in inputs.items()}
    places = inputs.get("masked_tokens")
    if places is not None and places.dtype == torch.long:
        doubled["masked_tokens"] = _double_places(places, inputs["src_tokens"])
    return doubled


def _double(x: Tensor) -> Tensor:
    both = torch.cat([x, x])
    if (facts := batch_facts.find(x)) is not None:
        places = _double_places(facts.positions, x)
        batch_facts.attach(both, facts._replace(positions=places))
    return both


def _double_places(places: Tensor, tokens: Tensor) -> Tensor:
    return torch.cat([places, places + tokens.numel()])


def halve(output: Any, axis: int = 0) -> tuple[Any, Any]:
    """Return the output of a model for each of two copies of a batch."""
    if isinstance(output, Tensor):
        one, other = output.chunk(2, axis)
        return one, other
    if isinstance(output, Mapping):
        pairs = {name: halve(x, int(name == STATES)) for name, x in output.items()}
        return {k: one for k, (one, _) in pairs.items()}, {k: two for k, (_, two) in pairs.items()}
    if isinstance(output, list | tuple):
        parts = [halve(x, axis) for x in output]
        return tuple(one for one, _ in parts), tuple(two for _, two in parts)
    return output, output
