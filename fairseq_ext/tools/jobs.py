"""Commands of fairseq, run by run and side by side: stamped when done, locked, stopped cleanly."""

import fcntl
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from fairseq_ext.errors import UsageError
from fairseq_ext.training_logs import parse_line

PLUGIN = Path(__file__).parents[1]
POLL, REPORT = 0.1, 3.0  # seconds between looks at the processes, and at their logs
PATIENCE = 10  # seconds that a process has to end
TAIL = 20_000  # bytes at the end of a log


# What a program is called, and the module, with what goes before the flags, that is run.
PROGRAMS = {
    "train": ("fairseq-train", ["fairseq_cli.train"]),
    "average": ("fairseq-ext average", ["fairseq_ext.cli", "average"]),
    "generate": ("fairseq-generate", ["fairseq_cli.generate"]),
}


class Step(NamedTuple):
    """One command of fairseq for one run.

    Its files are NAME.log and, holding the command, NAME.begun or NAME.done.

    Args:
        program: of PROGRAMS.
        flags: $RUN and $PLUGIN stand for their paths, so that a finished run may be moved.
        keeps: standard output is a result, NAME.txt, instead of a part of the log.
    """

    folder: Path
    name: str
    program: str
    flags: list[str]
    keeps: bool = False

    @property
    def called(self) -> str:
        return PROGRAMS[self.program][0]

    def file(self, ending: str) -> Path:
        return self.folder / f"{self.name}.{ending}"

    @property
    def log(self) -> Path:
        return self.file("log")

    def stamp(self) -> str:
        return f"{self.called} {shlex.join(self.flags)}\n"

    def is_done(self) -> bool:
        there = not self.keeps or self.file("txt").exists()
        return there and _read(self.file("done")) == self.stamp()

    def arguments(self) -> list[str]:
        places = {"$RUN": str(self.folder), "$PLUGIN": str(PLUGIN)}
        return [re.sub(r"\$(RUN|PLUGIN)\b", lambda m: places[m[0]], flag) for flag in self.flags]

    def command(self) -> str:
        return f"{self.called} {shlex.join(self.arguments())}"

    def execute(self, lock: int, env: dict[str, str]) -> Iterator[None]:
        """Yields until the command has ended; closing the iterator terminates it."""
        if _read(self.file("begun")) != self.stamp():
            self.log.unlink(missing_ok=True)  # of another command
        _write(self.file("begun"), self.stamp())
        output = self.file("part") if self.keeps else self.log
        with self.log.open("ab") as log, output.open("wb" if self.keeps else "ab") as out:
            start = log.tell()
            process = subprocess.Popen(
                [sys.executable, "-m", *PROGRAMS[self.program][1], *self.arguments()],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                env=env,
                pass_fds=[lock],  # so the run is locked as long as the process lives
                start_new_session=True,
            )
            try:
                while process.poll() is None:
                    yield
            finally:
                _end(process)
        if process.returncode:
            reason = _reason(process.returncode, _lines(self.log, start))
            raise UsageError(f"{self.called} failed ({reason}), see {self.log}")
        if self.keeps:
            output.replace(self.file("txt"))
        self.file("begun").replace(self.file("done"))


class Run(NamedTuple):
    """A folder, and what is to be done in it: first the training, then what needs it."""

    name: str
    folder: Path
    steps: list[Step]

    def missing(self) -> list[Step]:
        """The first step that is not done, and all after it."""
        done = [step.is_done() for step in self.steps]
        return self.steps[[*done, False].index(False) :]

    def check(self) -> None:
        """Raise UsageError if something else was trained here."""
        train, saved = self.steps[0], any(self.folder.glob("checkpoint*.pt"))
        before = _read(train.file("done")) or (saved and _read(train.file("begun"))) or None
        if before != train.stamp() and (before or saved):
            how = _difference(before, train.stamp()) if before else "by another command"
            raise UsageError(
                f"{self.folder} was trained {how}; give the same flags to go on, delete it to "
                "begin again, or choose another --out or name of the variant"
            )

    def carry_out(self, env: dict[str, str]) -> Iterator[None]:
        """Does what is missing, yielding while a command runs."""
        with _locked(self.folder) as lock:
            self.check()
            missing = self.missing()
            for step in missing:
                step.file("done").unlink(missing_ok=True)
            for step in missing:
                print(f"{self.name}: {step.called}, log {step.log}", flush=True)
                yield from step.execute(lock, env)

    def progress(self) -> str:
        """The last update in the log of the training; empty if there is none."""
        log = self.steps[0].log
        lines = _lines(log, log.stat().st_size - TAIL) if log.exists() else []
        records = [record for line in lines if (record := parse_line(line))]
        updates = [record for record in records if record.kind == "train_inner"]
        if not updates:
            return ""
        return f"{self.name}: update {updates[-1].update}, loss {updates[-1].values.get('loss')}"


