"""Lines through a function, on all cores and as a stream: memory does not grow with the text."""

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.pool import AsyncResult, Pool

from fairseq_ext.data.lines import Lines, batches

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
    """
    processes = processes or cores()
    found = batches(lines, BATCH)
    if processes == 1:
        for batch in found:
            yield from function(batch)
        return
    with multiprocessing.Pool(processes) as pool:
        yield from _ahead(pool, function, found, processes * AHEAD)


def _ahead(
    pool: Pool, function: Callable[[Lines], Lines], found: Iterator[Lines], room: int
) -> Iterator[str]:
    waiting: deque[AsyncResult] = deque()
    for batch in found:
        waiting.append(pool.apply_async(function, (batch,)))
        if len(waiting) > room:
            yield from waiting.popleft().get()
    while waiting:
        yield from waiting.popleft().get()
