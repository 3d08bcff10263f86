"""Doubly-normalised and hybrid attention on a GPU, without the map in memory.

All weights are powers of two of the scores s (times log2 e) minus a number per key and per query:

    C_ij = 2^(s_ij - a_j)         a_j = log2 sum_i 2^s_ij            softmax over the queries
    D_ij = 2^(s_ij - a_j - b_i)   b_i = log2 sum_j 2^(s_ij - a_j)    DNAS
    U_ij = 2^(s_ij - z_i)         z_i = log2 sum_j 2^s_ij            UNAS, for HNAS

a, b and z are infinite where there is padding, so that its weights are zero. They and all
differences are in float32: nothing underflows, and a need not be centred for 16-bit inputs. One
kernel computes a, one b, z and the output, one what gradients share, one the gradients of keys and
values, and one the gradient of queries. None of them adds atomically, so that two runs agree bit
for bit.

Dropout falls on the final weights. Every query and every key gets a random number from torch; a
hash of both decides about their weight, so that each kernel makes the same decisions again.

Tensors are [T, B * H, D] in memory, as fairseq's projections leave them, so that nothing is copied.
"""

import logging
import math
import os
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_ext.attention.masks import Mask

logger = logging.getLogger(__name__)

HOPPER, HOPPER_NEEDS = 9, (3, 6)  # major compute capability, and version of Triton
TRUSTED = "FAIRSEQ_EXT_TRUST_TRITON"  # environment variable: use any version

LEVELS = 2**31  # values of a hash, which drops a weight if it is low
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Bytes of a query, at most -> rows of a program, rows it takes at a time, warps. Chosen by the
# compiler's reports for compute capability 8.0 to 12.0: a program fits into the 99 KiB of shared
# memory of the smallest GPU and hardly spills registers. Not yet tuned on a GPU.
BLOCKS = {128: (64, 32, 4), 256: (64, 32, 8), 512: (32, 16, 8)}


def supports(q: Tensor, k: Tensor, mask: Mask) -> bool:
    """Return whether the kernels take these [B, H, T, D] and [B, H, S, D] on their device."""
    only_keys = mask.masked is None or mask.masked.shape[1:3] == (1, 1)
    sized = q.numel() > 0 and k.numel() > 0 and q.dtype in DTYPES and _bytes(q) <= max(BLOCKS)
    return _runs_on(q.device) and sized and only_keys and not mask.causal


