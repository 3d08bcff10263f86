"""Measurements of candidates against a named peer, interleaved in one run.

Results are ratios to the peer. The peer is measured twice, the second time as AGAIN, whose
difference from 1 is noise. Beyond a stated amount of noise no verdict is given.
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
from fairseq_ext.files import atomic_writer

AGAIN = "again"
ABSENT = "–"  # a ratio that has no meaning, or of work that does not fit into memory
WARMUP = 2  # rounds
LEAST = 0.05  # seconds of one timing; work that is shorter is repeated within it
MIB = 2**20
TOO_NOISY = 3  # exit code

Clock = Callable[[], float]
Work = Callable[[int], object]
"""Timed work; its argument is the number of the round, below 0 while warming up."""


class Ratio(NamedTuple):
    """Quartiles over the rounds of candidate / peer, both of the same round."""

    low: float
    median: float
    high: float

    def __str__(self) -> str:
        if self.low == self.high:
            return f"{self.median:.3f}"
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Row:
    """Result of one size: the median of the peer in the unit of the table, and ratios to it."""

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
    """Upper limit of the median ratio of a candidate in a row."""

    row: str
    candidate: str
    limit: float


class Quiet(NamedTuple):
    """Noise allowed with a verdict: deviation of AGAIN's median from 1, spread of its quartiles."""

    deviation: float
    spread: float

    def holds(self, row: Row) -> bool:
        again = row.ratios.get(AGAIN, Ratio(1, 1, 1))
        off, apart = abs(again.median - 1), again.high - again.low
        return off <= self.deviation and apart <= self.spread


def interleave(
    candidates: Mapping[str, Work], peer: str, rounds: int, clock: Clock, seed: int, label: str
) -> dict[str, list[float]]:
    """Return the seconds of a call of each candidate in each round.

    All candidates run in turn, in an order of each round's own, so that a drift of the machine hits
    all alike. Garbage is collected between rounds only.
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
    """Return ratios of measurements to the peer, round by round; `scale` turns it into the unit."""
    base = np.array(measured[peer])
    ratios = {
        name: Ratio(*np.quantile(np.array(each) / base, [0.25, 0.5, 0.75]).tolist())
        for name, each in measured.items()
        if name != peer
    }
    return Row(label, float(np.median(base)) * scale, ratios)


def extra_memory(work: Callable[[], object], device: str) -> float:
    """Return the peak memory in MiB while `work` runs, beyond what the process held before.

    On a CPU this is the resident set: call it in a process of its own, which holds no freed memory.
    """
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        return (torch.cuda.max_memory_allocated() - before) / MIB
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = _resident("VmRSS")
    work()
    return _resident("VmHWM") - before


def _resident(field: str) -> float:
    """Return MiB; getrusage would give a peak that a process inherits from its parent."""
    status = Path("/proc/self/status").read_text()
    return next(int(x.split()[1]) for x in status.split("\n") if x.startswith(field)) / 1024


# Command line.


def build_parser(
    text: str, example: str, devices: Sequence[str] = ("cpu", "cuda")
) -> ArgumentParser:
    """Return a parser with the options that all benchmarks have."""
    parser = ArgumentParser(
        description=text,
        epilog=f"example:\n  {example}\n\nexit code: 0 measured, whether aims are met or missed; "
        f"{TOO_NOISY} measured, but too noisy for a verdict",
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--device", choices=devices, default="cpu")
    parser.add_argument("--threads", type=positive, help="of torch (default: as it is set up)")
    parser.add_argument(
        "--clock",
        choices=("cpu", "wall"),
        help="cpu: time of the process, without its waits for a core (default "
        "with one thread); wall: elapsed time (default with more, and on a GPU)",
    )
    parser.add_argument("--rounds", type=positive, default=15, help="(default: %(default)s)")
    parser.add_argument("--seed", type=not_negative, default=1, help="(default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    return parser


def not_negative(text: str, least: int = 0) -> int:
    if not text.isdecimal() or int(text) < least:
        raise ArgumentTypeError(f"{text!r} is not a whole number from {least} upwards")
    return int(text)


def positive(text: str) -> int:
    return not_negative(text, 1)


def prepare(args: Namespace) -> None:
    """Check the common options, set those that were left out, and set torch up.

    Raises:
        UsageError: they cannot be used here.
    """
    if args.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device is cuda and torch finds no GPU; leave it out to measure the CPU")
    if args.json and not args.json.absolute().parent.is_dir():
        raise UsageError(f"--json is {args.json}, whose folder does not exist; make it first")
    if args.threads:
        torch.set_num_threads(args.threads)
    args.threads = torch.get_num_threads()
    alone = args.device == "cpu" and args.threads == 1
    args.clock = args.clock or ("cpu" if alone else "wall")
    if args.clock == "cpu" and args.device == "cuda":
        raise UsageError("--clock cpu does not see the work of a GPU; give --clock wall")
    torch.manual_seed(args.seed)


def clock(args: Namespace) -> Clock:
    def wall() -> float:
        if args.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    return time.process_time if args.clock == "cpu" else wall


# Report.


def machine(args: Namespace) -> dict[str, str]:
    """Return what the numbers depend on, in words."""
    load = ", ".join(f"{x:.2f}" for x in os.getloadavg())
    facts = {
        "CPU": f"{_cpu()}, {os.cpu_count()} cores, torch threads {args.threads}, load {load}",
        "clock": "process CPU time" if args.clock == "cpu" else "wall",
        "versions": f"Python {platform.python_version()}, torch {torch.__version__}, "
        + ", ".join(f"{name} {_version(name)}" for name in ("fairseq-fixed", "triton")),
        "commit": _commit(),
        "command": shlex.join(["python", *sys.argv]),
        "rounds": f"{args.rounds}, medians with quartiles in brackets, seed {args.seed}",
    }
    if args.device == "cuda":
        facts["GPU"] = torch.cuda.get_device_name()
    return facts


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

    if commit := os.environ.get("FAIRSEQ_EXT_COMMIT"):  # of a copy without its repository
        return commit
    try:
        changed = " + uncommitted changes" if git("status", "--porcelain") else ""
        return git("rev-parse", "--short", "HEAD") + changed
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def verdict(tables: Sequence[Table], aims: Sequence[Aim], quiet: Quiet) -> tuple[list[str], int]:
    """Return lines that say which aims were met, or why there is no verdict, and the exit code."""
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
            outcome = "met" if ratio.median <= aim.limit else "missed"
            lines.append(f"- {outcome}: {aim.candidate} at {aim.row} is {ratio}, aim {aim.limit}")
    return lines, 0


def report(
    args: Namespace, facts: dict[str, str], tables: list[Table], aims: list[Aim], quiet: Quiet
) -> int:
    """Print everything as Markdown, write it as JSON if asked for, and return the exit code."""
    facts = {**machine(args), **facts}
    lines, code = verdict(tables, aims, quiet)
    blocks = ["\n".join(f"- {key}: {value}" for key, value in facts.items())]
    blocks += [table.markdown() for table in tables if table.rows]
    print("\n\n".join([*blocks, "\n".join(lines)]))
    if args.json:
        content = {"facts": facts, "tables": [asdict(x) for x in tables], "verdict": lines}
        with atomic_writer(args.json) as file:
            file.write(json.dumps(content, indent=1) + "\n")
    return code
