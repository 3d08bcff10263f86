"""Relative positions in attention: ALiBi, T5's biases, and rotary embeddings."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_ext.attention.context import AttentionContext, HeadCall
from fairseq_ext.attention.options import Rule, check_values, option, whole
from fairseq_ext.attention.positions import POSITIONS, Positions
from fairseq_ext.errors import UsageError


@POSITIONS.register("alibi")
class Alibi(Positions):
    """s_ij - m_h |j - i|, m_h = 2^(-8 h / H) (Press et al. 2022, Section 3).

    If H is no power of 2, further slopes are every other one of twice as many heads, as in the
    authors' code. The paper has causal attention alone; where keys after the query are seen,
    the distance counts alike in both directions.
    """

    def slopes(self) -> list[float]:
        """Return m of each head."""
        power = 2 ** math.floor(math.log2(self.heads))
        slopes = [2 ** (-8 * (n + 1) / power) for n in range(power)]
        between = [2 ** (-4 * (n + 1) / power) for n in range(0, 2 * power, 2)]
        return (slopes + between[: self.heads - power])[self.own]

    def bias(self, context: AttentionContext, heads: slice, dtype: torch.dtype) -> Tensor:
        """Return -m_h |j - i|, [1, h, T, S], once for each forward pass."""

        def compute() -> Tensor:
            slopes = torch.tensor(self.slopes()[heads]).to(context.device, non_blocking=True)
            return (-slopes[:, None, None] * context.distances(1.0)[:, None].abs()).to(dtype)

        places = (self.own.start, self.own.stop, heads.start, heads.stop)
        key = ("alibi", self.heads, *places, *_sizes(context), dtype)
        return context.inputs.cached(key, compute)


@dataclass
class BucketOptions:
    """Options of T5's positions.

    Attributes:
        t5_buckets: number of buckets of distances that have a bias
        t5_distance: distance from which on all are in one bucket
    """

    t5_buckets: int = option(32, whole("[4, 1000000000]", "a number of distances"))
    t5_distance: int = option(
        128,
        whole("[4, 1000000000]", "a number of distances"),
        excludes=Rule(
            "t5_buckets",
            "{one} is not above {other}; give a larger distance, or fewer buckets",
            lambda distance, buckets: distance <= buckets,
        ),
    )


@POSITIONS.register("t5", options=BucketOptions)
class Buckets(Positions):
    """s_ij + b_h[bucket(j - i)], a learned bias for each head (Raffel et al. 2020, Section 2.1).

    Half of the buckets are single distances, the others grow with the logarithm of the distance.
    Where keys after the query are seen, half of all buckets are theirs. The biases are those of all
    layers; they begin as 0, where the authors draw them.

    Raises:
        UsageError: there are too few buckets, or their last distance is too small.
    """

    shared = True

    def __init__(self, heads: int, t5_buckets: int = 32, t5_distance: int = 128) -> None:
        super().__init__(heads)
        check_values(BucketOptions, t5_buckets=t5_buckets, t5_distance=t5_distance)
        if t5_buckets % 4:
            raise UsageError(f"--t5-buckets is {t5_buckets}; give a multiple of 4, such as 32")
        self.distance = t5_distance
        self.table = nn.Parameter(torch.zeros(t5_buckets, heads))

    def extra_repr(self) -> str:
        """Return the buckets and their last distance, for printing."""
        return f"buckets={len(self.table)}, distance={self.distance}"

    def buckets(self, distances: Tensor, causal: bool) -> Tensor:
        """Return the bucket of each distance j - i."""
        count, first = len(self.table), torch.zeros_like(distances)
        if not causal:
            count //= 2
            first = torch.where(distances > 0, count, 0)
        near = count // 2
        away = (-distances).clamp(min=0) if causal else distances.abs()
        scale = (count - near) / math.log(self.distance / near)
        far = near + (torch.log(away.float().clamp(min=1) / near) * scale).long()
        return first + torch.where(away < near, away, far.clamp(max=count - 1))

    def bias(self, context: AttentionContext, heads: slice, dtype: torch.dtype) -> Tensor:
        """Return b_h[bucket(j - i)], [1, h, T, S]."""
        causal = context.inputs.causal or context.first_query > 0 or context.queries < context.keys

        def compute() -> Tensor:
            return self.buckets(context.distances(1.0)[0].long(), causal)

        key = ("t5", len(self.table), self.distance, causal, *_sizes(context))
        table = self.table[:, self.own]
        biases = F.embedding(context.inputs.cached(key, compute), table)  # [T, S, h]
        return biases.permute(2, 0, 1)[None, heads].to(dtype)


@POSITIONS.register("rotary")
class Rotary(Positions):
    """q_i and k_j rotated by angles i theta_n and j theta_n, theta_n = 10000^(-2n / D).

    Su et al. 2021, Eq. 14 and 15: the pairs (2n, 2n + 1) of a head's width D. Their product depends
    on j - i alone.
    """

    rotates = True

    def check_width(self, width: int) -> None:
        """Raise UsageError if the width is odd."""
        if width % 2:
            raise UsageError(
                f"rotary positions rotate pairs, and a head has width {width}; give widths and "
                "numbers of heads whose quotient is even, or other --encoder-positions"
            )

    def rotate(self, call: HeadCall) -> HeadCall:
        """Return the call with rotated queries and keys."""
        context, wide = call.context, torch.promote_types(call.q.dtype, torch.float32)
        turns, times = self._turns(context, call.q.size(-1), wide), [call.q.size(2), call.k.size(2)]
        rows = [x.permute(2, 0, 1, 3) for x in (call.q, call.k)]  # [T, B, h, D], as in memory
        if call.q.size(1) == call.k.size(1):  # both together: half the operations
            turned: Iterable[Tensor] = _turn(torch.cat(rows), turns, wide).split(times)
        else:
            turned = map(_turn, rows, turns.split(times), repeat(wide))
        q, k = (x.permute(1, 2, 0, 3) for x in turned)
        return call._replace(q=q, k=k)

    def _turns(self, context: AttentionContext, width: int, dtype: torch.dtype) -> Tensor:
        """Return the turns of queries and of keys as complex numbers, [T + S, 1, 1, D / 2]."""
        arange = partial(torch.arange, device=context.device, dtype=torch.float64)
        first = context.first_query

        def compute() -> Tensor:
            i = torch.cat([arange(first, first + context.queries), arange(context.keys)])
            angles = i[:, None, None, None] * 10000 ** (-arange(0, width, 2) / width)
            return torch.polar(torch.ones_like(angles), angles).to(
                torch.promote_types(dtype, torch.complex32)  # which torch.compile knows
            )

        return context.inputs.cached(("rotary", *_sizes(context), width, dtype), compute)


def _turn(rows: Tensor, turns: Tensor, wide: torch.dtype) -> Tensor:
    pairs = torch.view_as_complex(rows.to(wide).unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns).flatten(-2).to(rows.dtype)


def _sizes(context: AttentionContext) -> tuple[Any, ...]:
    return context.queries, context.keys, context.first_query
