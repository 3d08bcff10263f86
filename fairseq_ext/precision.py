"""Precisions that fairseq takes and cannot train with."""

from collections.abc import Callable
from typing import Any

from fairseq_ext.errors import UsageError
from fairseq_ext.patching import around


def check_precision(cfg: Any) -> None:
    """Raise UsageError for --fp16 on a CPU, where fairseq's optimizer asks for CUDA.

    Goes when `FP16Optimizer` runs without it.
    """
    import torch

    common = cfg.common
    on_cpu = common.cpu or not torch.cuda.is_available()
    if common.fp16 and not common.memory_efficient_fp16 and on_cpu and not common.tpu:
        raise UsageError(
            "--fp16 needs a GPU; on a CPU give --memory-efficient-fp16 or --bf16, or neither"
        )


def precision_flags() -> None:
    """`check_precision` before a training begins."""

    def start(original: Callable, trainer: Any, cfg: Any, *args: Any, **kwargs: Any) -> None:
        check_precision(cfg)
        original(trainer, cfg, *args, **kwargs)

    around("fairseq.trainer:Trainer", "__init__", start)
