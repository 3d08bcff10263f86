"""Products of tokens with embeddings of their distances to others, added to scores in place.

A product with all 2T - 1 distances has the distance i - j in column T - 1 - i + j. So rows are
shifted against each other by one column from i to i + 1, which strides say without a copy or a
gather. Blocks of b tokens need T + b - 1 columns each, and share one piece of memory.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from fairseq_ext.attention.derivatives import first_derivative_only

BLOCKS = {"cpu": 64}
"""Device -> b; memory of the products counts on a CPU, and the number of calls on a GPU."""

OTHER_BLOCK = 256


class Block(NamedTuple):
    """A block of tokens.

    Attributes:
        tokens: their places.
        rows: their rows in [h, T B, D], in which sentences alternate.
        columns: of the table [h, D, 2T - 1], the distances that these tokens have.
        products: [h, b B, T + b - 1], memory that all blocks share.
        shifted: [B, h, b, T], the products of each token with its distance to each other one: a
            view of `products`, whose other elements remain 0.
    """

    tokens: slice
    rows: slice
    columns: slice
    products: Tensor
    shifted: Tensor


def list_blocks(x: Tensor) -> Iterator[Block]:
    """Yield the blocks of x [B, h, T, D]."""
    batch, heads, length, _ = x.shape
    size = min(length, BLOCKS.get(x.device.type, OTHER_BLOCK))
    memory = x.new_zeros(heads * size * batch * (length + size - 1))
    for first in range(0, length, size):
        own = min(size, length - first)
        columns = length + own - 1
        if own < size:
            memory.zero_()  # places of other blocks are not those of a smaller one
        products = memory[: heads * own * batch * columns].view(heads, own * batch, columns)
        strides = (columns, own * batch * columns, batch * columns - 1, 1)
        start = length - first - own
        yield Block(
            slice(first, first + own),
            slice(first * batch, (first + own) * batch),
            slice(start, start + columns),
            products,
            products.as_strided((batch, heads, own, length), strides, own - 1),
        )


def by_rows(x: Tensor) -> Tensor:
    """Return x [B, h, T, D] as [h, T B, D], in which sentences alternate."""
    return x.permute(1, 2, 0, 3).flatten(1, 2)


class AddDistances(Function):
    """s_ij + x_i . t_(i - j), or with x_j and t_(i - j) for keys."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, x: Tensor, table: Tensor, keys: bool) -> Tensor:
        """Return the scores, changed in place; see `add_distances`."""
        ctx.save_for_backward(x, table)
        ctx.keys, rows = keys, by_rows(x)
        ctx.mark_dirty(scores)
        for block in list_blocks(x):
            torch.bmm(rows[:, block.rows], table[:, :, block.columns], out=block.products)
            _select(scores, block.tokens, keys).add_(block.shifted)
        return scores

    @staticmethod
    @first_derivative_only("attention with relative embeddings")
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, None]:
        """Return the gradients of scores, x and table."""
        x, table = ctx.saved_tensors
        rows, of_rows = by_rows(x), []
        of_table = torch.zeros(table.shape, dtype=table.dtype, device=table.device)
        for block in list_blocks(x):
            block.shifted.copy_(_select(gradient, block.tokens, ctx.keys))
            of_rows.append(block.products @ table[:, :, block.columns].transpose(1, 2))
            part = of_table[:, :, block.columns]
            part.baddbmm_(rows[:, block.rows].transpose(1, 2), block.products)
        joined = of_rows[0] if len(of_rows) == 1 else torch.cat(of_rows, 1)
        of_x = joined.unflatten(1, (-1, len(x))).permute(2, 0, 1, 3)
        return gradient, of_x, of_table, None


def _select(scores: Tensor, tokens: slice, keys: bool) -> Tensor:
    """Return the scores [B, h, b, T] of some queries with all keys, or of keys with queries."""
    return scores[..., tokens].transpose(-1, -2) if keys else scores[:, :, tokens]


def add_distances(scores: Tensor, x: Tensor, table: Tensor, keys: bool = False) -> Tensor:
    """Return s_ij + x_i . t_(i - j) [B, h, T, T], in the memory of the scores.

    Args:
        scores: [B, h, T, T].
        x: [B, h, T, D], queries; or keys, of which x_j is taken.
        table: [h, D, 2T - 1], of the distances i - j from T - 1 down; from 1 - T up for keys.
        keys: x are keys.
    """
    if torch.compiler.is_compiling():  # blocks depend on the length, and a graph is for all lengths
        return _add_gathered(scores, x, table.to(x.dtype), keys)
    return AddDistances.apply(scores, x, table.to(x.dtype), keys)


def _add_gathered(scores: Tensor, x: Tensor, table: Tensor, keys: bool) -> Tensor:
    """Return the same of all products, [B, h, T, 2T - 1], in other memory."""
    place = torch.arange(x.size(2), device=x.device)
    columns = x.size(2) - 1 - place[:, None] + place
    shifted = (x @ table).gather(-1, columns.expand(scores.shape))
    return scores + (shifted.transpose(-1, -2) if keys else shifted)
