"""Commands in processes forked from this one, which has imported everything.

Each has limits: of the size of its files (a full disk), of its memory, and of CPU time.
"""

import atexit
import faulthandler
import logging
import multiprocessing.util
import os
import resource
import selectors
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import warm
import warm_server
from hangs import cpu_time

IDLE = 60.0  # seconds without any use of a CPU, after which a command hangs
BUSY = 20.0  # seconds of a CPU, after which a command that still works is ended
MEMORY = 3 << 30  # bytes that a command may need beyond what it starts with
CLOSED = "closed"
KEPT = 400_000  # bytes of what a command says


class Process(NamedTuple):
    """A command, where and how it runs."""

    program: str
    arguments: Sequence[str]
    folder: Path
    stdin: str = "/dev/null"
    stdout: str | None = None  # a path, CLOSED, or "" for a reader that goes away
    most_bytes: int | None = None  # of a file that it writes
    environment: tuple[tuple[str, str], ...] = ()
    memory: int = MEMORY
    signal: int | None = None  # that it gets
    after: float = 0.0  # seconds
    most_files: int | None = None  # that it may have open


class Ended(NamedTuple):
    """What became of a command."""

    code: int | None  # None if it was ended by us
    out: str
    err: str
    hung: bool
    seconds: float  # of a CPU
    left: bool = False  # whether a process of it still runs


def run_all(
    processes: Iterator[tuple[int, Process]], jobs: int, done: Callable[[int, Ended], None]
) -> None:
    """Run numbered processes, some side by side, and hand over what became of each."""
    selector = selectors.DefaultSelector()
    running: list[_Running] = []
    waiting = True
    while waiting or running:
        while waiting and len(running) < jobs:
            if item := next(processes, None):
                running.append(_Running(*item, selector))
            else:
                waiting = False
        hurry = any(run.process.signal for run in running)
        for key, _ in selector.select(0.02 if hurry else 1):
            key.data.read(key.fd)
        for run in [run for run in running if run.is_over()]:
            running.remove(run)
            done(run.number, run.end())


def run(process: Process) -> Ended:
    """Run one process."""
    found: list[Ended] = []
    run_all(iter([(0, process)]), 1, lambda _, ended: found.append(ended))
    return found[0]


class _Running:
    """A process that runs, what it said, and when it last used a CPU."""

    def __init__(self, number: int, process: Process, selector: selectors.BaseSelector) -> None:
        self.number, self.process, self.selector = number, process, selector
        pipes = [os.pipe() for _ in range(2)]
        sys.stdout.flush()
        self.child = os.fork()
        if not self.child:
            for read, _ in pipes:
                os.close(read)
            try:
                _become(process, [write for _, write in pipes])
            except BaseException:
                traceback.print_exc()
            finally:  # nothing of what this process does after that
                os._exit(1)
        self.ended = os.pidfd_open(self.child)
        self.said = {read: bytearray() for read, _ in pipes}
        for _, write in pipes:
            os.close(write)
        self.open = {self.ended, *self.said}
        for file in self.open:
            selector.register(file, selectors.EVENT_READ, self)
        self.status, self.seconds = 0, 0.0
        self.used, self.progressed = -1.0, time.monotonic()
        self.begun = self.looked = self.progressed
        self.signal = process.signal
        self.stopped = self.hung = False

    def read(self, file: int) -> bool:
        """Read what there is; return whether there was anything."""
        if file == self.ended:
            _, self.status, used = os.wait4(self.child, 0)
            self.seconds = used.ru_utime + used.ru_stime
        elif data := os.read(file, 1 << 16):
            self.said[file] += data[: max(KEPT - len(self.said[file]), 0)]
            return True
        self._close(file)
        return False

    def _close(self, file: int) -> None:
        self.selector.unregister(file)
        self.open.remove(file)
        os.close(file)

    def is_over(self) -> bool:
        """Look at it now and then; kill what hangs or has worked for long."""
        if self.ended not in self.open:
            return True
        now = time.monotonic()
        if self.signal and now - self.begun > self.process.after:
            os.killpg(self.child, self.signal)
            self.signal = None
        if now - self.looked > 2:
            self.looked, used = now, cpu_time(self.child)
            asks_server = self.process.program.endswith(".sh")  # which runs its commands for it
            if (work := cpu_time(os.getpid()) if asks_server else used) != self.used:
                self.used, self.progressed = work, now
            self.hung = self.hung or now - self.progressed > IDLE
            if self.hung or used > BUSY:
                self.stopped = True
                os.killpg(self.child, signal.SIGKILL)
        return False

    def end(self) -> Ended:
        """Read what is left, end what it left running, and return what became of it."""
        for file in list(self.open):
            os.set_blocking(file, False)
            with suppress(BlockingIOError):
                while self.read(file):
                    pass
        for file in list(self.open):  # a child of it has it open
            self._close(file)
        left = _is_left(self.child)
        with suppress(ProcessLookupError):
            os.killpg(self.child, signal.SIGKILL)
        code = None if self.stopped else os.waitstatus_to_exitcode(self.status)
        out, err = (bytes(said).decode("utf-8", "replace") for said in self.said.values())
        return Ended(code, out, err, self.hung, self.seconds, left and not self.stopped)


