"""Candidates against a named peer, interleaved in one run: ratios, noise, machine, verdict.

The peer is measured twice, the second time as AGAIN. What that ratio differs from 1 by is noise,
and beyond a stated amount of it no verdict is given.
"""

import gc
import json
import math
import os
import platform
import random
import shlex
import subprocess
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from fairseq_ext.errors import UsageError

AGAIN = "again"
ABSENT = "–"  # a ratio of what does not fit into memory, or has no meaning
WARMUP = 2  # rounds
LEAST = 0.05  # seconds of one timing; work that is shorter is repeated within it
MIB = 2**20
TOO_NOISY = 3  # exit code

Clock = Callable[[], float]
Work = Callable[[int], object]
"""What is timed; it is given the round, below 0 while warming up."""


class Ratio(NamedTuple):
    """Quartiles of candidate / peer, both of the same round, over the rounds."""

    low: float
    median: float
    high: float

    def __str__(self) -> str:
        if self.low == self.high:
            return f"{self.median:.3f}"
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Row:
    """One size: the median of the peer, in the unit of the table, and what the others are of it."""

    label: str
    peer: float
    ratios: Mapping[str, Ratio]


@dataclass(frozen=True)
class Table:
    """Rows on one peer."""

    title: str
    peer: str
    unit: str
    rows: Sequence[Row]

    def markdown(self) -> str:
        names = list(dict.fromkeys(name for row in self.rows for name in row.ratios))
        lines = [["", f"{self.peer}, {self.unit}", *names], ["---", *["---:"] * (len(names) + 1)]]
        for row in self.rows:
            ratios = [str(row.ratios.get(name, ABSENT)) for name in names]
            lines.append([row.label, f"{row.peer:,.4g}", *ratios])
        return "\n".join([f"### {self.title}", "", *(f"| {' | '.join(x)} |" for x in lines)])


class Aim(NamedTuple):
    """The median ratio of a candidate in a row is to be at most `limit`."""

    row: str
    candidate: str
    limit: float


class Quiet(NamedTuple):
    """The noise allowed with a verdict: AGAIN's median off 1, and its quartiles off each other."""

    deviation: float
    spread: float

    def holds(self, row: Row) -> bool:
        again = row.ratios.get(AGAIN, Ratio(1, 1, 1))
        off, apart = abs(again.median - 1), again.high - again.low
        return off <= self.deviation and apart <= self.spread


def interleave(
    candidates: Mapping[str, Work], peer: str, rounds: int, clock: Clock, seed: int, label: str
) -> dict[str, list[float]]:
    """Seconds of a call of each candidate in each round.

    In a round all run in turn, in an order of its own, so that a drift of the machine hits all
    alike. Garbage is collected between rounds only.
    """
    order, shuffle, calls = list(candidates), random.Random(seed).shuffle, 1
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    gc.disable()
    try:
        for turn in tqdm(range(-WARMUP, rounds), label, disable=None, leave=False):
            gc.collect()
            shuffle(order)
            for name in order:
                begin = clock()
                for _ in range(calls):
                    candidates[name](turn)
                seconds[name].append((clock() - begin) / calls)
            if turn < 0:
                calls = math.ceil(LEAST / seconds[peer][-1])
    finally:
        gc.enable()
    return {name: each[WARMUP:] for name, each in seconds.items()}


def compare(label: str, measured: Mapping[str, Sequence[float]], peer: str, scale: float) -> Row:
    """Measurements in a common order of rounds as ratios; `scale` turns them into the unit."""
    base = np.array(measured[peer])
    ratios = {
        name: Ratio(*np.quantile(np.array(each) / base, [0.25, 0.5, 0.75]).tolist())
        for name, each in measured.items()
        if name != peer
    }
    return Row(label, float(np.median(base)) * scale, ratios)


def extra_memory(work: Callable[[], object], device: str) -> float:
    """Peak memory in MiB while `work` runs, beyond what the process held before.

    On a CPU the resident set: call it in a process of its own, which has no freed memory left.
    """
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        return (torch.cuda.max_memory_allocated() - before) / MIB
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    before = _resident("VmRSS")
    work()
    return _resident("VmHWM") - before


def _resident(field: str) -> float:
    """MiB. Not by getrusage, whose peak a process inherits from the one that started it."""
    status = Path("/proc/self/status").read_text()
    return next(int(x.split()[1]) for x in status.split("\n") if x.startswith(field)) / 1024


# Command line.


