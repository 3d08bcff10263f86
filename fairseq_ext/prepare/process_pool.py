"""Lines through a function, on all cores and as a stream: memory does not grow with the text."""

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from fairseq_ext.errors import Unfinished
from fairseq_ext.files import Lines, batches

BATCH = 2000  # lines that a process is given at once
AHEAD = 3  # batches for each process that are read before they are needed


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0))


def map_lines(
    function: Callable[[Lines], Lines], lines: Iterable[str], processes: int | None = None
) -> Iterator[str]:
    """What ``function`` makes of batches of lines, in their order.

    Args:
        function: can be pickled; one line for each that it gets.
        processes: default: the cores.

    Raises:
        Unfinished: a process was killed.
    """
    processes = processes or cores()
    found = batches(lines, BATCH)
    if processes == 1:
        for batch in found:
            yield from function(batch)
        return
    pool = ProcessPoolExecutor(processes, initializer=_end_with_parent)
    try:
        yield from _ahead(pool, function, found, processes * AHEAD)
    except BrokenProcessPool:
        raise Unfinished(
            "a process that worked on the text was killed, perhaps for want of memory; give the "
            "machine less to do and run the same command again"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """Else processes wait for ever for more work from one that was stopped."""
    if parent := multiprocessing.parent_process():
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def _ahead(
    pool: ProcessPoolExecutor,
    function: Callable[[Lines], Lines],
    found: Iterator[Lines],
    room: int,
) -> Iterator[str]:
    waiting: deque[Future[Lines]] = deque()
    for batch in found:
        waiting.append(pool.submit(function, batch))
        if len(waiting) > room:
            yield from waiting.popleft().result()
    while waiting:
        yield from waiting.popleft().result()
