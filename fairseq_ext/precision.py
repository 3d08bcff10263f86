"""Precisions that fairseq takes and cannot train with."""

from collections.abc import Callable
from typing import Any

from fairseq_ext.errors import UsageError
from fairseq_ext.patching import around


def check_precision(cfg: Any) -> None:
    """Raise UsageError for --fp16 on a CPU, where fairseq asks for CUDA (in its memory-efficient
    form when gradients overflow), and for 16 bits with an optimizer that takes no flat tensor.

    Goes when fairseq runs without CUDA, and says so itself before it reads the data.
    """
    import torch

    common = cfg.common
    if not (common.fp16 or common.bf16):
        return
    on_cpu = common.cpu or not torch.cuda.is_available()
    if common.fp16 and on_cpu and not common.tpu:
        flag = "--memory-efficient-fp16" if common.memory_efficient_fp16 else "--fp16"
        raise UsageError(f"{flag} needs a GPU; on a CPU give --bf16, or neither")
    efficient = common.memory_efficient_fp16 or common.memory_efficient_bf16
    flat = not (efficient or common.fp16_no_flatten_grads)
    if flat and getattr(cfg.optimizer, "_name", None) == "lamb":
        raise UsageError(
            "--optimizer lamb needs the norm of each parameter, which 16 bits lose in one flat "
            "tensor; add --fp16-no-flatten-grads"
        )


def precision_flags() -> None:
    """`check_precision` before a training begins."""

    def start(original: Callable, trainer: Any, cfg: Any, *args: Any, **kwargs: Any) -> None:
        check_precision(cfg)
        original(trainer, cfg, *args, **kwargs)

    around("fairseq.trainer:Trainer", "__init__", start)
