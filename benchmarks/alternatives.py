"""Time and memory of each mechanism and each alternative, as multiples of stock fairseq's.

A step is what fairseq-train does with a batch: forward, backward, Adam and the logs, with the
dropout of the presets. Candidates are those of scripts/alternatives.sh, with its flags, each alone
in the encoder of the same Transformer (of 8 heads if it is small). All start from the same
parameters and get the same batches. Memory is the peak of a step beyond the
model and Adam's state, each in a process of its own.
"""

import argparse
import shlex
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import measure
import steps
import training
from measure import Aim, Row, Table

sys.path.append(str(Path(__file__).parents[1] / "docs"))
import print_mechanisms  # noqa: E402

STOCK = training.STOCK
STUDY = Path(__file__).parents[1] / "scripts" / "lib" / "study.sh"
SMALL = ("tiny", "iwslt")  # sizes that have 4 heads otherwise
LIMITS = {"una": 1.05}
for row in print_mechanisms.read_rows(STUDY.parents[2]):
    LIMITS |= row.get("aims", {})


def label(size: str) -> str:
    return f"training {size}"


AIMS = [Aim(label(size), name, limit) for size in training.CHOSEN for name, limit in LIMITS.items()]


@cache
def read_candidates(suffix: str) -> dict[str, list[str]]:
    """Return the flags of each mechanism as the recipe gives them, for architectures of a size."""
    names = '$(for name in una $MECHANISMS $ALTERNATIVES; do print_mechanisms una "$name"; done)'
    code = f'. "{STUDY}"; size={shlex.quote(suffix)}; say "{names}"'
    lines = subprocess.run(["bash", "-c", code], check=True, capture_output=True, text=True).stdout
    parts = (line.partition("=") for line in lines.splitlines())
    return {name: shlex.split(flags) for name, _, flags in parts}


def command_line(name: str, size: str, data: Path) -> list[str]:
    suffix, stock = training.SIZES[size]
    own = ["--arch", *stock] if name == STOCK else read_candidates(suffix)[name]
    heads = ["--encoder-attention-heads", "8"] if size in SMALL else []
    length = ["--max-update", "1800"]  # over which guidance fades
    return [str(data), *training.FLAGS, *length, *own, *heads]


def build(names: list[str], size: str, data: Path, args: argparse.Namespace) -> dict:
    """Build the peer, twice, and its candidates."""
    return steps.build({name: command_line(name, size, data) for name in (STOCK, *names)}, args)


def extra_memory(name: str, size: str, data: Path, args: argparse.Namespace) -> float:
    """Return the extra peak memory in MiB of two steps, with gradients and the optimiser's state.

    Memory that earlier steps freed would hide what a later one takes.
    """
    steps.prepare(args, [])
    candidate = steps.build_candidate(command_line(name, size, data), args)
    work = steps.training(candidate, steps.read_batches(candidate, 1))
    return measure.extra_memory(lambda: (work(0), work(0)), args.device)


def memory_row(size: str, data: Path, args: argparse.Namespace) -> Row:
    """Return the memory of the candidates of a size, each in a process of its own."""

    def alone(name: str) -> float:
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            return process.submit(extra_memory, name, size, data, args).result()

    progress = measure.tqdm([STOCK, *args.only], "memory", disable=None, leave=False)
    measured = {name: [alone(name)] for name in progress}
    return measure.compare(f"memory {size}", measured, STOCK, 1.0)


def parse() -> argparse.Namespace:
    example = "python benchmarks/alternatives.py --threads 1 --only una sink alibi --sizes tiny"
    synthetic = "as of benchmarks/training.py"
    parser = steps.build_parser(__doc__, example, synthetic, training.SIZES, ["tiny"])
    names = [*read_candidates("_tiny")]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="(default: all)")
    parser.add_argument("--no-memory", action="store_true", help="measure time alone")
    return parser.parse_args()


def main() -> int:
    args = parse()
    steps.prepare(args, ["train.*.idx", "dict.*"])
    times, memory = [], []
    with steps.data_folders(args, training.write_synthetic, training.SYMBOLS) as folders:
        for size, data in folders.items():
            built = build(args.only, size, data, args)
            times.append(steps.rows(label(size), built, steps.training, steps.tokens_of, args))
            del built
            if not args.no_memory:
                memory.append(memory_row(size, data, args))
    tables = steps.tables({STOCK: times})
    if memory:
        tables.append(Table("Extra peak memory of two steps", STOCK, "MiB", memory))
    return steps.report(args, tables, AIMS, f", {training.SENTENCES:,} sentences")


if __name__ == "__main__":
    sys.exit(main())
