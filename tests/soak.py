r"""Disturb trainings of all families in all ways, and compare their ends with undisturbed ones.

A seed draws a family and its disturbances: the training is killed (by SIGKILL or SIGTERM) or
interrupted, has too little memory or too few files, its disk is full, its standard output is closed
or full, its data change, or the same command runs beside it. The same command is run again until it
ends. Its parameters have to be those of a training that nothing disturbed, bit for bit, and so has
what the model generates, predicts or scores, which is disturbed too. What a disturbed command
leaves under a final name is whole, and it says one sentence or nothing, and leaves no process. A
disk is a small file system where one may be mounted, and otherwise a limit of the size of files.
Then many lines go through the commands that read text: see many_lines.py.

Example:
  python tests/soak.py --minutes 30 --seed 1 --out soak.md
"""

import argparse
import gc
import hashlib
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import many_lines  # noqa: E402
import torch  # noqa: E402
import warm  # noqa: E402
import warm_server  # noqa: E402

from tests.fuzz import judge, world  # noqa: E402
from tests.fuzz.options import EITHER  # noqa: E402
from tests.fuzz.process import CLOSED, Ended, Process, run, run_all  # noqa: E402

UPDATES = 30
SIGNALS = {"SIGKILL": SIGKILL, "SIGTERM": SIGTERM, "SIGINT": SIGINT}
STREAMS = {"closed output": CLOSED, "full output": "/dev/full", "no reader": ""}
DISTURBANCES = (*SIGNALS, *STREAMS, "too little memory", "too few files", "full disk")
DISTURBANCES += ("two at once", "changed data", "nothing")
MOST = 4  # disturbances of one training
FAMILIES = [name for name in world.TRAININGS if name != "lm"]
TRANSLATION = "una hna asa roles".split()
LABELLED = "multiple_choice sequence_tagging span_extraction".split()
LABELLED += ["sentence_classification", "sentence_regression"]
TASKS = {"sop": "masked_lm_sop", "detect": "replaced_token_detection"}
RESULTS = re.compile(r"^[HDP]-.*|^\{.*|\| valid \| \{.*", re.M)
"""Lines of what commands say that are the same whenever they say it."""


class Undisturbed(NamedTuple):
    """The end of a training that nothing disturbed."""

    parameters: str
    said: str
    seconds: float
    bytes: int  # of its checkpoint


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--minutes", type=float, default=30, help="default: 30")
    parser.add_argument("--seed", type=int, default=1, help="default: 1")
    parser.add_argument("--lines", type=int, default=100_000, help="default: 100,000; 0: none")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the table there")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="soak-")).resolve()
    os.environ |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    warm.activate()
    warm_server.import_everything()
    gc.freeze()
    try:
        soak = Soak(folder, random.Random(args.seed))
        soak.run(args.minutes * 60)
        if args.lines:
            soak.read_many(args.lines)
    finally:
        unmount(folder / "disk")
        shutil.rmtree(folder, ignore_errors=True)
    table = soak.describe(args.seed, args.minutes)
    print(table, end="")
    if args.out:
        args.out.write_text(table, "utf-8")
    sys.exit(bool(soak.failures))


