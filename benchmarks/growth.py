"""How time and memory grow with the size of what is worked on: 1, 4 and 16 times --smallest.

Each row is work of one kind at each size, in processes of its own: CPU seconds of all of them, and
the peak memory of the largest one. Ratios are to the smallest size; what is proportional to the
size has 4 and 16. Training steps are without the start; their memory is what two of them take
beyond the model, with gradients and Adam's state. Text is random: words by Zipf's law in
prepare_parallel.sh, which learns 1,000 merges, and every word as likely as any other elsewhere.
Models are transformer_una_tiny, but where DNA is named.
"""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

import measure
import numpy as np
import steps
import training
from measure import MIB, Row, Table

from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation import pictures

TIMES = (1, 4, 16)
ROOT = Path(__file__).parent.parent
SYMBOLS = 4_000
LENGTH = 32  # of sentences, unless it is what grows
SHORTEST, TOKENS = 64, 4_096  # of sentences and of a batch, where the length grows

# A small process in between: the peak of a process that it starts is not ours.
WATCH = """import resource, subprocess, sys
code = subprocess.call(sys.argv[1:], stdout=sys.stderr)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, used.ru_maxrss)
sys.exit(code)"""


class Cost(NamedTuple):
    """CPU seconds, and MiB."""

    seconds: float
    memory: float


def write_text(folder: Path, sentences: int, length: int, seed: int) -> Path:
    """Write sentences of a length as fairseq-preprocess does."""
    random, words = np.random.default_rng(seed), steps.dictionary(SYMBOLS)
    folder.mkdir(parents=True, exist_ok=True)
    for language in ("de", "en"):
        words.save(str(folder / f"dict.{language}.txt"))
        for split, count in (("train", sentences), ("valid", min(sentences, 200))):
            prefix = folder / f"{split}.de-en.{language}"
            steps.write_random(prefix, words, [length - 1] * count, random)  # and the end
    return folder


