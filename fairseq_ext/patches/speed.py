"""Patches that change no result, but what it costs."""

import ctypes
import os
from collections.abc import Callable
from typing import Any

from fairseq_ext.wrapping import wrap

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # of mallopt(3)
LARGE = 2**30


def keep_freed_memory() -> None:
    """Keep what large tensors leave behind for the next ones, in trainings on CPUs.

    Fault: The C library returns every freed tensor of more than 32 MB to the system, and gets
        zeroed pages for the next one: some 7 % of a training step here.
    Since: always.
    Until: torch has a caching allocator for CPUs.
    """

    def begin(original: Callable, trainer: Any, epoch: int) -> None:
        if not trainer.cuda:
            keep_large_blocks()
        original(trainer, epoch)

    wrap("fairseq.trainer:Trainer", "begin_epoch", begin)


def keep_large_blocks() -> None:
    """Let malloc take large blocks from its heap, unless the user has set thresholds of malloc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # of the GNU C library
    if mallopt and not any(name.startswith(("MALLOC_", "GLIBC_TUN")) for name in os.environ):
        mallopt(MMAP_THRESHOLD, LARGE)
        mallopt(TRIM_THRESHOLD, LARGE)


def smooth_in_one_pass() -> None:
    """Compute label-smoothed cross-entropy and its gradient together.

    Fault: It passes over the scores of the whole vocabulary seven times, and keeps four copies.
    Since: always.
    Until: torch or fairseq has such a loss in one kernel.
    """
    from fairseq_ext.criterions.smoothed_loss import compute_loss

    path = "fairseq.criterions.label_smoothed_cross_entropy:LabelSmoothedCrossEntropyCriterion"
    wrap(path, "compute_loss", compute_loss)