def _is_left(group: int) -> bool:
    """Return whether a process of a group outlives its leader for more than some seconds."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.1)
    return True


def _become(process: Process, pipes: list[int]) -> None:
    """Be the command from now on, with its files and limits."""
    os.setsid()
    out = pipes[0]
    if process.stdout is not None and process.stdout != CLOSED:
        out = os.open(process.stdout, os.O_WRONLY) if process.stdout else _without_reader()
    faulthandler.disable()
    atexit._clear()  # what this process does at its end
    multiprocessing.process._children.clear()
    atexit.register(multiprocessing.util._exit_function)
    os.chdir(process.folder)
    for number, file in enumerate([os.open(process.stdin, os.O_RDONLY), out, pipes[1]]):
        os.dup2(file, number)
    if process.stdout == CLOSED:
        os.close(1)
    sys.stdin = sys.__stdin__ = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.__stdout__ = (
        os.fdopen(1, "w", encoding="utf-8", closefd=False) if process.stdout != CLOSED else None
    )
    sys.stderr = sys.__stderr__ = os.fdopen(
        2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False
    )
    for handler in logging.root.handlers:
        if process.stdout == CLOSED and type(handler) is logging.StreamHandler:
            handler.setStream(sys.stderr)  # as logging does where there is no standard output
    os.environ.update(process.environment)
    sys.modules["__main__"].__spec__ = None  # what tells which program this is
    tempfile.tempdir = os.environ["TMPDIR"] = str(process.folder.parent)
    sys.executable = str(warm.activate() / "python")
    started = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    if process.most_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (process.most_bytes,) * 2)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    if process.most_files is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (process.most_files,) * 2)
    resource.setrlimit(resource.RLIMIT_AS, (started + process.memory,) * 2)
    if process.program.endswith(".sh"):
        os.execvp("bash", ["bash", process.program, *process.arguments])
    try:
        warm_server.become(process.program, list(process.arguments))
        code: object = 0
    except SystemExit as error:
        code = error.code
    except BaseException as error:
        sys.excepthook(*sys.exc_info())
        code = 1
        if isinstance(error, KeyboardInterrupt):
            code = 128 + signal.SIGINT  # Python ends by that signal
    _exit(code)


def _exit(code: object) -> None:
    """End as Python ends, without the time that it takes to forget all modules."""
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    atexit._run_exitfuncs()
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        sys.stderr.write(f"Exception ignored on flushing sys.stdout: {sys.exc_info()[1]}\n")
        code = 120
    os._exit(code or 0)


def _without_reader() -> int:
    read, write = os.pipe()
    os.close(read)
    return write