def run(command: Sequence[object]) -> Cost:
    """Run a command, and return what it and its processes cost.

    Raises:
        UsageError: it fails.
    """
    words = [str(word) for word in command]
    ours = [sys.executable, "-I", "-c", WATCH, *words]
    done = subprocess.run(ours, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise UsageError(f"{shlex.join(words)!r} failed: {done.stderr.strip()[-300:]}")
    seconds, kilobytes = done.stdout.split()
    return Cost(float(seconds), int(kilobytes) * 1024 / MIB)


def step(name: str, folder: Path, tokens: int, args: argparse.Namespace) -> Cost:
    """Return the cost of a training step with batches of so many tokens, in a new process."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(_step, name, folder, tokens, args).result()


def _step(name: str, folder: Path, tokens: int, args: argparse.Namespace) -> Cost:
    args.max_tokens, args.precision, args.data = tokens, "fp32", None
    steps.prepare(args, [])
    line = [str(folder), *training.FLAGS, *training.flags_of(name, "tiny")]
    candidate = steps.build_candidate(line, args)
    work = steps.training(candidate, steps.read_batches(candidate, 2 + args.rounds))
    memory = measure.extra_memory(lambda: (work(0), work(1)), args.device)
    clock, seconds = measure.clock(args), []
    for turn in range(2, 2 + args.rounds):
        begin = clock()
        work(turn)
        seconds.append(clock() - begin)
    return Cost(median(seconds), memory)


def batches(size: int, folder: Path, args: argparse.Namespace) -> Cost:
    tokens = 8 * size
    count = max(tokens // LENGTH, 8) * (2 + args.rounds)
    return step("una", write_text(folder, count, LENGTH, args.seed), tokens, args)


def lengths(name: str, times: int, folder: Path, args: argparse.Namespace) -> Cost:
    """Measure batches of one size with ever longer sentences."""
    length = SHORTEST * times
    count = TOKENS // length * (2 + args.rounds)
    return step(name, write_text(folder, max(count, 8), length, args.seed), TOKENS, args)


def start(size: int, folder: Path, args: argparse.Namespace) -> Cost:
    data = write_text(folder, 100 * size, LENGTH, args.seed)
    return run([*train(data, folder / "run"), "--disable-validation"])


def train(data: Path, out: Path) -> list[object]:
    """Return a command that trains a tiny model for one update."""
    flags = "--user-dir fairseq_ext --arch transformer_una_tiny --max-tokens 512 --cpu "
    flags += "--optimizer adam --lr 1e-4 --max-update 1 --num-workers 0 --distributed-world-size 1"
    return ["fairseq-train", data, *training.FLAGS, *flags.split(), "--save-dir", out]


def analyse(size: int, folder: Path, args: argparse.Namespace) -> Cost:
    data = write_text(folder, max(size, 200), LENGTH, args.seed)
    run(train(data, folder / "run"))
    command = ["fairseq-ext", "analyse", folder / "run" / "checkpoint_last.pt", "--data", data]
    return run([*command, "--split", "train", "--limit", size, "--out", folder / "analysis"])


def prepare(size: int, folder: Path, args: argparse.Namespace) -> Cost:
    """Measure prepare_parallel.sh on 100 times as many lines as the size says."""
    random, raw = np.random.default_rng(args.seed), folder / "raw"
    raw.mkdir(parents=True)
    letters = list("abcdefghijklmnopqrstuvwxyz")
    words = np.array(["".join(random.choice(letters, 2 + n % 9)) for n in range(50_000)])
    for split, count in (("train", 100 * size), ("valid", 50), ("test", 50)):
        for language in ("de", "en"):
            lines = (random.zipf(1.2, (count, LENGTH)) - 1) % len(words)
            text = "".join(f"{' '.join(words[line])} .\n" for line in lines)
            (raw / f"{split}.{language}").write_text(text)
    script = ["bash", "scripts/prepare_parallel.sh", "de", "en", folder / "out"]
    return run([*script, "--offline", raw, "--merges", 1000])


KINDS: dict[str, Callable[[int, Path, argparse.Namespace], Cost]] = {
    "training step, tokens of a batch": batches,
    "training step, length of sentences": lambda size, folder, args: lengths(
        "una", size // args.smallest, folder, args
    ),
    "training step of DNA, length of sentences": lambda size, folder, args: lengths(
        "dna", size // args.smallest, folder, args
    ),
    "fairseq-train until the first update, sentences of the data": start,
    "fairseq-ext analyse, sentences": analyse,
    "prepare_parallel.sh, lines": prepare,
}


def measure_all(kinds: Mapping[str, Callable], args: argparse.Namespace) -> dict[str, list[Cost]]:
    """Return the costs of each kind of work at each size."""
    costs: dict[str, list[Cost]] = {}
    for name, kind in kinds.items():
        with TemporaryDirectory() as folder:
            sizes = measure.tqdm(TIMES, name, disable=None, leave=False)
            costs[name] = [kind(args.smallest * n, Path(folder, str(n)), args) for n in sizes]
    return costs


def tables(costs: Mapping[str, list[Cost]]) -> Iterator[Table]:
    """Yield a table of time, and one of memory."""
    for field, title, unit in (("seconds", "CPU time", "s"), ("memory", "Peak memory", "MiB")):
        rows: list[Row] = []
        for name, each in costs.items():
            measured = {
                f"× {n}": [getattr(cost, field)] for n, cost in zip(TIMES, each, strict=True)
            }
            rows.append(measure.compare(name, measured, f"× {TIMES[0]}", 1.0))
        yield Table(title, f"× {TIMES[0]}", unit, rows)


def draw(costs: Mapping[str, list[Cost]], out: Path) -> None:
    """Draw growth on logarithmic axes, where what is proportional to the size is a diagonal."""
    figure = pictures.new_figure(9, 4.4)
    colours = pictures.assign_colours(costs)
    both = figure.subplots(1, 2, sharex=True, sharey=True)
    for axes, field, title in zip(both, Cost._fields, ("CPU time", "peak memory"), strict=True):
        axes.plot(TIMES, TIMES, ls="--", lw=1, color="0.6", label="proportional to the size")
        for name, each in costs.items():
            ratios = [getattr(cost, field) / getattr(each[0], field) for cost in each]
            axes.plot(TIMES, ratios, marker="o", color=colours[name], label=name)
        axes.set(xscale="log", yscale="log", xlabel="size ÷ smallest", title=title)
        axes.set_xticks(TIMES, [str(n) for n in TIMES])
        axes.set_yticks(TIMES, [str(n) for n in TIMES])
        axes.minorticks_off()
        pictures.style_axes(axes)
    both[0].set_ylabel("cost ÷ that of the smallest")
    handles, names = both[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=2, fontsize=8)
    pictures.save(figure, out)


def parse() -> argparse.Namespace:
    example = "python benchmarks/growth.py --threads 1 --rounds 5 --picture growth.png"
    parser = measure.build_parser(__doc__ or "", example, ["cpu"])
    smallest = (
        "sentences of analyse; a batch has 8 times as many tokens, and there are 100 times as many "
        "lines and sentences of data (default: %(default)s)"
    )
    parser.add_argument("--smallest", type=measure.positive, default=100, help=smallest)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=[*KINDS], metavar="KIND")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw it")
    return parser.parse_args()


def main() -> int:
    args = parse()
    measure.prepare(args)
    if 8 * args.smallest < LENGTH:
        raise UsageError(f"--smallest is {args.smallest}; give at least {LENGTH // 8}, a sentence")
    if args.picture:
        pictures.check_picture(args.picture)
    costs = measure_all({name: KINDS[name] for name in args.only}, args)
    if args.picture:
        draw(costs, args.picture)
    facts = {"smallest": f"{args.smallest} sentences"}
    return measure.report(args, facts, list(tables(costs)), [], steps.QUIET)


if __name__ == "__main__":
    sys.exit(main())
