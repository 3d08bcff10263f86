"""Patches that current versions of numpy, torch and hydra need."""

import types
import warnings
from typing import Any

from fairseq_ext.wrapping import replace

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

    Fault: It causes some thirty lines of warnings in every run.
    Since: torch 2, hydra 1.1.
    Until: a row of the list goes when fairseq stops causing it.
    """
    for message, category, module in STOCK_WARNINGS:
        warnings.filterwarnings("ignore", message, category, module)


def restore_numpy_compat() -> None:
    """Give numpy 2 the `compat.long` that fairseq casts to.

    Fault: It casts to np.compat.long, which is gone.
    Since: numpy 2.0.
    Until: fairseq writes int.
    """
    import numpy as np

    if not hasattr(np, "compat"):
        replace(["numpy"], "compat", types.SimpleNamespace(long=int))


def fix_length_buckets() -> None:
    """Compute length buckets with the `method` argument of np.percentile.

    Fault: With --num-batch-buckets it calls np.percentile(interpolation=), which is gone.
    Since: numpy 2.4.
    Until: fairseq passes method.
    """
    import numpy as np

    def get_buckets(sizes: Any, num_buckets: int) -> Any:
        shares = np.linspace(0, 100, num_buckets + 1)
        return np.unique(np.percentile(sizes, shares, method="lower")[1:])

    modules = ["data_utils", "bucket_pad_length_dataset", "audio.raw_audio_dataset"]
    replace([f"fairseq.data.{module}" for module in modules], "get_buckets", get_buckets)
