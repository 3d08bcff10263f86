"""Patches that change no result, but what it costs."""

from contextlib import suppress
from pathlib import Path

import torch

from fairseq_ext.wrapping import wrap

EXACT = 1e-5  # of the largest product: float32 has 1e-6, bfloat16 1e-3


def smooth_in_one_pass() -> None:
    """Compute label-smoothed cross-entropy and its gradient together.

    Fault: It passes over the scores of the whole vocabulary seven times, and keeps four copies.
    Since: always.
    Until: torch or fairseq has such a loss in one kernel.
    """
    from fairseq_ext.criterions.smoothed_loss import compute_loss

    path = "fairseq.criterions.label_smoothed_cross_entropy:LabelSmoothedCrossEntropyCriterion"
    wrap(path, "compute_loss", compute_loss)


def update_in_one_kernel() -> None:
    """Let Adam update all parameters in one kernel.

    Fault: Without apex Adam takes about ten operations for each tensor, each of which passes over
    memory.
    Since: always.
    Until: fairseq takes torch's fused Adam.
    """
    from fairseq_ext.patches.adam import step

    wrap("fairseq.optim.adam:Adam", "step", step)


def multiply_by_onednn() -> None:
    """Multiply matrices by oneDNN on CPUs of AMD, unless there is a GPU or a precision was chosen.

    Fault: On these CPUs it multiplies by MKL, at less than half of their speed.
    Since: always.
    Until: torch asks which of its libraries is the faster one.
    """
    usual = torch.get_float32_matmul_precision() == "highest"
    if usual and not torch.cuda.is_available() and _is_slow_for_mkl():
        # this is how to ask for oneDNN; where it then computes in 16 bits, it is not wanted
        torch.set_float32_matmul_precision("medium")
        if not _multiplies_exactly():
            torch.set_float32_matmul_precision("highest")


def _is_slow_for_mkl() -> bool:
    with suppress(OSError):
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text()
    return False


def _multiplies_exactly() -> bool:
    random = torch.Generator().manual_seed(1)
    a, b = torch.randn(2, 256, 256, generator=random)
    exact = a.double() @ b.double()
    return bool(((a @ b) - exact).abs().max() < EXACT * exact.abs().max())
