"""Changes of how the processes of a command start and end."""

import functools
import multiprocessing
from collections.abc import Callable
from concurrent.futures import Future, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from fairseq_ext.errors import USAGE_ERROR, Unfinished, UsageError, describe_end
from fairseq_ext.pools import begin_pool
from fairseq_ext.training.machine_checks import check_processes, unset_tpu
from fairseq_ext.wrapping import replace, wrapper_of


@wrapper_of("fairseq.distributed.utils", "call_main")
def run_processes(original: Callable, cfg: Any, main: Callable, **kwargs: Any) -> Any:
    """Correct --bf16, check the processes and end their group, in every command that has several.

    A UsageError of a process that it starts is raised here as one, and so is its sudden end.

    Fault: On CPUs several processes train nothing, or each the whole. --bf16 implies --tpu. The
        group of processes never ends, so one that is done may be aborted (status 134).
    Asked: who trains in processes; silent; a refusal, but for the end.
    Since: fairseq 0.10.
    Until: fairseq starts processes on CPUs, and ends their group.
    """
    import torch.distributed as dist
    from torch.multiprocessing import ProcessExitedException, ProcessRaisedException

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
    except ProcessExitedException as error:
        process = f"process {error.error_index} of the training"
        raise Unfinished(describe_end(process, error.exit_code)) from None


def run_and_end_group(main: Callable, cfg: Any, **kwargs: Any) -> None:
    """Run a command in one process and end its group, when each process of it has finished."""
    import torch.distributed as dist
    from fairseq.distributed import utils

    main(cfg, **kwargs)
    if dist.is_initialized():
        dist.barrier(utils.get_global_group())
        dist.destroy_process_group()
        vars(utils.get_global_group).pop("_global_group", None)  # it is kept there


class WorkerPool:
    """A pool of processes that notices if one of them is killed, as fairseq uses one."""

    def __init__(self, processes: int) -> None:
        self.executor = begin_pool(processes)
        self.results: list[Future] = []

    def apply_async(self, work: Callable, args: Any = (), kwds: Any = None) -> Any:
        """Return the result of a call, which `get` waits for."""
        result: Any = self.executor.submit(work, *args, **kwds or {})
        self.results.append(result)
        result.get = result.result
        return result

    def close(self) -> None:
        """Accept no more calls."""

    def join(self) -> None:
        """Wait for all results; end all processes if one was killed, or this one is interrupted."""
        try:
            wait(self.results)
            for result in self.results:
                if isinstance(result.exception(), BrokenProcessPool):
                    raise Unfinished(
                        "a process of --workers was killed, perhaps for want of memory; give fewer "
                        "--workers, or more memory, and run the same command again"
                    )
            self.executor.shutdown()
        except BaseException:
            for process in multiprocessing.active_children():
                process.kill()
            self.executor.shutdown()  # whose thread waits for the processes, too
            raise


def notice_killed_workers() -> None:
    """Let fairseq-preprocess notice that one of its --workers was killed.

    Fault: fairseq-preprocess waits for ever for a killed process, and its processes for it.
    Asked: who binarises; silent, it hangs; none.
    Since: always.
    Until: it uses concurrent.futures.
    """
    replace(["fairseq.binarizer", "fairseq.data.dictionary"], "Pool", WorkerPool)
