"""Layers of an encoder, gone through once or, from some layer on, twice."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from fairseq_ext.attention import Inputs, SecondPass


def through(layers: Iterable[nn.Module], x: Tensor, inputs: Inputs) -> list[Tensor]:
    """x [S, B, C], and what it is after each layer."""
    states = [x]
    for layer in layers:
        states.append(layer(states[-1], inputs))
    return states


def twice(
    layers: Sequence[nn.Module], x: Tensor, inputs: Inputs, second: SecondPass
) -> tuple[list[Tensor], Tensor]:
    """The states of the first pass, as `through`, and the last ones of both passes [S, 2 B, C].

    Args:
        layers: those that LayerDrop leaves, the same ones for both passes.
    """
    shared = sum(layer.index < second.first for layer in layers)
    states = through(layers[:shared], x, inputs)
    x, own = states[-1], layers[shared:]
    if second.one_batch:
        both = through(own, torch.cat([x, x], 1), replace(inputs, passes=(None, second)))
        return states + [state.chunk(2, 1)[0] for state in both[1:]], both[-1]
    first = through(own, x, inputs)
    other = through(own, x, replace(inputs, recorder=None, passes=(second,)))
    return states + first[1:], torch.cat([first[-1], other[-1]], 1)