@cache
def _runs_on(device: torch.device) -> bool:
    """Return whether Triton runs on a device; log why it does not run on a GPU."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return find_spec("triton") is not None
    if device.type != "cuda":
        return False
    if problem := find_problem(device):
        logger.warning("doubly-normalised attention is slower and takes more memory: %s", problem)
    return not problem


def find_problem(device: torch.device) -> str:
    """Return why the kernels do not run on a GPU and what to do, or an empty text.

    They run from Ampere on. Triton 3.2 to 3.6 crashes on Hopper in others' kernels that multiply
    with a transposed block, as ours do (flash-linear-attention #734); in 3.6 ours are right there.
    """
    if find_spec("triton") is None or torch.version.hip is not None:
        return "Triton for NVIDIA GPUs is not installed; pip install triton"
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        return f"compute capability {capability[0]}.{capability[1]} is below 8.0 (Ampere)"
    if capability[0] == HOPPER and _triton_version() < HOPPER_NEEDS and TRUSTED not in os.environ:
        return (
            "Triton before 3.6 can crash on this GPU; install torch with Triton 3.6, or set "
            f"{TRUSTED}=1 to try it all the same"
        )
    from triton.runtime import driver

    try:
        driver.active.get_current_target()  # compiled when it is first asked for
    except Exception as error:
        return f"Triton needs a C compiler and Python's headers here: {error}"
    return ""


def _triton_version() -> tuple[int, ...]:
    import triton

    return tuple(map(int, triton.__version__.split(".")[:2]))


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    masked: Tensor | None,
    query_padding: Tensor | None,
    u: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Return what `doubly_cpu.attend` returns, for inputs of any floating type.

    Args:
        dropout: the share of weights that are dropped.
    """
    batch, heads = q.shape[:2]
    q, k, v = (_time_first(x) for x in (q, k, v))
    keys = None if masked is None else masked[:, 0, 0]
    masks = (
        None if x is None else x.expand(batch, -1).contiguous().view(torch.uint8)
        for x in (query_padding, keys)
    )
    share = None if u is None else u.float().contiguous()
    out = _Doubly.apply(q, k, v, share, *masks, heads, dropout)
    return out.unflatten(1, (batch, heads)).permute(1, 2, 0, 3)


def _time_first(x: Tensor) -> Tensor:
    """Return x with time first: [B, H, T, D] -> [T, B * H, D]."""
    return x.permute(2, 0, 1, 3).flatten(1, 2).contiguous()


class _Doubly(torch.autograd.Function):
    """O [T, G, D] from q [T, G, D], k and v [S, G, D], u [H], and padding [B, T] and [B, S]."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        u: Tensor | None,
        queries: Tensor | None,
        keys: Tensor | None,
        heads: int,
        dropout: float,
    ) -> Tensor:
        options, dropping = _options(q, k, heads), _dropping(dropout)
        seeds = _draw_seeds(q, k) if dropout else [None, None]
        a, b = (x.new_empty(x.size(1), x.size(0), dtype=torch.float32) for x in (k, q))
        out = torch.empty_like(q)
        # apart = DNAS - UNAS; the slopes of both follow from it and the output
        z, apart = (b, None) if u is None else (torch.empty_like(b), torch.empty_like(q))
        _run("columns", k, q, k, a, queries, keys, **options)
        shared = q, k, v, u, a, b, z, out, apart, queries, keys, *seeds
        _run("outputs", q, *shared, **options, **dropping)
        ctx.save_for_backward(q, k, v, u, queries, keys, a, b, z, out, apart, *seeds)
        ctx.heads, ctx.dropping = heads, dropping
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, u, queries, keys, a, b, z, out, apart, *seeds = ctx.saved_tensors
        options = _options(q, k, ctx.heads) | ctx.dropping
        dout = dout.contiguous()
        dq, dk, dv, da = (torch.empty_like(x) for x in (q, k, v, a))
        delta = torch.empty_like(b)
        delta_u, slope = (delta, None) if u is None else (torch.empty_like(b), torch.empty_like(b))
        _run("deltas", q, dout, out, apart, u, delta, delta_u, slope, **_options(q, k, ctx.heads))
        du = None if slope is None else slope.view(-1, ctx.heads, len(q)).sum((0, 2))
        shared = (q, k, v, u, dout, a, b, z, delta, delta_u, da)
        # the first kernel computes da, which the second one reads
        _run("key_gradients", k, *shared, dk, dv, queries, keys, *seeds, **options)
        _run("query_gradients", q, *shared, dq, queries, keys, *seeds, **options)
        return dq, dk, dv, du, *[None] * 4


def _run(kernel: str, rows: Tensor, *tensors: Tensor | None, **options: Any) -> None:
    """Run a program for every block of rows of every group of `rows` [T, G, D]."""
    from fairseq_ext.mechanisms.kernels import doubly_triton_jit  # Triton may be missing

    programs = rows.size(1) * math.ceil(rows.size(0) / options["ROWS"])
    with torch.cuda.device_of(rows):
        getattr(doubly_triton_jit, kernel)[(programs,)](*tensors, **options)


def _draw_seeds(q: Tensor, k: Tensor) -> list[Tensor]:
    """Return a random number for each row of each group: [T, G, D] -> [G, T], int32."""
    sizes = [(x.size(1), x.size(0)) for x in (q, k)]
    counts = [groups * rows for groups, rows in sizes]
    drawn = torch.empty(sum(counts), dtype=torch.int32, device=q.device).random_().split(counts)
    return [x.view(size) for x, size in zip(drawn, sizes, strict=True)]


def _dropping(rate: float) -> dict[str, Any]:
    """Return how many of LEVELS hashes drop a weight, None of none, and the factor of others."""
    if not rate:
        return {"dropped": None, "kept": 1.0}
    dropped = min(round(rate * LEVELS), LEVELS - 1)
    return {"dropped": dropped, "kept": LEVELS / (LEVELS - dropped) if rate < 1 else 0.0}


def _options(q: Tensor, k: Tensor, heads: int) -> dict[str, Any]:
    """Return the arguments of all kernels: sizes, precision and blocks."""
    width = q.size(-1)
    rows, step, warps = BLOCKS[min(upto for upto in BLOCKS if _bytes(q) <= upto)]
    return {
        "groups": q.size(1),
        "heads": heads,
        "T": q.size(0),
        "S": k.size(0),
        "scale": width**-0.5,
        "WIDTH": width,
        "D": _padded(width),
        "ROWS": rows,
        "STEP": step,
        "PRECISION": "tf32" if _tf32() else "ieee",
        "num_warps": warps,
    }


def _padded(width: int) -> int:
    """Return the width of a block: a power of two for Triton, and at least 16 for products."""
    return 1 << max(4, (width - 1).bit_length())


def _bytes(q: Tensor) -> int:
    return _padded(q.size(-1)) * q.element_size()


def _tf32() -> bool:
    """Return whether matrix products may round float32; newer torch has a new name for it."""
    matmul = torch.backends.cuda.matmul
    new = getattr(matmul, "fp32_precision", None)
    return matmul.allow_tf32 if new is None else new == "tf32"
