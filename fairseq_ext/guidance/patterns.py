"""Patterns: what a guided head should look at, sentence by sentence.

A pattern is a function of a `View`. What it returns says, row by row, where a head should look:

- long [B, T]: at the key with this index; -1 is a row without one, which should be uniform;
- bool [B, S]: every row at these keys alike (1/c on each of c); nothing where a sentence has none;
- float [B, T, S]: the rows of P themselves.

A new one is one decorated function in a package given to --user-dir that imports fairseq_ext:

    @pattern("second", looks_ahead=False)
    def second(view):
        second = view.first[:, None] + 1
        return torch.where(view.centre < second, -1, second)  # nothing yet to look at
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class View:
    """The rows and columns of the attention maps of a batch.

    Args:
        tokens: [B, S] ids of the keys, as the model was given them.
        keys: [B, S] bool, those that are no padding. Real ones stand together.
        queries: [B, T] bool, rows that are no padding.
        causal: a row does not see keys after it.
        marks: ids of the symbols that the pattern asked for.
    """

    tokens: Tensor
    keys: Tensor
    queries: Tensor
    causal: bool = False
    marks: Sequence[int] = ()

    @cached_property
    def first(self) -> Tensor:
        """[B] index of the first real key."""
        return self.keys.int().argmax(1)

    @cached_property
    def last(self) -> Tensor:
        """[B] index of the last real key."""
        return self.first + self.keys.sum(1) - 1

    @cached_property
    def position(self) -> Tensor:
        """[B, T] which query of its sentence a row is, from 0."""
        rows = torch.arange(self.queries.size(1), device=self.queries.device)
        return rows - self.queries.int().argmax(1, keepdim=True)

    @cached_property
    def centre(self) -> Tensor:
        """[B, T] the key at the relative position of a row: itself in self-attention."""
        keys, queries = self.keys.sum(1, keepdim=True), self.queries.sum(1, keepdim=True)
        middle = (2 * self.position + 1) * keys  # of the row, in halves of a row's width
        return self.first[:, None] + middle // (2 * queries.clamp(min=1))

    @cached_property
    def marked(self) -> Tensor:
        """[B, S] bool, keys that are such a symbol."""
        return torch.isin(self.tokens, self.tokens.new_tensor(self.marks))

    @cached_property
    def visible(self) -> Tensor:
        """[B, T] how many keys a row sees."""
        keys = self.keys.sum(1, keepdim=True).expand_as(self.position)
        return torch.minimum(keys, self.position + 1) if self.causal else keys


class Pattern(NamedTuple):
    """A registered pattern.

    Attributes:
        rows: the function.
        symbols: of the dictionary; their occurrences are `View.marked`. "--ag-period" stands for
            the symbols that this flag names.
        looks_ahead: a row may be asked to look at keys after it.
    """

    name: str
    rows: Callable[[View], Tensor]
    symbols: tuple[str, ...] = ()
    looks_ahead: bool = True


PATTERNS: dict[str, Pattern] = {}


def pattern(
    name: str, *, symbols: tuple[str, ...] = (), looks_ahead: bool = True
) -> Callable[[Callable[[View], Tensor]], Callable[[View], Tensor]]:
    """Register a function as the pattern `name`; raises ValueError if there is one already."""

    def register(rows: Callable[[View], Tensor]) -> Callable[[View], Tensor]:
        if name in PATTERNS:
            raise ValueError(f"there is a pattern {name!r} already; choose another name")
        PATTERNS[name] = Pattern(name, rows, symbols, looks_ahead)
        return rows

    return register


@pattern("next")
def following(view: View) -> Tensor:
    """P[p, p+1] = 1; the last row is uniform."""
    return torch.where(view.centre < view.last[:, None], view.centre + 1, -1)


@pattern("prev", looks_ahead=False)
def previous(view: View) -> Tensor:
    """P[p, p-1] = 1; the first row is uniform."""
    return torch.where(view.centre > view.first[:, None], view.centre - 1, -1)


@pattern("first", looks_ahead=False)
def first(view: View) -> Tensor:
    """P[p, 1] = 1."""
    return view.first[:, None].expand_as(view.position)


@pattern("diagonal", looks_ahead=False)
@pattern("self", looks_ahead=False)
def diagonal(view: View) -> Tensor:
    """P[p, p] = 1, or in cross-attention at the same relative position."""
    return view.centre


@pattern("delim", symbols=("<s>", "</s>", "[CLS]", "[SEP]"))
@pattern("period", symbols=("--ag-period",))
def marked(view: View) -> Tensor:
    """1/c on each of the c keys that are such a symbol."""
    return view.marked