def work_off(runs: Sequence[Run], jobs: int) -> dict[str, str]:
    """Carry out the runs, so many side by side; name -> reason of those that failed.

    SIGINT, SIGTERM and SIGHUP terminate what is running and raise SystemExit.
    """
    waiting, failed = deque(runs), {}
    shown, reported = {run.name: run.progress() for run in runs}, time.monotonic()
    workers = [_work(waiting, failed, environment(slot, jobs)) for slot in range(jobs)]
    with _signals() as arrived:
        try:
            while workers and not arrived:
                workers = [worker for worker in workers if next(worker, "ended") is None]
                if time.monotonic() > reported + REPORT:
                    _report(runs, shown)
                    reported = time.monotonic()
                time.sleep(POLL)
        finally:
            for worker in workers:
                worker.close()
    if arrived:
        print("interrupted: the same command goes on from the last checkpoints", file=sys.stderr)
        raise SystemExit(128 + arrived[0])
    return failed


def _work(waiting: deque[Run], failed: dict[str, str], env: dict[str, str]) -> Iterator[None]:
    while waiting:
        run = waiting.popleft()
        try:
            yield from run.carry_out(env)
            print(f"{run.name}: done", flush=True)
        except (UsageError, OSError) as error:
            failed[run.name] = str(error)
            print(f"{run.name}: {error}", flush=True)


def _report(runs: Sequence[Run], shown: dict[str, str]) -> None:
    for run in runs:
        if (progress := run.progress()) != shown[run.name]:
            shown[run.name] = progress
            print(progress, flush=True)


def environment(slot: int, jobs: int) -> dict[str, str]:
    """The variables of what runs in a slot: its share of the cores, a GPU of its own."""
    cores = len(os.sched_getaffinity(0))
    env = {"OMP_NUM_THREADS": str(max(1, cores // jobs)), **os.environ}
    if jobs > 1:
        import torch  # slow

        if count := torch.cuda.device_count():
            devices = env.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
            env["CUDA_VISIBLE_DEVICES"] = devices.split(",")[slot % count]
    return env


@contextmanager
def _signals() -> Iterator[list[int]]:
    """The signals to stop that arrived; collected, so that none cuts the start of a process."""
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
def _locked(folder: Path) -> Iterator[int]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError("another process is at work on it; wait until that ends") from None
        yield file.fileno()


def _end(process: subprocess.Popen) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)


def _reason(code: int, lines: list[str]) -> str:
    if code < 0:
        return signal.Signals(-code).name
    lines = [line for line in lines if line.strip()] or ["no output"]
    errors = [line for line in lines if re.search(r"(error|exception):", line, re.I)]
    return (errors or lines)[-1].strip()[:300]


def _difference(before: str, now: str) -> str:
    """What one command has and the other has not, or that the order differs."""
    old, new = (re.split(r" (?=--)", command.strip()) for command in (before, now))
    parts = [("with", old, new), ("without", new, old)]
    missing = [(word, [flag for flag in a if flag not in b]) for word, a, b in parts]
    said = " and ".join(f"{word} {' '.join(flags)}" for word, flags in missing if flags)
    return said or "with the same flags in another order"


def _lines(log: Path, start: int) -> list[str]:
    """The lines from a byte on that are complete."""
    with log.open("rb") as file:
        file.seek(max(0, start))
        return file.read().decode("utf-8", "replace").split("\n")[:-1]


def _read(path: Path) -> str | None:
    return path.read_text("utf-8") if path.exists() else None


def _write(path: Path, text: str) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, "utf-8")
    part.replace(path)
