"""The kernels of torch's attention on GPUs that a command may use: --sdpa."""

import argparse
import os
from typing import Any

from fairseq_ext.errors import UsageError

FLAG, VARIABLE = "--sdpa", "FAIRSEQ_EXT_SDPA"
KINDS = ("flash", "cudnn")
NEEDED = (9, 0)
"""The compute capability from which on torch prefers cuDNN's attention to its own."""

HELP = (
    "attention on a GPU of compute capability 9.0 or newer: flash (default), torch's own kernels; "
    "cudnn, which is quicker on long texts and makes a plan for each new shape"
)


def add_flag(parser: argparse._ActionsContainer) -> None:
    """Add --sdpa to a parser; it holds for the processes that a command starts, too."""
    parser.add_argument(FLAG, choices=KINDS, action=_Choose, default=argparse.SUPPRESS, help=HELP)


class _Choose(argparse.Action):
    """Action that keeps the choice in the environment, as `permissions` keep theirs."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        os.environ[VARIABLE] = values


def set_kernels() -> None:
    """Let torch's attention use cuDNN's kernels if that was chosen, or else only its own."""
    import torch

    torch.backends.cuda.enable_cudnn_sdp(os.environ.get(VARIABLE) == "cudnn")


def check_kernels() -> None:
    """Set the kernels that flags or environment choose; raise UsageError if there are none."""
    import torch

    chosen = os.environ.get(VARIABLE) or KINDS[0]
    if chosen not in KINDS:
        raise UsageError(f"{VARIABLE} is {chosen!r}; give {' or '.join(KINDS)}, or leave it out")
    if chosen == "cudnn":
        wanted = f"{FLAG} cudnn needs a GPU of compute capability 9.0 (Hopper) or newer, with cuDNN"
        advice = f"give {FLAG} flash, or leave it out"
        if not torch.cuda.is_available():
            raise UsageError(f"{wanted}, and torch finds no GPU; {advice}")
        if not torch.backends.cudnn.is_available():
            raise UsageError(f"{wanted}, which this torch does not have; {advice}")
        major, minor = found = torch.cuda.get_device_capability()
        if found < NEEDED:
            raise UsageError(f"{wanted}, and this one has {major}.{minor}; {advice}")
    set_kernels()
