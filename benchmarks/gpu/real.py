"""Stage 3, *real*: Multi30k at the settings of the published model; masked LM of 12 layers."""

import signal
import subprocess
from pathlib import Path
from typing import Any

from items import Item, Options, Unfinished

WORKERS = 1  # a sweep runs its trainings side by side itself
SCRIPTS = Path(__file__).parents[2] / "scripts"
VARIANTS = "una dna hna ag gaussian asa ag+gate dna+gaussian"
SIDE_BY_SIDE = 8  # trainings of tiny models on one GPU


def plan(options: Options) -> list[Item]:
    seeds, variants, updates, jobs, flags = (1, 2, 3), VARIANTS, 8000, SIDE_BY_SIDE, ""
    if options.dry:
        seeds, variants, updates, jobs = (1,), "dna+gaussian", 2, 1
        flags = "--cpu --train-subset valid"
    multi30k = (
        f"train_multi30k.sh --data {options.data} --variants '{variants}' --updates {updates} "
        f"--jobs {jobs}"
    )
    items = [
        Item("Multi30k", f"{n} seeds", follow, ("multi30k", f"{multi30k} --seeds {n}", flags))
        for n in seeds
    ]
    return [*items, *masked_lm(options)]


def masked_lm(options: Options) -> list[Item]:
    size, updates, flags = "_12", 4000, "--bf16"
    if options.dry:
        size, updates, flags = "_tiny", 2, "--cpu --batch-size 2"
    return [
        Item(
            "masked LM",
            f"{experiment}, {size.strip('_')}, {updates} updates",
            follow,
            (
                experiment,
                f"pretrain.sh {experiment} --data {options.text} --size {size} --seeds 1 "
                f"--updates {updates}",
                flags,
            ),
        )
        for experiment in ("normalisers", "convergence")[: 1 if options.dry else None]
    ]


def follow(options: Options, name: str, line: str, flags: str) -> dict[str, Any]:
    """Run a recipe until it is done or the time is up; it resumes by itself."""
    out, log = options.runs / name, options.runs / "real.log"
    command = f"exec bash {SCRIPTS}/{line} --out {out} -- {flags}"
    with log.open("a") as output:
        process = subprocess.Popen(command, shell=True, stdout=output, stderr=output)
        try:
            code = process.wait(options.seconds_left())
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            process.wait()
            raise Unfinished(f"the time was up; see {log}") from None
    if code:
        raise RuntimeError(f"exit code {code}, see {log}: {log.read_text()[-1500:]}")
    return {"markdown": f"```\n{(out / 'table.txt').read_text('utf-8').strip()}\n```"}
