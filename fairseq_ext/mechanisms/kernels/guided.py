"""Softmax attention and the distances of its maps to patterns, without a map in memory.

Guidance needs of a row h of a map that should be 1 at the key t no more than

    d = sum_j h_j^2 - 2 h_t + 1,    or without such a key  sum_j h_j^2 + (1 - 2 sum_j h_j) / n,

so rows are taken a few at a time, and their weights are computed, used and dropped. They are
computed again for the gradient, in which the slope of d in h_j, 2 h_j - 2 [j = t] or 2 h_j - 2 / n,
is added to that of the output. Dropout draws the same random numbers again.

Blocks are [b, h, t, S]: some sentences, all heads, some rows, all keys.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import get_device_states, set_device_states

from fairseq_ext.attention.derivatives import first_derivative_only
from fairseq_ext.attention.masks import Mask
from fairseq_ext.attention.weight_dropout import draw_factors
from fairseq_ext.mechanisms.kernels import guided_triton, triton_launch

BLOCK_BYTES = {"cpu": 1 << 20}
"""Device -> bytes of scores at a time: about what a core keeps in its cache, for each thread."""

OTHER_BYTES = 1 << 27  # so many that a GPU is busy
MIN_ROWS = 32

MIN_SCORES = 1 << 22  # of a loop; below, maps are small, and recording them takes less time


class Targets(NamedTuple):
    """Keys that rows should look at.

    Attributes:
        keys: [B, h, T, 1] long, any key where a row has no target.
        exist: [B, h, T] bool, the row has a target.
        share: [B, 1, T], 1 / n of rows without one, which should be uniform; None: it should be 0.
    """

    keys: Tensor
    exist: Tensor
    share: Tensor | None

    def select(self, at: Any) -> "Targets":
        """Return those of sentences, heads and rows `at`."""
        share = None if self.share is None else self.share[at]
        return Targets(self.keys[at], self.exist[at], share)


def supports(q: Tensor, k: Tensor) -> bool:
    """Return whether these [B, h, T, D] and [B, h, S, D] should have no maps.

    Triton's kernels are quicker at any size, and the loop saves memory if maps are large.
    """
    return guided_triton.supports(q, k) or q[..., 0].numel() * k.size(2) >= max(1, MIN_SCORES)


def takes_all_heads(q: Tensor, k: Tensor) -> bool:
    """Return whether calls should take neighbouring heads without targets, too."""
    few = q.size(2) * k.size(2) <= triton_launch.FEW_SCORES
    return few and guided_triton.supports(q, k)


def measure(maps: Tensor, targets: Targets) -> Tensor:
    """Return d of each row, [..., B, h, T]; the maps [..., B, h, T, S] are overwritten."""
    keys, exist, share = targets
    hit = maps.gather(-1, keys.expand(*maps.shape[:-1], 1)).squeeze(-1)
    edge = 0.0 if share is None else (1 - 2 * maps.sum(-1)) * share
    return maps.square_().sum(-1) + torch.where(exist, 1 - 2 * hit, edge)


def add_slopes(slopes: Tensor, twice: Tensor, targets: Targets) -> Tensor:
    """Add what targets contribute to the gradient of the maps, in place.

    Args:
        slopes: [..., B, h, T, S], the part of the squares, 2 g h for the gradient g of d.
        twice: 2 g.
        targets: of the rows.
    """
    keys, exist, share = targets
    if share is not None:
        slopes -= (twice * share).masked_fill(exist, 0)[..., None]
    return slopes.scatter_add_(-1, keys.expand(*slopes.shape[:-1], 1), -(twice * exist)[..., None])


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    targets: Targets,
    dropout: float = 0.0,
    dropped: bool = False,
    first: int = 0,
) -> tuple[Tensor, Tensor]:
    """Return dropout(softmax(q k^T / sqrt(D))) v, [B, h, T, D], and d of maps with targets.

    Args:
        q: [B, h, T, D].
        k: [B, h, S, D].
        v: [B, h, S, D].
        mask: without a bias.
        targets: of the rows.
        dropout: the share of weights that are dropped.
        dropped: d is that of maps after dropout.
        first: the first of the heads with targets; all heads have them but in Triton's kernels.
    """
    kind, masked = q.device.type, mask.masked
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        q, k, v = (x.to(torch.get_autocast_dtype(kind)) for x in (q, k, v))
        with torch.autocast(kind, enabled=False):
            return attend(q, k, v, mask, targets, dropout, dropped, first)
    if guided_triton.supports(q, k):
        return guided_triton.attend(q, k, v, mask, first, *targets, dropout, dropped)
    if masked is not None:
        masked = masked.expand(*q.shape[:3], k.size(2))  # a view
    return _Guided.apply(q, k, v, masked, *targets, mask.causal, dropout, dropped)


class _Guided(torch.autograd.Function):
    """O [B, h, T, D] and d [B, h, T], the latter in float32 or wider."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        masked: Tensor | None,
        keys: Tensor,
        exist: Tensor,
        share: Tensor | None,
        causal: bool,
        rate: float,
        dropped: bool,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(q, k, v, masked, keys, exist, share)
        ctx.causal, ctx.rate, ctx.dropped = causal, rate, dropped
        ctx.random = (torch.get_rng_state(), *get_device_states(q)) if rate else None
        targets = Targets(keys, exist, share)
        q, k, v = (x.contiguous() for x in (q, k, v))
        out = q.new_empty(*q.shape[:3], v.size(-1))
        distances = q.new_empty(q.shape[:3], dtype=_exact(q))
        for at in _blocks(q, k):
            weights, _, mixed = _compute_weights(q, k, masked, at, causal, rate)
            out[at] = mixed @ v[at[0]]
            maps = mixed.to(weights.dtype) if dropped else weights
            distances[at] = measure(maps, targets.select(at))
        return out, distances

    @staticmethod
    @first_derivative_only(guided_triton.NAME)
    def backward(ctx: Any, of_out: Tensor, of_distances: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, masked, *parts = ctx.saved_tensors
        keys, exist, share = parts
        # softmax passes nothing on of a slope that all of its weights have
        targets = Targets(keys, exist, share if ctx.dropped else None)
        q, k, v, of_out = (x.contiguous() for x in (q, k, v, of_out))
        dq = torch.empty_like(q)
        dk, dv = (torch.zeros_like(x, dtype=_exact(x)) for x in (k, v))
        with _replayed(ctx.random):
            for at in _blocks(q, k):
                some, heads, rows = at
                weights, factors, mixed = _compute_weights(q, k, masked, at, ctx.causal, ctx.rate)
                dv[some] += mixed.mT @ of_out[at]
                maps = mixed.to(weights.dtype) if ctx.dropped else weights
                twice = 2 * of_distances[at]
                slopes = add_slopes(maps * twice[..., None], twice, targets.select(at))
                through = of_out[at] @ v[some].mT
                if factors is None:
                    slopes += through
                elif ctx.dropped:
                    slopes = slopes.add_(through).mul_(factors)
                else:
                    slopes.addcmul_(through.to(slopes.dtype), factors)
                of_scores = torch._softmax_backward_data(slopes, weights, -1, slopes.dtype)
                of_scores = of_scores.to(q.dtype)
                dq[at] = of_scores @ k[some]
                dk[some] += of_scores.mT @ q[at]
        scale = q.size(-1) ** -0.5
        return dq.mul_(scale), dk.mul_(scale).to(k.dtype), dv.to(v.dtype), *[None] * 7


def _exact(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _blocks(q: Tensor, k: Tensor) -> Iterator[tuple[slice, slice, slice]]:
    """Yield sentences, all heads and rows whose scores fit into the budget."""
    sentences, heads, rows, _ = q.shape
    row = heads * k.size(2) * _exact(q).itemsize
    budget = BLOCK_BYTES.get(q.device.type, 0) * torch.get_num_threads() or OTHER_BYTES
    many = max(1, budget // (row * rows))
    size = rows if many > 1 else max(MIN_ROWS, min(rows, budget // row))
    for first in range(0, sentences, many):
        for start in range(0, rows, size):
            yield slice(first, first + many), slice(None), slice(start, start + size)


def _compute_weights(
    q: Tensor, k: Tensor, masked: Tensor | None, at: Any, causal: bool, rate: float
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return the weights of a block, factors of dropout, and the weights by which values are mixed.

    Weights and factors are in float32 or wider.
    """
    some, _, rows = at
    scores = ((q[at] * q.size(-1) ** -0.5) @ k[some].mT).to(_exact(q))
    if causal:
        places = torch.arange(q.size(2), device=q.device)
        scores.masked_fill_(places > places[rows, None], -torch.inf)
    elif masked is not None:
        scores.masked_fill_(masked[at], torch.finfo(scores.dtype).min / 8)
    weights = scores.softmax(-1)
    mixed = weights.to(q.dtype)
    if not rate:
        return weights, None, mixed
    factors = draw_factors(weights, rate)
    return weights, factors, (mixed * factors).to(q.dtype)


@contextmanager
def _replayed(random: Any) -> Iterator[None]:
    """Let torch draw random numbers from a state on, and afterwards as if there had been none."""
    if random is None:
        yield
        return
    state, devices, states = random
    with torch.random.fork_rng(devices):
        torch.set_rng_state(state)
        set_device_states(devices, states)
        yield
