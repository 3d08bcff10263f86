"""Launches of our Triton kernels: where they run, with which blocks, and what they drop.

A kernel holds some rows, `ROWS`, in a program, and takes others, `STEP` at a time. Dropout is
decided by a hash of two random numbers, one of a query and one of a key, so that all kernels make
the same decisions; both are hashes themselves, of places and of two seeds.
"""

import logging
import math
import os
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

HOPPER, HOPPER_NEEDS = 9, (3, 6)  # major compute capability, and version of Triton
TRUSTED = "FAIRSEQ_EXT_TRUST_TRITON"  # environment variable: use any version

LEVELS = 2**31  # values of a hash, which drops a weight if it is low
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Bytes of a query, at most -> rows of a program, rows it takes at a time, warps. Chosen by the
# compiler's reports for compute capability 8.0 to 12.0: a program fits into the 99 KiB of shared
# memory of the smallest GPU and hardly spills registers. Not yet tuned on a GPU.
BLOCKS = {128: (64, 32, 4), 256: (64, 32, 8), 512: (32, 16, 8)}

FEW_SCORES = 512 * 512  # of a head; up to it launches cost more than work. Not yet tuned on a GPU


def supports(name: str, q: Tensor, k: Tensor) -> bool:
    """Return whether the kernels of `name` take these [B, H, T, D] and [B, H, S, D]."""
    return q.numel() > 0 and k.numel() > 0 and runs(name, q.device, q.dtype, q.size(-1))


@cache
def runs(name: str, device: torch.device, dtype: torch.dtype, width: int) -> bool:
    """Return whether kernels run on a device; log once why they do not run on a GPU."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if device.type != "cuda" and not interpreted:
        return False
    problem = _find_limit(dtype, width) or find_problem(device)
    if problem:
        warn(name, problem)
    return not problem


@cache
def warn(name: str, problem: str) -> None:
    """Say in the log, once, why a kernel is not used."""
    logger.warning("%s is slower and takes more memory: %s", name, problem)


def _find_limit(dtype: torch.dtype, width: int) -> str:
    """Return which heads the kernels do not take and what to do, or an empty text."""
    if dtype not in DTYPES:
        return f"its kernels take 16 and 32 bits, and heads are {dtype}; train in one of these"
    widest = max(BLOCKS) // dtype.itemsize
    if width > widest:
        return f"its kernels take heads of up to {widest}, and heads have {width}; have more heads"
    return ""


def find_problem(device: torch.device) -> str:
    """Return why the kernels do not run on a GPU and what to do, or an empty text.

    They run from Ampere on. Triton 3.2 to 3.6 crashes on Hopper in others' kernels that multiply
    with a transposed block, as ours do (flash-linear-attention #734); in 3.6 ours are right there.
    """
    if find_spec("triton") is None or torch.version.hip is not None:
        return "Triton for NVIDIA GPUs is not installed; pip install triton"
    if device.type != "cuda":  # in Triton's interpreter
        return ""
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


def run(
    kernels: Callable[[], ModuleType],
    kernel: str,
    rows: int,
    groups: int,
    /,
    *tensors: Tensor | None,
    **options: Any,
) -> None:
    """Run a program for every block of the rows of every group.

    Args:
        kernels: imports the module of the kernel.
        kernel: its name.
        rows: of a group.
        groups: how many.
        tensors: the first one is on the device that runs it.
        options: further arguments.
    """
    programs = groups * math.ceil(rows / options.get("ROWS", 1))
    with torch.cuda.device_of(tensors[0]):
        getattr(kernels(), kernel)[(programs,)](*tensors, **options)


def draw_dropping(rate: float) -> dict[str, Any]:
    """Return two seeds, how many of LEVELS hashes drop a weight, and the factor of others.

    The seeds are drawn on the CPU, where it costs no launch; all are None if nothing is dropped.
    """
    if not rate:
        return {"query_seed": None, "key_seed": None, "dropped": None, "kept": 1.0}
    query_seed, key_seed = torch.randint(2**31, (2,)).tolist()
    dropped = min(round(rate * LEVELS), LEVELS - 1)
    kept = LEVELS / (LEVELS - dropped) if rate < 1 else 0.0
    return {"query_seed": query_seed, "key_seed": key_seed, "dropped": dropped, "kept": kept}


def choose_blocks(q: Tensor) -> dict[str, Any]:
    """Return the arguments of all kernels that depend on the queries: blocks and precision."""
    width = q.size(-1)
    padded = 1 << max(4, (width - 1).bit_length())  # a power of two, and 16 for products
    size = padded * q.element_size()
    rows, step, warps = BLOCKS[min(most for most in BLOCKS if size <= most)]
    return {
        "scale": width**-0.5,
        "WIDTH": width,
        "D": padded,
        "ROWS": rows,
        "STEP": step,
        "PRECISION": "tf32" if _rounds_float32() else "ieee",
        "num_warps": warps,
    }


def _rounds_float32() -> bool:
    """Return whether matrix products may round float32; newer torch has a new name for it."""
    matmul = torch.backends.cuda.matmul
    new = getattr(matmul, "fp32_precision", None)
    return matmul.allow_tf32 if new is None else new == "tf32"
