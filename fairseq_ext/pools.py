"""Pools of processes that end when the process that began them ends, however it does."""

import multiprocessing
import os
import threading
from concurrent.futures import ProcessPoolExecutor


def begin_pool(processes: int, method: str | None = None) -> ProcessPoolExecutor:
    """Return a pool of processes; those of a plain one would wait for ever for more work.

    Args:
        processes: their number.
        method: how they are started, such as "fork"; the machine's own if None.
    """
    context = multiprocessing.get_context(method)
    return ProcessPoolExecutor(processes, context, initializer=_end_with_parent)


def _end_with_parent() -> None:
    def wait_and_exit(parent: multiprocessing.process.BaseProcess) -> None:
        parent.join()
        os._exit(1)

    if parent := multiprocessing.parent_process():
        threading.Thread(target=wait_and_exit, args=[parent], daemon=True).start()
