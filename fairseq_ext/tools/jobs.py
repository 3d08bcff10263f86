"""Commands of fairseq and jobs of them: run side by side, marked, locked, and stopped cleanly."""

import fcntl
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_ext.errors import UsageError
from fairseq_ext.files import write_lines
from fairseq_ext.places import open_unlinked
from fairseq_ext.tools.command_lines import PLUGIN, describe_difference, drop_world_size
from fairseq_ext.training_logs import parse_line

POLL, REPORT = 0.1, 3.0  # seconds between looks at the processes, and at their logs
PATIENCE = 10  # seconds that a process has to end
TAIL = 20_000  # bytes at the end of a log

Work = Generator[None, None, None]
"""Work that yields while a command runs; closing it terminates the command."""

# The module that is run for a program, with what comes before the flags.
PROGRAMS = {
    "fairseq-train": ["fairseq_cli.train"],
    "fairseq-ext average": ["fairseq_ext.cli", "average"],
    "fairseq-ext predict": ["fairseq_ext.cli", "predict"],
    "fairseq-generate": ["fairseq_cli.generate"],
}


def share_cores(processes: int) -> dict[str, str]:
    """Return the OMP_NUM_THREADS of each of several processes, unless it is set already."""
    cores = len(os.sched_getaffinity(0))
    threads = {"OMP_NUM_THREADS": str(max(1, cores // processes))}
    return {} if "OMP_NUM_THREADS" in os.environ else threads


class Step(NamedTuple):
    """One command of fairseq in a job.

    Its files are NAME.log and, holding the command, NAME.begun or NAME.done.

    Attributes:
        folder: the folder of the job.
        name: the name of its files.
        program: a name of PROGRAMS.
        flags: arguments; $RUN and $PLUGIN stand for their paths, so that a job may be moved.
        keeps: whether standard output is a result, NAME.txt, instead of a part of the log.
        reads: a file that may have changed since.
    """

    folder: Path
    name: str
    program: str
    flags: list[str]
    keeps: bool = False
    reads: Path | None = None

    def file(self, ending: str) -> Path:
        """Return the path of one of its files."""
        return self.folder / f"{self.name}.{ending}"

    def stamp(self) -> str:
        """Return the contents of NAME.done: the command, independent of folder and machine."""
        return drop_world_size(f"{self.program} {shlex.join(self.flags)}")

    def is_done(self) -> bool:
        """Return whether this very command has ended without an error."""
        has_result = not self.keeps or self.file("txt").exists() and not self._is_outdated()
        return has_result and _read(self.file("done")) == self.stamp()

    def _is_outdated(self) -> bool:
        """Return whether the file that it reads is newer than its result."""
        if self.reads is None or not self.reads.is_file():
            return False
        return self.reads.stat().st_mtime > self.file("txt").stat().st_mtime

    def arguments(self) -> list[str]:
        """Return the flags with paths in place of $RUN and $PLUGIN."""
        paths = {"$RUN": str(self.folder), "$PLUGIN": str(PLUGIN)}
        return [re.sub(r"\$(RUN|PLUGIN)\b", lambda m: paths[m[0]], flag) for flag in self.flags]

    def command(self) -> str:
        """Return the command line."""
        return f"{self.program} {shlex.join(self.arguments())}"

    def execute(self, lock: int, env: dict[str, str]) -> Work:
        """Run the command; raise UsageError if it fails.

        Args:
            lock: file descriptor of the job's lock, which the process holds as long as it lives.
            env: its environment.
        """
        log_file = self.file("log")
        if _read(self.file("begun")) != self.stamp():
            log_file.unlink(missing_ok=True)  # of another command
        write_lines(self.file("begun"), [self.stamp()], keep_link=False)
        output = self.file("part") if self.keeps else log_file
        with (
            open_unlinked(log_file, "ab") as log,
            open_unlinked(output, "wb" if self.keeps else "ab") as out,
        ):
            start = log.tell()
            command = [sys.executable, "-m", *PROGRAMS[self.program], *self.arguments()]
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": log}
            process = subprocess.Popen(
                command, **streams, env=env, pass_fds=[lock], start_new_session=True
            )
            try:
                while process.poll() is None:
                    yield
            finally:
                _terminate(process)
        if process.returncode:
            reason = _find_reason(process.returncode, _read_lines(log_file, start))
            raise UsageError(f"{self.program} failed ({reason}), see {log_file}")
        if self.keeps:
            output.replace(self.file("txt"))
        self.file("begun").replace(self.file("done"))


class Job(NamedTuple):
    """A folder and the steps to do in it: first the training, then what needs it."""

    name: str
    folder: Path
    steps: list[Step]

    def missing(self) -> list[Step]:
        """Return the first step that is not done, and all after it."""
        done = [step.is_done() for step in self.steps]
        return self.steps[[*done, False].index(False) :]

    def check(self) -> None:
        """Raise UsageError if something else was trained in this folder."""
        train, saved = self.steps[0], any(self.folder.glob("checkpoint*.pt"))
        before = _read(train.file("done")) or (saved and _read(train.file("begun"))) or None
        if before != train.stamp() and (before or saved):
            how = describe_difference(before, train.stamp()) if before else "by another command"
            raise UsageError(
                f"{self.folder} was trained {how}; give the same flags to go on, delete it to "
                "begin again, or choose another --out or name of the variant"
            )

    def execute(self, env: dict[str, str]) -> Work:
        """Do the missing steps; raise UsageError if one fails."""
        with _lock(self.folder) as lock:
            self.check()
            missing = self.missing()
            for step in missing:
                step.file("done").unlink(missing_ok=True)
                if step.keeps:
                    step.file("txt").unlink(missing_ok=True)  # of other flags, or another model
            for step in missing:
                print(f"{self.name}: {step.program}, log {step.file('log')}", flush=True)
                yield from step.execute(lock, env)

    def progress(self) -> str:
        """Return the last update in the log of the training, or an empty text."""
        log = self.steps[0].file("log")
        lines = _read_lines(log, log.stat().st_size - TAIL) if log.exists() else []
        for record in map(parse_line, reversed(lines)):
            if record and record.kind == "train_inner":
                return f"{self.name}: update {record.update}, loss {record.values.get('loss')}"
        return ""


def run_jobs(jobs: Sequence[Job], count: int) -> dict[str, str]:
    """Run the jobs, `count` of them side by side; return name -> reason of jobs that failed.

    SIGINT, SIGTERM and SIGHUP terminate what is running and raise SystemExit.
    """
    waiting = deque(jobs)
    failed: dict[str, str] = {}
    shown, reported = {job.name: job.progress() for job in jobs}, time.monotonic()
    workers = [_work(waiting, failed, make_environment(slot, count)) for slot in range(count)]
    with _catch_signals() as arrived:
        try:
            while workers and not arrived:
                workers = [worker for worker in workers if next(worker, "ended") is None]
                if time.monotonic() > reported + REPORT:
                    _report_progress(jobs, shown)
                    reported = time.monotonic()
                time.sleep(POLL)
        finally:
            for worker in workers:
                worker.close()
    if arrived:
        print("interrupted: the same command goes on from the last checkpoints", file=sys.stderr)
        raise SystemExit(128 + arrived[0])
    return failed


def _work(waiting: deque[Job], failed: dict[str, str], env: dict[str, str]) -> Work:
    """Run waiting jobs, one after the other."""
    while waiting:
        job = waiting.popleft()
        try:
            yield from job.execute(env)
            print(f"{job.name}: done", flush=True)
        except (UsageError, OSError) as error:
            failed[job.name] = str(error)
            print(f"{job.name}: {error}", flush=True)


def _report_progress(jobs: Sequence[Job], shown: dict[str, str]) -> None:
    for job in jobs:
        if (progress := job.progress()) != shown[job.name]:
            shown[job.name] = progress
            print(progress, flush=True)


def make_environment(slot: int, count: int) -> dict[str, str]:
    """Return the environment of the jobs in a slot: a share of the cores, a GPU of its own."""
    env = share_cores(count) | os.environ
    if count > 1:
        import torch  # slow

        if gpus := torch.cuda.device_count():
            devices = (env.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))).split(
                ","
            )
            if not devices[0].startswith("MIG-"):  # of which a process counts one
                devices = devices[:gpus]
            env["CUDA_VISIBLE_DEVICES"] = devices[slot % len(devices)]
    return env


@contextmanager
def _catch_signals() -> Iterator[list[int]]:
    """Collect the signals to stop in a list, so that none cuts the start of a process."""
    arrived: list[int] = []
    before = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, lambda number, _: arrived.append(number))
    try:
        yield arrived
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _lock(folder: Path) -> Iterator[int]:
    folder.mkdir(parents=True, exist_ok=True)
    with open_unlinked(folder / ".lock", "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError("another process is at work on it; wait until that ends") from None
        yield file.fileno()


def _terminate(process: subprocess.Popen) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)


def _find_reason(code: int, lines: list[str]) -> str:
    """Return why a process failed: its signal, or the last line of its log with an error."""
    if code < 0:
        return signal.Signals(-code).name
    lines = [line for line in lines if line.strip()] or ["no output"]
    errors = [line for line in lines if re.search(r"(error|exception):", line, re.I)]
    return (errors or lines)[-1].strip()[:300]


def _read_lines(log: Path, start: int) -> list[str]:
    """Return the complete lines of a log from a byte on."""
    with log.open("rb") as file:
        file.seek(max(0, start))
        return file.read().decode("utf-8", "replace").split("\n")[:-1]


def _read(path: Path) -> str | None:
    """Return a stamp, if there is one."""
    return drop_world_size(path.read_text("utf-8").removesuffix("\n")) if path.exists() else None
