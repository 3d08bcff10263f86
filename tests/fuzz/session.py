"""A session: the world, base cases, and what became of cases."""

import os
import shlex
import shutil
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import warm

from . import world
from .cases import Case
from .commands import Command
from .files import FULL
from .judge import State, find_failures, is_written, read_state
from .options import EITHER
from .process import CLOSED, Ended, Process, run, run_all

WORK = "work"  # folder of a case
QUIET = 141  # of a command whose reader has gone away


class Session:
    """Cases that run in folders of their own, and the failures that they found."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.world = folder, folder / "world"
        if not self.world.exists():
            world.build(self.world)
        self.whole: dict[str, State] = {}
        self.failures: dict[int, list[str]] = {}
        self.codes: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()

    def run(
        self, cases: Iterator[tuple[int, Case]], jobs: int, seed: int, show: bool = False
    ) -> None:
        """Run cases and print those that fail."""
        running: dict[int, tuple[Case, dict[str, bytes]]] = {}

        def begin() -> Iterator[tuple[int, Process]]:
            for number, case in cases:
                folder = self.make_folder(str(number))
                case.prepare(self.world, folder)
                running[number] = case, read_state(folder)
                yield number, make_process(case, folder)

        def done(number: int, ended: Ended) -> None:
            (case, before), folder = running.pop(number), self.folder / str(number) / WORK
            writes, after = case.command.writes.split(), read_state(folder)
            full = case.fault is not None and case.fault.most_bytes is not None
            find_whole = partial(self.find_whole, case.command)
            judged = ended, case.expected, before, after, writes, find_whole, full
            failures = find_failures(*judged)
            asked = dict(case.fault.limits).get("signal") if case.fault else None
            if asked and ended.code in (-asked, 128 + asked) and "Traceback" not in ended.err:
                failures = []
            if ended.left:
                failures.append("leaves a process behind")
            if ended.code == QUIET and case.fault and case.fault.stdout == "":
                failures = []
            if case.file and not ended.code and os.path.realpath(folder / case.file) == FULL:
                failures.append("exit 0 and its result is lost")
            self.codes[str(ended.code)] += 1
            self.seconds[case.command.name] += ended.seconds
            if show:
                print(ended.out[-3000:], ended.err[-6000:], f"exit code {ended.code}", sep="\n")
                print(f"cd {folder} && {format_command(case)}")
            else:
                shutil.rmtree(folder.parent, ignore_errors=True)
            if failures:
                self.failures[number] = failures
                print(f"FAILS {case.command.name}: {case.about}")
                for failure in failures:
                    print(f"      {failure}")
                print(f"      python -m tests.fuzz.run --seed {seed} --case {number}", flush=True)

        run_all(begin(), jobs, done)

    def make_folder(self, name: str) -> Path:
        """Return a path to work at, whose parent is empty: a case may write beside its folder."""
        parent = self.folder / name
        shutil.rmtree(parent, ignore_errors=True)
        parent.mkdir(parents=True)
        return parent / WORK

    def find_whole(self, command: Command) -> State:
        """Return the files that a command makes where nothing is wrong."""
        if command.name not in self.whole:
            case, folder = (
                Case(command, "", tuple(command.words()), EITHER),
                self.make_folder("base"),
            )
            case.prepare(self.world, folder)
            before = read_state(folder)
            ended = run(make_process(case, folder))
            assert ended.code == 0 or not command.works, f"{command.name} does not work: {ended}"
            after, writes = read_state(folder), command.writes.split()
            made = (name for name in after if after[name] != before.get(name))
            self.whole[command.name] = {n: after[n] for n in made if is_written(n, writes)}
        return self.whole[command.name]

    def summarise(self, seconds: float) -> str:
        kinds = Counter(f.partition(":")[0] for found in self.failures.values() for f in found)
        total = sum(self.codes.values())
        slow = ", ".join(f"{name} {s:.0f}" for name, s in self.seconds.most_common(8))
        return (
            f"{total} cases in {seconds:.0f} s ({self.seconds.total():.0f} s of CPUs: {slow}); "
            f"exit codes {dict(self.codes)}; {len(self.failures)} fail: {dict(kinds)}"
        )


def make_process(case: Case, folder: Path) -> Process:
    """Return the process of a case."""
    command, fault = case.command, case.fault
    environment = []
    if fault and fault.most_bytes is not None:  # a server would not inherit the limit
        paths = [part for part in os.environ["PATH"].split(":") if "warm-" not in part]
        environment.append(("PATH", ":".join([str(warm.BIN), *paths])))
    process = Process(
        command.program,
        case.words,
        folder,
        str(folder / command.stdin) if command.stdin else "/dev/null",
        fault.stdout if fault else None,
        fault.most_bytes if fault else None,
        tuple(environment),
    )
    return process._replace(**dict(fault.limits)) if fault else process


def format_command(case: Case) -> str:
    """Return the command line of a case, to be run in its folder."""
    program = case.command.program
    words = ["bash", program] if program.endswith(".sh") else [program]
    if program.startswith("fairseq_ext."):
        words = ["python", "-m", program]
    text = shlex.join([*words, *case.words])
    if case.command.stdin:
        text += f" <{case.command.stdin}"
    if case.fault and case.fault.stdout is not None:
        where = "&-" if case.fault.stdout == CLOSED else case.fault.stdout
        text += f" >{where}" if case.fault.stdout else " | true"
    if case.fault and case.fault.limits:
        text += f"  # {dict(case.fault.limits)}"
    if case.fault and case.fault.most_bytes is not None:
        text = f"(ulimit -f {case.fault.most_bytes // 1024}; {text})"
    return text
