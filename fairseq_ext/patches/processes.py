"""Patches of what the processes of a training say to each other."""

import os
from collections.abc import Callable
from typing import Any

from fairseq_ext.wrapping import replace, wrapper_of


def gather_objects() -> None:
    """Gather the lists that criterions log by torch's `all_gather_object`; results are on CPU.

    Fault: Logs are gathered through a CUDA buffer of 16 kB, which fails on CPUs and in evaluation.
    Asked: who trains in processes; loud; none.
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


@wrapper_of("fairseq.distributed.utils", "_infer_torch_distributed_launch_init")
def run_torchrun_on_cpu(original: Callable, flags: Any) -> None:
    """Take rank and number of processes from torchrun where there is no GPU.

    Fault: torchrun's rank is divided by the number of GPUs, even by 0.
    Asked: who trains in processes on CPUs; loud; none.
    Since: fairseq-fixed.
    Until: fairseq accepts that there is none.
    """
    import torch

    if torch.cuda.device_count():
        return original(flags)
    flags.distributed_init_method, flags.distributed_no_spawn = "env://", True
    flags.distributed_world_size = int(os.environ["WORLD_SIZE"])
    flags.distributed_rank, flags.device_id = int(os.environ["RANK"]), 0
    return None