def parser(text: str, example: str) -> ArgumentParser:
    """A parser with the options that all benchmarks have."""
    made = ArgumentParser(
        description=text,
        epilog=f"example:\n  {example}\n\nexit code: 0 measured, whether aims are met or missed; "
        f"{TOO_NOISY} measured, but too noisy for a verdict",
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    made.add_argument("--threads", type=positive, help="of torch (default: as it is set up)")
    made.add_argument(
        "--clock",
        choices=("cpu", "wall"),
        help="cpu: time of the process, without its waits for a core (default "
        "with one thread); wall: elapsed time (default with more, and on a GPU)",
    )
    made.add_argument("--rounds", type=positive, default=15, help="(default: %(default)s)")
    made.add_argument("--seed", type=int, default=1, help="(default: %(default)s)")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    return made


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a whole number from 1 upwards")
    return int(text)


def prepare(given: Namespace) -> None:
    """Check the common options, settle those not given, and set torch up.

    Raises:
        UsageError: they cannot be used here.
    """
    if given.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device is cuda and torch finds no GPU; leave it out to measure the CPU")
    if given.json and not given.json.absolute().parent.is_dir():
        raise UsageError(f"--json is {given.json}, whose folder does not exist; make it first")
    if given.threads:
        torch.set_num_threads(given.threads)
    given.threads = torch.get_num_threads()
    alone = given.device == "cpu" and given.threads == 1
    given.clock = given.clock or ("cpu" if alone else "wall")
    if given.clock == "cpu" and given.device == "cuda":
        raise UsageError("--clock cpu does not see the work of a GPU; give --clock wall")
    torch.manual_seed(given.seed)


def clock(given: Namespace) -> Clock:
    def wall() -> float:
        if given.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    return time.process_time if given.clock == "cpu" else wall


# Report.


def machine(given: Namespace) -> dict[str, str]:
    """What the numbers depend on, in words."""
    load = ", ".join(f"{x:.2f}" for x in os.getloadavg())
    found = {
        "CPU": f"{_cpu()}, {os.cpu_count()} cores, torch threads {given.threads}, load {load}",
        "clock": "process CPU time" if given.clock == "cpu" else "wall",
        "versions": f"Python {platform.python_version()}, torch {torch.__version__}, "
        + ", ".join(f"{name} {_version(name)}" for name in ("fairseq-fixed", "triton")),
        "commit": _commit(),
        "command": shlex.join(["python", *sys.argv]),
        "rounds": f"{given.rounds}, medians with quartiles in brackets, seed {given.seed}",
    }
    if given.device == "cuda":
        found["GPU"] = torch.cuda.get_device_name()
    return found


def _cpu() -> str:
    with suppress(OSError, StopIteration), Path("/proc/cpuinfo").open() as lines:
        return next(x.split(":")[1].strip() for x in lines if x.startswith("model name"))
    return platform.processor() or platform.machine()


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"


def _commit() -> str:
    def git(*words: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = " + uncommitted changes" if git("status", "--porcelain") else ""
        return git("rev-parse", "--short", "HEAD") + changed
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def verdict(tables: Sequence[Table], aims: Sequence[Aim], quiet: Quiet) -> tuple[list[str], int]:
    """Lines that say which aims were met, or why that cannot be said; and the exit code."""
    rows = {row.label: row for table in tables for row in table.rows}
    noisy = [f"{row.label} ({row.ratios[AGAIN]})" for row in rows.values() if not quiet.holds(row)]
    if noisy:
        allowed = f"{AGAIN} within {quiet.deviation} of 1, quartiles within {quiet.spread}"
        why = f"the machine is too noisy at {', '.join(noisy)}; needed is {allowed}"
        return [f"No verdict: {why}."], TOO_NOISY
    lines = []
    for aim in aims:
        ratio = rows[aim.row].ratios.get(aim.candidate) if aim.row in rows else None
        if ratio is not None:
            said = "met" if ratio.median <= aim.limit else "missed"
            lines.append(f"- {said}: {aim.candidate} at {aim.row} is {ratio}, aim {aim.limit}")
    return lines, 0


def report(
    given: Namespace, facts: dict[str, str], tables: list[Table], aims: list[Aim], quiet: Quiet
) -> int:
    """Print everything as Markdown, write it as JSON if asked for, and return the exit code."""
    facts = {**machine(given), **facts}
    lines, code = verdict(tables, aims, quiet)
    blocks = ["\n".join(f"- {key}: {value}" for key, value in facts.items())]
    blocks += [table.markdown() for table in tables if table.rows]
    print("\n\n".join([*blocks, "\n".join(lines)]))
    if given.json:
        content = {"facts": facts, "tables": [asdict(x) for x in tables], "verdict": lines}
        partial = given.json.with_name(given.json.name + ".part")
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        partial.replace(given.json)
    return code
