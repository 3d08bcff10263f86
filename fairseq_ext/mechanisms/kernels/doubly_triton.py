"""Doubly-normalised and hybrid attention on a GPU, without the map in memory.

All weights are powers of two of the scores s (times log2 e) minus a number per key and per query:

    C_ij = 2^(s_ij - a_j)         a_j = log2 sum_i 2^s_ij            softmax over the queries
    D_ij = 2^(s_ij - a_j - b_i)   b_i = log2 sum_j 2^(s_ij - a_j)    DNAS
    U_ij = 2^(s_ij - z_i)         z_i = log2 sum_j 2^s_ij            UNAS, for HNAS

a, b and z are infinite where there is padding, so that its weights are zero. They and all
differences are in float32: nothing underflows, and a need not be centred for 16-bit inputs. One
kernel computes a, one b, z and the output, one the gradients of keys and values, and one that of
queries. What gradients of keys need of queries is computed beside them, or, in long sequences, once
by a kernel of its own. None of them adds atomically, so that two runs agree bit for bit.

Dropout falls on the final weights; each kernel makes the same decisions again.

Tensors are [T, B * H, D] in memory, as fairseq's projections leave them, so that nothing is copied.
"""

from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_ext.attention.derivatives import first_derivative_only
from fairseq_ext.attention.masks import Mask
from fairseq_ext.mechanisms.kernels import triton_launch

NAME = "doubly-normalised attention"


class Share(NamedTuple):
    """The share u of DNAS in HNAS.

    Attributes:
        offset: [H], a parameter of any floating type.
        origin: what is added to it.
        kind: what the sum goes through: "sigmoid", "clamp" (with the gradient of "raw") or "raw",
            which is nothing.
    """

    offset: Tensor
    origin: float = 0.0
    kind: str = "raw"


def supports(q: Tensor, k: Tensor, mask: Mask) -> bool:
    """Return whether the kernels take these [B, H, T, D] and [B, H, S, D] on their device."""
    only_keys = mask.masked is None or mask.masked.shape[1:3] == (1, 1)
    return only_keys and not mask.causal and triton_launch.supports(NAME, q, k)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    masked: Tensor | None,
    query_padding: Tensor | None,
    share: Share | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Return what `doubly_cpu.attend` returns, for inputs of any floating type.

    Args:
        q: [B, H, T, D].
        k: [B, H, S, D].
        v: [B, H, S, D].
        masked: [B or 1, 1, 1, S] bool, padded keys.
        query_padding: [B, T] bool.
        share: that of DNAS in HNAS; None for DNAS.
        dropout: the share of weights that are dropped.
    """
    batch, heads = q.shape[:2]
    q, k, v = (_time_first(x) for x in (q, k, v))
    keys = None if masked is None else masked[:, 0, 0]
    masks = (
        None if x is None else x.expand(batch, -1).contiguous().view(torch.uint8)
        for x in (query_padding, keys)
    )
    offset, *hybrid = share or (None, 0.0, "")
    options = {
        "groups": q.size(1),
        "heads": heads,
        "T": q.size(0),
        "S": k.size(0),
        **triton_launch.choose_blocks(q),
    }
    mixing = {**triton_launch.draw_dropping(dropout), "origin": hybrid[0], "KIND": hybrid[1]}
    out = _Doubly.apply(q, k, v, offset, *masks, options, mixing)
    return out.unflatten(1, (batch, heads)).permute(1, 2, 0, 3)


def _time_first(x: Tensor) -> Tensor:
    """Return x with time first: [B, H, T, D] -> [T, B * H, D]."""
    return x.permute(2, 0, 1, 3).flatten(1, 2).contiguous()


class _Doubly(torch.autograd.Function):
    """O [T, G, D] from q [T, G, D], k and v [S, G, D], offset [H], padding [B, T] and [B, S]."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        offset: Tensor | None,
        queries: Tensor | None,
        keys: Tensor | None,
        options: dict[str, Any],
        mixing: dict[str, Any],
    ) -> Tensor:
        ctx.options, ctx.mixing = options, mixing
        a, b = (x.new_empty(x.size(1), x.size(0), dtype=torch.float32) for x in (k, q))
        out = torch.empty_like(q)
        # apart = DNAS - UNAS; the slopes of both follow from it and the output
        z, apart = (b, None) if offset is None else (torch.empty_like(b), torch.empty_like(q))
        _run("columns", k, q, k, a, queries, keys, **options)
        given = q, k, v, offset, a, b, z, out, apart, queries, keys
        _run("outputs", q, *given, **options, **mixing)
        ctx.save_for_backward(*given)
        return out

    @staticmethod
    @first_derivative_only(NAME, "give --doubly-kernel none")
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, offset, a, b, z, out, apart, queries, keys = ctx.saved_tensors
        dout = dout.contiguous()
        dq, dk, dv, da = (torch.empty_like(x) for x in (q, k, v, a))
        slopes, delta_u = (None if offset is None else torch.empty_like(b) for _ in "uu")
        shared, options = (q, k, v, offset, dout, out, apart, a, b, z), ctx.options | ctx.mixing
        if len(q) * len(k) <= triton_launch.FEW_SCORES:
            delta = delta_u = None
            of_keys = {"num_stages": 2}  # as more is loaded, into the same memory
        else:
            delta, of_keys = torch.empty_like(b), {}
            kind = {name: ctx.mixing[name] for name in ("origin", "KIND")}
            _run("deltas", q, dout, out, apart, offset, delta, delta_u, **ctx.options, **kind)
        # the first kernel computes da, which the second one reads
        further = delta, delta_u, da, dk, dv, queries, keys
        _run("key_gradients", k, *shared, *further, **options, **of_keys)
        _run("query_gradients", q, *shared, da, dq, slopes, queries, keys, **options)
        of_offset = None
        if slopes is not None:
            of_offset = slopes.view(-1, len(offset), len(q)).sum((0, 2)).to(offset.dtype)
        return dq, dk, dv, of_offset, *[None] * 4


def _run(kernel: str, rows: Tensor, *tensors: Tensor | None, **options: Any) -> None:
    """Run a kernel, for all rows [T, G, D]."""
    triton_launch.run(_import_kernels, kernel, *rows.shape[:2], *tensors, **options)


def _import_kernels() -> ModuleType:
    from fairseq_ext.mechanisms.kernels import doubly_triton_jit  # Triton may be missing

    return doubly_triton_jit
