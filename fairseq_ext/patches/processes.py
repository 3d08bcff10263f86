"""Patches of how several processes start and end, and checks of flags that nothing trains with."""

import functools
import logging
import os
import re
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from fairseq_ext.errors import UsageError
from fairseq_ext.wrapping import replace, wrap

logger = logging.getLogger(__name__)

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


USAGE_ERROR = re.compile(r"^fairseq_ext\.errors\.(?:UsageError|Unfinished): (.+)\Z", re.M | re.S)
LAUNCHER = {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK"}  # variables that fairseq reads
SLURM = {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}
CPU_DDP = ("legacy_ddp", "no_c10d")
CPU_FLAGS = "--distributed-backend gloo --ddp-backend legacy_ddp"


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
    if alone and cfg.optimizer is not None:  # under torchrun and Slurm, too, it gets no group
        _check_sharding(cfg.distributed_training)
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


def _check_sharding(flags: Any) -> None:
    if flags.ddp_backend == "fully_sharded" and not flags.distributed_init_method:
        raise UsageError(
            "--ddp-backend fully_sharded shards a model over several processes, and here is one; "
            "leave it out, or start several by --distributed-world-size"
        )


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


def run_processes() -> None:
    """Correct --bf16, check the processes and end their group, in every command that has several.

    A UsageError of a process that it starts is raised here as one.

    Fault: On CPUs several processes train nothing, or each the whole; --bf16 implies --tpu. The
        group of processes is never ended: where one of its threads still runs, a process is
        aborted (status 134) though all its work is done.
    Since: fairseq 0.10.
    Until: fairseq starts processes on CPUs, takes their number from torchrun, leaves --tpu alone
        and calls destroy_process_group.
    """
    import torch.distributed as dist
    from torch.multiprocessing import ProcessRaisedException

    def call_main(original: Callable, cfg: Any, main: Callable, **kwargs: Any) -> Any:
        unset_tpu(cfg)
        check_processes(cfg)
        if not dist.is_initialized():
            main = functools.partial(run_and_end_group, main)
        try:
            return original(cfg, main, **kwargs)
        except ProcessRaisedException as error:
            if message := USAGE_ERROR.search(str(error)):
                raise UsageError(message[1].strip()) from None
            raise

    wrap("fairseq.distributed.utils", "call_main", call_main)


def run_and_end_group(main: Callable, cfg: Any, **kwargs: Any) -> None:
    """Run a command in one process and end its group, when each process of it has finished."""
    import torch.distributed as dist
    from fairseq.distributed import utils

    main(cfg, **kwargs)
    if dist.is_initialized():
        dist.barrier(utils.get_global_group())
        dist.destroy_process_group()
        vars(utils.get_global_group).pop("_global_group", None)  # it is kept there


def gather_objects() -> None:
    """Gather the lists that criterions log by torch's `all_gather_object`; results are on CPU.

    Fault: Lists that criterions log are gathered through a CUDA buffer of 16 kB: that fails on
        CPUs, and in evaluation.
    Since: fairseq 0.6.
    Until: fairseq uses torch's all_gather_object.
    """
    import torch.distributed as dist
    from fairseq import utils as fairseq_utils
    from fairseq.distributed import utils

    def gather(data: Any, group: Any = None, max_size: int = 0) -> list[Any]:
        group = utils.get_global_group() if group is None else group
        gathered: list[Any] = [None] * utils.get_world_size(group)
        dist.all_gather_object(gathered, fairseq_utils.move_to_cpu(data), group=group)
        return gathered

    replace(["fairseq.distributed.utils"], "all_gather_list", gather)


def run_torchrun_on_cpu() -> None:
    """Take rank and number of processes from torchrun where there is no GPU.

    Fault: Under torchrun it divides the rank by the number of GPUs, also if there is none.
    Since: fairseq after 0.12.3 (d871f616), as fairseq-fixed.
    Until: fairseq accepts that there is none.
    """
    import torch

    def infer(original: Callable, flags: Any) -> None:
        if torch.cuda.device_count():
            return original(flags)
        flags.distributed_init_method, flags.distributed_no_spawn = "env://", True
        flags.distributed_world_size = int(os.environ["WORLD_SIZE"])
        flags.distributed_rank, flags.device_id = int(os.environ["RANK"]), 0
        return None

    wrap("fairseq.distributed.utils", "_infer_torch_distributed_launch_init", infer)
