"""Facts of a batch that its host knows, so that nobody waits for a GPU to learn them.

They are attached to the tensors that models and criterions get. A tensor without them, as on a CPU,
is looked at.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

NAME = "_batch_facts"  # attribute of a tensor


class Facts(NamedTuple):
    """Facts of tokens [B, S].

    Attributes:
        padded: some token is padding.
        padded_before: padding stands before a token.
        positions: [n] whole numbers, which tokens of the flattened batch are no padding.
    """

    padded: bool
    padded_before: bool
    positions: Tensor


def take(tokens: Tensor, pad: int) -> Facts:
    """Return the facts of tokens on a CPU."""
    padding = tokens.eq(pad)
    real = ~padding
    before = bool((padding[:, :-1] & real[:, 1:]).any())
    positions = real.flatten().nonzero().flatten()
    return Facts(bool(padding.any()), before, positions)


def attach(tokens: Tensor, facts: Facts) -> None:
    """Attach facts to the same tokens on a GPU."""
    positions = facts.positions.to(tokens.device, non_blocking=True)
    setattr(tokens, NAME, facts._replace(positions=positions))


def find(tokens: Tensor) -> Facts | None:
    """Return the facts that are attached to tokens, or None."""
    return getattr(tokens, NAME, None)


def list_tokens(sample: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield name and tokens [B, S] of a batch: its inputs, and targets."""
    inputs = sample.get("net_input") or {}
    for name, owner in (("src_tokens", inputs), ("prev_output_tokens", inputs), ("target", sample)):
        value = owner.get(name)
        if isinstance(value, Tensor) and value.dim() == 2 and not value.is_floating_point():
            yield name, value


def pass_on(tokens: Tensor, padding: Tensor) -> Tensor:
    """Return `padding` [B, S] of tokens, with the facts of these."""
    if (facts := find(tokens)) is not None:
        setattr(padding, NAME, facts)
    return padding


def has_padding(padding: Tensor) -> bool:
    """Tell whether there is any in `padding` [B, S] of a batch, or may be in those of a graph."""
    if torch.compiler.is_compiling():
        return True
    facts = find(padding)
    return bool(padding.any()) if facts is None else facts.padded
