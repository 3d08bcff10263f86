"""Patterns P that guided heads should follow (Deshpande & Narasimhan 2020), by sentence.

A pattern is a function of a `View`. It returns for each row (query) where a head should look:

- long [B, T]: at the key with this index; a row with -1 should be uniform;
- bool [B, S]: every row at these keys alike (1/c on each of c); sentences without one are not
  guided;
- float [B, T, S]: the rows of P themselves.

A new pattern is one decorated function in a package given to --user-dir that imports fairseq_ext:

    @pattern("second", looks_ahead=False)
    def second(view):
        second = view.first[:, None] + 1
        return torch.where(view.centre < second, -1, second)  # the first row is uniform
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

PERIOD_FLAG = ("--ag-period",)


@dataclass(frozen=True)
class View:
    """The rows (queries) and columns (keys) of the attention maps of a batch.

    Args:
        tokens: [B, S] ids of the keys, as the model gets them.
        keys: [B, S] bool, True at real keys, which stand together; False at padding.
        queries: [B, T] bool, True at real rows.
        causal: a row does not see keys after it.
        marks: ids of the symbols that the pattern asks for.
    """

    tokens: Tensor
    keys: Tensor
    queries: Tensor
    causal: bool = False
    marks: Sequence[int] = ()

    @cached_property
    def first(self) -> Tensor:
        """Return the index of the first real key, [B]."""
        return self.keys.int().argmax(1)

    @cached_property
    def last(self) -> Tensor:
        """Return the index of the last real key, [B]."""
        return self.first + self.keys.sum(1) - 1

    @cached_property
    def position(self) -> Tensor:
        """Return which query of its sentence a row is, from 0: [B, T]."""
        rows = torch.arange(self.queries.size(1), device=self.queries.device)
        return rows - self.queries.int().argmax(1, keepdim=True)

    @cached_property
    def centre(self) -> Tensor:
        """Return the key at the relative position of a row, in self-attention itself: [B, T]."""
        keys, queries = self.keys.sum(1, keepdim=True), self.queries.sum(1, keepdim=True)
        middle = (2 * self.position + 1) * keys  # of the row, in half rows
        return self.first[:, None] + middle // (2 * queries.clamp(min=1))

    @cached_property
    def marked(self) -> Tensor:
        """Return where keys are symbols that the pattern asks for: [B, S] bool."""
        return torch.isin(self.tokens, self.tokens.new_tensor(self.marks))

    @cached_property
    def visible(self) -> Tensor:
        """Return how many keys a row sees: [B, T]."""
        keys = self.keys.sum(1, keepdim=True).expand_as(self.position)
        return torch.minimum(keys, self.position + 1) if self.causal else keys


class Pattern(NamedTuple):
    """A registered pattern.

    Attributes:
        name: in options.
        rows: the function.
        symbols: of the dictionary, whose occurrences are `View.marked`; PERIOD_FLAG stands for the
            symbols that --ag-period names.
        looks_ahead: a row may have to look at keys after it.
    """

    name: str
    rows: Callable[[View], Tensor]
    symbols: tuple[str, ...] = ()
    looks_ahead: bool = True


PATTERNS: dict[str, Pattern] = {}


def pattern(
    name: str, *, symbols: tuple[str, ...] = (), looks_ahead: bool = True
) -> Callable[[Callable[[View], Tensor]], Callable[[View], Tensor]]:
    """Return a decorator that registers a function as the pattern `name`.

    Raises:
        ValueError: there is such a pattern already.
    """

    def register(rows: Callable[[View], Tensor]) -> Callable[[View], Tensor]:
        if name in PATTERNS:
            raise ValueError(f"there is a pattern {name!r} already; choose another name")
        PATTERNS[name] = Pattern(name, rows, symbols, looks_ahead)
        return rows

    return register


@pattern("next")
def following(view: View) -> Tensor:
    """Return P[p, p+1] = 1; the last row is uniform."""
    return torch.where(view.centre < view.last[:, None], view.centre + 1, -1)


@pattern("prev", looks_ahead=False)
def previous(view: View) -> Tensor:
    """Return P[p, p-1] = 1; the first row is uniform."""
    return torch.where(view.centre > view.first[:, None], view.centre - 1, -1)


@pattern("first", looks_ahead=False)
def first(view: View) -> Tensor:
    """Return P[p, 1] = 1."""
    return view.first[:, None].expand_as(view.position)


@pattern("diagonal", looks_ahead=False)
@pattern("self", looks_ahead=False)
def diagonal(view: View) -> Tensor:
    """Return P[p, p] = 1, or in cross-attention 1 at the same relative position."""
    return view.centre


@pattern("delim", symbols=("<s>", "</s>", "[CLS]", "[SEP]"))
@pattern("period", symbols=PERIOD_FLAG)
def marked(view: View) -> Tensor:
    """Return 1/c on each of the c keys that are one of the symbols."""
    return view.marked
