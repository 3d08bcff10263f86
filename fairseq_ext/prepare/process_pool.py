"""A function applied to lines on all cores, as a stream: memory does not grow with the text."""

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from fairseq_ext.errors import Unfinished
from fairseq_ext.files import batched, list_files, write_lines
from fairseq_ext.prepare.step import read_with_progress

BATCH = 2000  # lines that a process gets at once
AHEAD = 3  # batches for each process that are read before they are needed

BatchFunction = Callable[[list[str]], list[str]]


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def map_files(folder: Path, out: Path, verb: str, choose: Callable[[str], BatchFunction]) -> None:
    """Apply a function to the lines of each file in a folder, and keep results that exist.

    Args:
        folder: with files NAME.LANGUAGE.
        out: folder for files of the same names.
        verb: the work, for the progress bar.
        choose: returns the function for a language.
    """
    for path in list_files(folder):
        if not (out / path.name).exists():
            function, lines = choose(path.suffix[1:]), read_with_progress(verb, path)
            write_lines(out / path.name, map_lines(function, lines))


def map_lines(
    function: BatchFunction, lines: Iterable[str], processes: int | None = None
) -> Iterator[str]:
    """Yield the results of a function for batches of lines, in the order of the lines.

    Args:
        function: can be pickled; returns a line for each line of its list.
        lines: read as they are needed.
        processes: default: the number of cores.

    Raises:
        Unfinished: a process was killed.
    """
    processes = processes or cores()
    batches = batched(lines, BATCH)
    if processes == 1:
        for batch in batches:
            yield from function(batch)
        return
    pool = ProcessPoolExecutor(processes, initializer=_end_with_parent)
    waiting: deque[Future[list[str]]] = deque()
    try:
        for batch in batches:
            waiting.append(pool.submit(function, batch))
            if len(waiting) > processes * AHEAD:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    except BrokenProcessPool:
        raise Unfinished(
            "a process that worked on the text was killed, perhaps for want of memory; give the "
            "machine less to do and run the same command again"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """Let this process end when its parent ends; else it waits for ever for more work."""

    def wait_and_exit(parent: multiprocessing.process.BaseProcess) -> None:
        parent.join()
        os._exit(1)

    if parent := multiprocessing.parent_process():
        threading.Thread(target=wait_and_exit, args=[parent], daemon=True).start()
