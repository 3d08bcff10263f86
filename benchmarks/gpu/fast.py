"""Stage 2, *fast*: the benchmarks on a GPU, as ratios to SDPA, stock fairseq and plain models."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from items import Item, Options, Unfinished
from measure import TOO_NOISY

WORKERS = 1  # nothing else runs beside a measurement
BENCHMARKS = Path(__file__).parents[1]


def benchmarks_in(precision: str, dtype: str) -> dict[str, str]:
    """Return the command lines of a precision by name, those that say most first."""
    sizes, training = ("iwslt", "wmt"), f"--max-tokens 4096 --precision {precision}"
    masked_lm = f"--lengths 128 512 --max-tokens 8192 --precision {precision}"
    return {
        f"attention, {dtype}": "attention --lengths 128 512 2048 8192 --rounds 5 "
        f"--dtype {dtype} --only softmax doubly hybrid gaussian conv1d",
        **{
            f"training, {size}, {precision}": f"training --sizes {size} {training} --parts training"
            for size in sizes
        },
        f"masked LM, base, {precision}": f"pretraining --sizes base {masked_lm}",
        f"masked LM, base, {precision}, no attention dropout": "pretraining --sizes base "
        f"{masked_lm} --dropout-free",
        f"ASA and baselines, base, {precision}": f"asa {training}",
        **{
            f"generation, {size}, {precision}": f"training --sizes {size} {training} "
            "--parts generation"
            for size in sizes
        },
    }


RUNS = {
    **benchmarks_in("bf16", "bfloat16"),
    **benchmarks_in("fp32", "float32"),
    "task attention, base, bf16": "finetuning --max-tokens 4096 --precision bf16",
}
DRY = {
    "attention": "attention --lengths 8 --memory-length 0 --scores 4096 --only doubly hybrid",
    "training and generation": "training --sizes tiny --max-tokens 128 --peers una "
    "--parts training",
}


def plan(options: Options) -> list[Item]:
    runs = {name: f"{line} --rounds 1" for name, line in DRY.items()} if options.dry else RUNS
    return [Item("benchmarks", name, measure, (name, line)) for name, line in runs.items()]


def measure(options: Options, name: str, line: str) -> dict[str, Any]:
    """Run a benchmark; its page and its numbers are the result."""
    script, *flags = line.split()
    path = options.runs / f"{name.replace(' ', '-')}.json"
    command = [sys.executable, str(BENCHMARKS / f"{script}.py"), *flags, "--json", str(path)]
    try:
        done = subprocess.run(
            [*command, "--device", options.device, "--threads", "1"],
            capture_output=True,
            text=True,
            timeout=options.seconds_left() + 60,
        )
    except subprocess.TimeoutExpired:
        raise Unfinished("the time was up; it begins again") from None
    if done.returncode not in (0, TOO_NOISY):
        raise RuntimeError(done.stderr[-2000:])
    noisy = "too noisy for a verdict" if done.returncode else "quiet"
    return {"noise": noisy, "markdown": done.stdout.strip(), "data": json.loads(path.read_text())}
