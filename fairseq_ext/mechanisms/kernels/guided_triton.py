"""The kernel of guided attention in Triton: softmax attention and d of each row, without a map.

Flash attention computes weights h_j = 2^(s_j - z) of scores s (times log2 e) block by block. Beside
the output it sums what d needs of a row (see `guided`): the squares, the weight at the target and,
after dropout, all weights. In the backward pass the slope of the loss in a weight is

    S_j = f_j do.v_j + 2 g (h_j - [j = t]),    ds_j = h_j (S_j - delta),

with the factor f of dropout and the slope g of d. delta = sum_j h_j S_j = do.o + 2 g (sum_j h_j^2 -
h_t) needs no loop: one number of a row is kept for it. For maps after dropout, x_j = f_j h_j,

    S_j = f_j (do.v_j + 2 g (x_j - [j = t])),    delta = do.o + 2 g (sum_j x_j^2 - x_t),

and where a row has no target, 1 / n takes the place of [j = t]. One kernel computes the output and
d, one delta and dq, one dk and dv.

Heads are read where projections have put them, also if they are some of a layer, and outputs and
gradients are written with time first; none of them is copied. With FEW_SCORES
(see `triton_launch`), calls take neighbours without a pattern, too: joining outputs and gradients
of two kernels takes more launches than there are otherwise.
"""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from fairseq_ext.attention.derivatives import first_derivative_only
from fairseq_ext.attention.masks import Mask
from fairseq_ext.mechanisms.kernels import triton_launch

NAME = "guided attention"


def supports(q: Tensor, k: Tensor) -> bool:
    """Return whether the kernels take these [B, h, T, D] and [B, h, S, D] on their device."""
    return triton_launch.supports(NAME, q, k)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    first: int,
    keys: Tensor,
    exist: Tensor,
    share: Tensor | None,
    dropout: float,
    dropped: bool,
) -> tuple[Tensor, Tensor]:
    """Return what `guided.attend` returns.

    Args:
        q: [B, h, T, D].
        k: [B, h, S, D].
        v: [B, h, S, D].
        mask: without a bias.
        first: the first of the heads that have targets.
        keys: see `guided.Targets`, as of the next two.
        exist: as above.
        share: as above.
        dropout: the share of weights that are dropped.
        dropped: d is that of maps after dropout.
    """
    sizes = q.shape[:3]
    pitches = {_find_pitch(x) for x in (q, k, v)}
    if len(pitches) > 1 or 0 in pitches:
        q, k, v = (_time_first(x) for x in (q, k, v))
        pitches = {q.size(1)}
    masked, strides = mask.masked, [0, 0, 0]
    if masked is not None:
        masked = masked if masked.stride(-1) == 1 else masked.contiguous()
        masked = masked.view(torch.uint8).expand(*sizes, k.size(2))
        strides = [*masked.stride()[:3]]
    keys, exist = keys.squeeze(-1), exist.view(torch.uint8)
    if not keys.stride() == exist.stride() == (keys.stride(0), keys.size(2), 1):
        keys, exist = keys.contiguous(), exist.contiguous()
    options = {
        "batch": sizes[0],
        "heads": sizes[1],
        "first": first,
        "guided": keys.size(1),
        "T": sizes[2],
        "S": k.size(2),
        "pitch": pitches.pop(),
        "targets_apart": keys.stride(0),
        **dict(zip(("mask_b", "mask_h", "mask_t"), strides, strict=True)),
        "BY_QUERY": strides[2] > 0,
        "CAUSAL": mask.causal,
        "DROPPED": dropped and dropout > 0,
        **triton_launch.draw_dropping(dropout),
        **triton_launch.choose_blocks(q),
    }
    share = share if share is None else share.contiguous()
    return _Guided.apply(q, k, v, masked, keys, exist, share, options)


def _find_pitch(x: Tensor) -> int:
    """Return how many heads a row of memory has in which [B, h, T, D] stands, time first; or 0."""
    batch, heads, length, width = x.shape
    of_batch, of_head, of_time, of_width = x.stride()
    pitch = (of_batch if batch > 1 else of_time) // width
    expected = [(batch, pitch * width), (heads, width), (length, batch * pitch * width), (width, 1)]
    strides = of_batch, of_head, of_time, of_width
    same = (n == 1 or s == to for s, (n, to) in zip(strides, expected, strict=True))
    return pitch if all(same) else 0


def _time_first(x: Tensor) -> Tensor:
    """Return the same [B, h, T, D] in memory of its own, time first."""
    return x.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3)


def _empty(x: Tensor) -> Tensor:
    """Return memory for [B, h, T, D], time first."""
    batch, heads, length, width = x.shape
    return x.new_empty(length, batch, heads, width).permute(1, 2, 0, 3)


class _Guided(torch.autograd.Function):
    """O [B, h, T, D] and d [B, guided heads, T], the latter in float32."""

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
        options: dict[str, Any],
    ) -> tuple[Tensor, Tensor]:
        given = q, k, v, masked, keys, exist, share
        out = _empty(q)
        z, distances, rest = (
            q.new_empty(len(q), heads, q.size(2), dtype=torch.float32)
            for heads in (q.size(1), options["guided"], q.size(1))
        )
        _run("outputs", q, *given, out, z, distances, rest, **options)
        ctx.save_for_backward(*given, out, z, rest)
        ctx.options = options
        return out, distances

    @staticmethod
    @first_derivative_only(NAME)
    def backward(ctx: Any, dout: Tensor, slope: Tensor) -> tuple[Tensor | None, ...]:
        *given, out, z, rest = ctx.saved_tensors
        q, k, v = given[:3]
        if not (pitch := _find_pitch(dout)):
            dout, pitch = _time_first(dout), dout.size(1)
        slope, delta = slope.contiguous(), torch.empty_like(z)
        dq, dk, dv = (_empty(x) for x in (q, k, v))
        options = ctx.options | {"dout_pitch": pitch}
        # the first kernel computes delta, which the second one reads
        _run("query_gradients", q, *given, out, z, rest, dout, slope, delta, dq, **options)
        _run("key_gradients", k, *given, z, dout, slope, delta, dk, dv, **options)
        return dq, dk, dv, *[None] * 5


def _run(kernel: str, rows: Tensor, *tensors: Tensor | None, **options: Any) -> None:
    """Run a kernel, for all rows [B, h, T, D]."""
    batch, heads, length, _ = rows.shape
    triton_launch.run(_import_kernels, kernel, length, batch * heads, *tensors, **options)


def _import_kernels() -> ModuleType:
    from fairseq_ext.mechanisms.kernels import guided_triton_jit  # Triton may be missing

    return guided_triton_jit
