"""Checks of the precision and the processes of a training against the machine."""

import logging
import os
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from fairseq_ext.errors import UsageError

logger = logging.getLogger(__name__)

before_training: list[Callable[[Any], None]] = []
"""Further checks of the configuration of a training, which commands make."""

LAUNCHER = {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK"}  # variables that fairseq reads
SLURM = {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}
CPU_DDP = ("legacy_ddp", "no_c10d", "pytorch_ddp", "c10d", "fsdp2")
CPU_FLAGS = "--distributed-backend gloo --ddp-backend legacy_ddp"
BF16_INSTRUCTIONS = {"avx512_bw", "amx_bf16", "bf16", "sve_bf16"}  # any one makes products fast


def unset_tpu(cfg: Any) -> None:
    """Unset --tpu, which --bf16 implies on the command line, in every part of the configuration."""
    from fairseq.distributed import utils
    from omegaconf import DictConfig

    if cfg.common.bf16 and utils.xm is None:
        for part in cfg.values():
            if isinstance(part, DictConfig | Namespace) and "tpu" in part:
                part.tpu = False


def check_precision(cfg: Any) -> None:
    """Raise UsageError for --fp16 on a CPU, and for 16 bits with flat tensors of LAMB.

    A CPU on which --bf16 is slow is warned of. With --fp16 fairseq asks for CUDA (in its
    memory-efficient form when gradients overflow).
    """
    import torch

    common = cfg.common
    if not (common.fp16 or common.bf16):
        return
    on_cpu = common.cpu or not torch.cuda.is_available()
    if common.fp16 and on_cpu and not common.tpu:
        flag = "--memory-efficient-fp16" if common.memory_efficient_fp16 else "--fp16"
        raise UsageError(f"{flag} needs a GPU; on a CPU give --bf16, or neither")
    if common.bf16 and on_cpu and not common.tpu:
        read = getattr(torch.cpu, "get_capabilities", dict)  # torch 2.6 has none
        capabilities: dict[str, Any] = dict(read())
        if capabilities and not any(map(capabilities.get, BF16_INSTRUCTIONS)):
            logger.warning(
                "--bf16 is given and this CPU has no instructions for it, so that training takes "
                "many times as long; leave it out"
            )
    efficient = common.memory_efficient_fp16 or common.memory_efficient_bf16
    flat = common.fp16 and not (efficient or common.fp16_no_flatten_grads)  # bf16 stays apart
    if flat and getattr(cfg.optimizer, "_name", None) == "lamb":
        raise UsageError(
            "--optimizer lamb needs the norm of each parameter, which 16 bits lose in one flat "
            "tensor; add --fp16-no-flatten-grads"
        )


def check_processes(cfg: Any) -> None:
    """Raise UsageError for flags with which several processes train nothing, or each the whole."""
    import torch

    if cfg.common.tpu:
        return
    on_cpu = cfg.common.cpu or not torch.cuda.is_available()
    launched = os.environ.keys() >= LAUNCHER
    if launched and "LOCAL_RANK" in os.environ and int(os.environ["WORLD_SIZE"]) > 1:
        _check_torchrun(cfg.distributed_training, on_cpu)
    alone = cfg.distributed_training.distributed_world_size == 1
    if cfg.optimizer is not None:
        _check_sharding(cfg)
    if on_cpu and not alone:
        _check_cpu(cfg, started=launched or _slurm_starts() or torch.cuda.device_count() > 0)


def _slurm_starts() -> bool:
    """Tell whether Slurm starts the processes.

    Where it starts one process a node, fairseq starts one for each GPU.
    """
    if SLURM.isdisjoint(os.environ):
        return False
    nodes, tasks = (int(os.environ.get(f"SLURM_{name}", 1)) for name in ("NNODES", "NTASKS"))
    return int(os.environ.get("SLURM_NTASKS_PER_NODE", tasks // nodes)) > 1


def _check_torchrun(flags: Any, on_cpu: bool) -> None:
    world, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    if flags.distributed_world_size == 1:
        needed = f"--distributed-world-size {world}" + (f" {CPU_FLAGS}" if on_cpu else "")
        raise UsageError(
            f"torchrun started {world} processes but --distributed-world-size is 1, so each would "
            f"train alone into the same folder; add {needed}"
        )
    by_hand = flags.distributed_no_spawn and flags.distributed_rank == rank
    if flags.distributed_init_method and not by_hand:
        raise UsageError(
            f"torchrun started this process as rank {rank} of {world}, which fairseq ignores with "
            f"--distributed-init-method {flags.distributed_init_method}; leave that flag out, or "
            f"give this process --distributed-no-spawn --distributed-rank {rank} too"
        )


def _check_sharding(cfg: Any) -> None:
    from fairseq_ext.training import fully_sharded  # slow

    if cfg.distributed_training.ddp_backend == "fully_sharded":
        raise UsageError(
            "--ddp-backend fully_sharded needs fairscale, whose makers have stopped, and was never "
            f"shown to work; give --ddp-backend {fully_sharded.BACKEND}, which shards by torch"
        )
    if fully_sharded.is_chosen(cfg):
        fully_sharded.check(cfg)


def _check_cpu(cfg: Any, started: bool) -> None:
    flags, world = cfg.distributed_training, cfg.distributed_training.distributed_world_size
    if not started and not (flags.distributed_no_spawn and flags.distributed_init_method):
        raise UsageError(
            f"without a GPU fairseq starts no process for --distributed-world-size {world}; use "
            f"torchrun --no-python --nproc_per_node {world} fairseq-train ... "
            f"--distributed-world-size {world} {CPU_FLAGS}"
        )
    trains = cfg.optimizer is not None
    if flags.distributed_backend == "nccl" or trains and flags.ddp_backend not in CPU_DDP:
        raise UsageError(
            f"{world} processes on CPUs do not work with --distributed-backend "
            f"{flags.distributed_backend} --ddp-backend {flags.ddp_backend}; give {CPU_FLAGS}, or "
            "--distributed-world-size 1"
        )
