"""Changes of how the processes of a command start and end."""

import functools
from collections.abc import Callable
from typing import Any

from fairseq_ext.errors import USAGE_ERROR, UsageError
from fairseq_ext.training.machine_checks import check_processes, unset_tpu
from fairseq_ext.wrapping import wrap


def run_processes() -> None:
    """Correct --bf16, check the processes and end their group, in every command that has several.

    A UsageError of a process that it starts is raised here as one.

    Fault: On CPUs several processes train nothing, or each the whole; --bf16 implies --tpu. The
        group of processes is never ended: where one of its threads still runs, a process is
        aborted (status 134) though all its work is done.
    Asked: who trains in processes; silent, each trains alone; it is a refusal, but for the end.
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
