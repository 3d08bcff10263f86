"""Settings of hydra, torch and warnings for a whole process."""

import logging
import os
import warnings

from fairseq_ext.commands.attention_kernels import set_kernels
from fairseq_ext.wrapping import find_owner

STOCK_WARNINGS = [
    (r"hydra\.experimental\.\w+\(\) is no longer experimental", UserWarning, ""),
    (r"\nThe version_base parameter is not specified", UserWarning, ""),
    (r"In '.*': Usage of deprecated keyword in package header", UserWarning, ""),
    (r"\n'.*' is validated against ConfigStore schema with the same name", UserWarning, ""),
    (r"\nThe strict flag in the compose API is deprecated", UserWarning, ""),
    (r"'pin_memory' argument is set as true but no accelerator is found", UserWarning, ""),
    (r"Support for mismatched key_padding_mask and attn_mask is deprecated", UserWarning, ""),
    (r"`torch\.jit\.script` is deprecated", Warning, ""),
    (r"`torch\.cuda\.amp\.\w+\(args\.\.\.\)` is deprecated", FutureWarning, r"fairseq\."),
]
"""Start of a message that stock fairseq causes, its category, the module that warns ("": any)."""


def silence_stock_warnings() -> None:
    """Ignore the warnings of `STOCK_WARNINGS`.

    Fault: Every run prints some thirty lines of warnings.
    Asked: all users; noise; none.
    Since: torch 2, hydra 1.1.
    Until: fairseq stops causing them.
    """
    for message, category, module in STOCK_WARNINGS:
        warnings.filterwarnings("ignore", message, category, module)


def hide_details() -> None:
    """Let loggers of all packages print no details; LOGLEVEL=DEBUG shows them.

    Fault: A module of fairseq's, when it is imported, lets every logger of the process print
        details: hydra's at the start of fairseq-generate, and others'.
    Asked: all users; loud; messages.
    Since: fairseq 0.12.
    Until: fairseq.models.wav2vec.wav2vec2_classification sets no level.
    """
    find_owner("fairseq.models")  # which imports it
    if logging.root.level == logging.DEBUG and os.environ.get("LOGLEVEL", "").upper() != "DEBUG":
        logging.root.setLevel(logging.INFO)


def share_configurations() -> None:
    """Let hydra read its store of configurations in place.

    Fault: hydra copies every stored configuration before it composes one: half a second of every
        command.
    Asked: all users; silent, a slow start; none.
    Since: hydra 1.1.
    Until: hydra copies its list of sources alone.
    """
    find_owner("hydra.core.config_store:ConfigStore").__deepcopy__ = lambda self, memo: self


def avoid_cudnn_attention() -> None:
    """Let torch run attention by its flash or memory-efficient kernels, not by cuDNN's.

    `--sdpa cudnn` lets it use these.

    Fault: On Hopper and Blackwell torch runs attention by cuDNN, which takes up to a second for
        each new shape, and whose gradients can be NaN (pytorch#196678).
    Asked: who has a new GPU; silent, NaN or slow; none.
    Since: torch 2.11.
    Until: cuDNN has one plan for all lengths, and right gradients.
    """
    set_kernels()