class Soak:
    """Trainings that are disturbed, and what became of them."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder, self.chance = folder, chance
        self.world = world.build(folder / "world")
        self.ends: dict[str, Undisturbed] = {}
        self.survived: dict[str, Counter[str]] = defaultdict(Counter)
        self.failures: list[str] = []
        self.rows: list[str] = []  # of commands that read many lines
        self.disk = mount(folder / "disk", "16m")

    def run(self, seconds: float) -> None:
        """Disturb trainings until the time is over."""
        begun = time.monotonic()
        while time.monotonic() - begun < seconds:
            family = self.chance.choice(FAMILIES)
            if family not in self.ends:
                self.ends[family] = self.end_undisturbed(family)
            before = len(self.failures)
            self.disturb(family)
            ended = "differs" if len(self.failures) > before else "the same end"
            print(f"{time.monotonic() - begun:5.0f} s  {family}: {ended}", flush=True)

    def read_many(self, count: int) -> None:
        """Give many lines to each command that reads text."""
        self.rows, failures = many_lines.read_many(self.world, count, self.chance)
        self.failures += failures

    def end_undisturbed(self, family: str) -> Undisturbed:
        """Train, and ask the model; no word of the log may differ later."""
        out = self.new_folder()
        begun = time.monotonic()
        ended = self.train(family, out)
        seconds = time.monotonic() - begun
        if ended.code:
            raise SystemExit(f"{family} cannot be trained: {ended.err[-2000:]}")
        file = out / "checkpoint_last.pt"
        return Undisturbed(digest(file), self.ask(family, file), seconds, file.stat().st_size)

    def disturb(self, family: str) -> None:
        """Disturb a training some times, let it end, and compare."""
        out, end = self.new_folder(), self.ends[family]
        events = []
        for _ in range(self.chance.randint(1, MOST)):
            event = self.chance.choice(DISTURBANCES[:-1])
            ended = self.train(family, out, event)
            events.append(event if ended.code else "nothing")
            self.check(f"{family}, {event}", ended, out)
        ended = self.train(family, out)
        file = out / "checkpoint_last.pt"
        same = not ended.code and digest(file) == end.parameters
        if not same:
            self.failures.append(f"{family} after {events}: {last_line(ended) or 'another end'}")
        elif self.ask(family, file, self.chance.choice(DISTURBANCES)) != end.said:
            self.failures.append(f"{family} after {events}: its model says something else")
        for event in events:
            self.survived[event][family] += same
            self.survived[event]["all"] += 1

    def train(self, family: str, out: Path, event: str = "nothing") -> Ended:
        """Train or continue, with one disturbance."""
        given = world.TRAININGS[family].replace("--max-update 1 ", f"--max-update {UPDATES} ")
        given += f" --save-dir {out} --save-interval-updates 4 --keep-interval-updates 2"
        seconds, size = self.ends[family][2:] if family in self.ends else (1.0, 1)
        return self.call("fairseq-train", given, event, seconds, size)

    def call(self, program: str, given: str, event: str, seconds: float, size: int) -> Ended:
        words = [word.format(plugin=world.PLUGIN) for word in given.split()]
        limits: dict[str, object] = {}
        if event.startswith("SIG"):
            limits["signal"] = SIGNALS[event]
            limits["after"] = self.chance.uniform(0, 0.9 * seconds)
        elif event == "too little memory":
            limits["memory"] = self.chance.randrange(1 << 20, 50 << 20)
        elif event in STREAMS:
            limits["stdout"] = STREAMS[event]
        elif event == "too few files":
            limits["most_files"] = self.chance.randrange(5, 40)
        elif event == "full disk" and self.disk:
            fill(self.disk, self.chance.randrange(size))
        elif event == "full disk":
            limits["most_bytes"] = self.chance.randrange(2 * size)
        process = Process(program, words, self.world, **limits)
        try:
            if event == "two at once":
                return self.run_two(process)
            if event == "changed data":
                return self.run_on_changed_data(process, self.chance.uniform(0, 0.9 * seconds))
            return run(process)
        finally:
            if self.disk:
                (self.disk / "fill").unlink(missing_ok=True)

    def run_two(self, process: Process) -> Ended:
        """Run a command twice at once; one of the two may refuse, and both may end right."""
        ends: list[Ended] = []
        run_all(enumerate([process, process]), 2, lambda _, ended: ends.append(ended))
        first, second = sorted(ends, key=lambda ended: ended.code != 0)
        return second if second.code and judge.TRACEBACK in second.err else first

    def run_on_changed_data(self, process: Process, after: float) -> Ended:
        """Cut the files of binarised text short while a command runs; restore them afterwards."""
        files = [*self.world.glob("*/train*.bin"), *self.world.glob("*/train*.idx")]
        before = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in files}
        timer = threading.Timer(after, lambda: [os.truncate(file, 20) for file in files])
        timer.start()
        try:
            return run(process)
        finally:
            timer.cancel()
            timer.join()
            for file, (content, changed) in before.items():
                file.write_bytes(content)
                os.utime(file, ns=(changed, changed))

    def ask(self, family: str, file: Path, event: str = "nothing") -> str:
        """Return what a model generates, predicts or scores; a disturbed command is run again."""
        program, given = self.question(family, file)
        if event != "nothing":
            ended = self.call(program, given, event, 1.0, 1000)
            self.check(f"asking {family}, {event}", ended, file.parent)
            self.survived[event]["all"] += ended.code != 0
            self.survived[event]["questions"] += ended.code != 0
        ended = self.call(program, given, "nothing", 1.0, 1)
        said = "\n".join(RESULTS.findall(ended.out + ended.err)) or last_line(ended)
        if family in TRANSLATION and not ended.code:
            scored = file.with_name("generated.txt")
            scored.write_text(ended.out, "utf-8")
            score = f"score {scored} --reference text/test.en --json"
            said += self.call("fairseq-ext", score, "nothing", 1.0, 1).out.replace(str(scored), "")
        return said

    def question(self, family: str, file: Path) -> tuple[str, str]:
        if family in TRANSLATION:
            given = world.GENERATE.format(run="x").replace("runs/x/checkpoint_last.pt", str(file))
            return "fairseq-generate", given
        if family in LABELLED:
            data = f"labelled/{family}/valid.jsonl"
            return "fairseq-ext", f"predict {file} --cpu --json --examples --input {data}"
        task = {"sop": "masked_lm_sop", "detect": "replaced_token_detection"}.get(
            family, "masked_lm"
        )
        given = f"mono {world.BASE} --path {file} --task {task} --batch-size 4 --log-format json"
        return "fairseq-validate", given

    def check(self, what: str, ended: Ended, out: Path) -> None:
        """Note what a disturbed command must not do."""
        after = judge.read_state(out) if out.exists() else {}
        writes = [name for name in after if name.endswith(".pt")]
        for failure in judge.find_failures(ended, EITHER, {}, after, writes):
            asked = what.rpartition(", ")[2]
            if failure.startswith("exit 141 without") and asked == "no reader":
                continue
            if not failure.startswith("ended by signal") or asked == "changed data":
                self.failures.append(f"{what}: {failure}")

        if ended.left:
            self.failures.append(f"{what}: leaves a process behind")

    def new_folder(self) -> Path:
        """Return an empty folder for a training, on the small disk if there is one."""
        out = (self.disk or self.folder) / "run"
        shutil.rmtree(out, ignore_errors=True)
        return out

    def describe(self, seed: int, minutes: float) -> str:
        """Return a table of what was survived."""
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
        )
        disk = "a small file system" if self.disk else "a limit of the size of files"
        lines = [
            f"Seed {seed}, {minutes:g} minutes, commit {commit.stdout.strip()}; a full disk was "
            f"{disk}.",
            "",
            "| disturbance | times | the same end | families |",
            "|---|---|---|---|",
        ]
        for event, counts in sorted(self.survived.items()):
            total, families = counts["all"], [f for f in FAMILIES if counts[f]]
            ended = sum(counts.values()) - total
            lines.append(f"| {event} | {total} | {ended} | {len(families)} of {len(FAMILIES)} |")
        if self.rows:
            lines += ["", *many_lines.HEAD, *self.rows]
        lines += ["", f"Failures: {'' if self.failures else 'none.'}".rstrip()]
        lines += [f"- {failure}" for failure in self.failures]
        return "".join(f"{line}\n" for line in lines)


def digest(file: Path) -> str:
    """Return a hash of all parameters of a checkpoint."""
    model = torch.load(file, map_location="cpu", weights_only=False)["model"]
    whole = hashlib.sha256()
    for name, value in sorted(model.items()):
        whole.update(name.encode() + value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()


def last_line(ended: Ended) -> str:
    lines = [line for line in ended.err.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def mount(folder: Path, size: str) -> Path | None:
    """Return a folder on a small file system, or None if none may be mounted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True)
    except OSError:
        return None
    return None if done.returncode else folder


def unmount(folder: Path) -> None:
    if folder.is_mount():
        subprocess.run(["umount", str(folder)], check=False)


def fill(disk: Path, left: int) -> None:
    """Fill a disk but for some bytes."""
    free = shutil.disk_usage(disk).free
    with (disk / "fill").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(free - left, 1))


if __name__ == "__main__":
    main()
