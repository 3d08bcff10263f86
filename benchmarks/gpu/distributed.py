"""Stage 4, *distributed*: one process, several, resumed and sharded trainings are the same."""

import os
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from items import Item, Options, Skipped

from fairseq_ext.safe_loading import load_checkpoint

WORKERS = 1
ROOT = Path(__file__).parents[2]
UPDATES, PORT = 6, 29517
EXACT, SUMMED = 0.0, 1e-4  # largest difference of parameters; sums of gradients in another order
COMMON = f"""--user-dir {ROOT / "fairseq_ext"} --task translation --seed 1 --num-workers 0
    --share-decoder-input-output-embed --optimizer adam --lr 1e-3 --lr-scheduler fixed --dropout 0
    --attention-dropout 0 --activation-dropout 0 --max-tokens 1000 --no-epoch-checkpoints
    --disable-validation --required-batch-size-multiple 1""".split()
FAMILIES = {
    "dna": "--arch transformer_dna_tiny --criterion label_smoothed_cross_entropy",
    "ag": "--arch transformer_una_tiny --criterion label_smoothed_cross_entropy_ag "
    "--ag-encoder-heads next:1,prev:1 --ag-alpha 10 --ag-decay-updates 100",
    "asa": "--arch transformer_asa_tiny --criterion label_smoothed_cross_entropy_asa",
}


def plan(options: Options) -> list[Item]:
    count = 2 if options.dry else torch.cuda.device_count()
    families = ["ag"] if options.dry else [*FAMILIES]
    items = [Item("resume", family, resume, (family,)) for family in families]
    items += [Item("one process by launch", family, launch_one, (family,)) for family in families]
    items += [Item("one process in a group", family, group_one, (family,)) for family in families]
    if count > 1:
        items += [
            Item(f"{count} processes against one", family, launch_many, (family, count))
            for family in families
        ]
    if count > 1 and not options.dry:  # without GPUs fairseq starts no process itself
        items += [
            Item(f"{count} processes started by fairseq", family, spawn, (family, count))
            for family in families
        ]
    items += [Item("sweep", "two runs side by side", sweep)]
    items += [Item("FSDP", family, shard, (family, count)) for family in families]
    return items


def train(
    options: Options, family: str, name: str, updates: int, *flags: str, launch: str = ""
) -> dict[str, torch.Tensor]:
    """Train, unless that was done before, and return the parameters of the last checkpoint."""
    folder = options.runs / "distributed" / f"{family}-{name}"
    done = folder / f"{updates}.done"
    line = ["fairseq-train", str(options.data), *COMMON, *FAMILIES[family].split(), *flags]
    line += ["--max-update", str(updates), "--save-dir", str(folder)]
    line += ["--cpu"] * (options.dry and not launch)
    if launch:
        line = ["fairseq-ext", "launch", *launch.split(), "--", *line]
    if not done.exists():
        run(options, line, folder)
        done.touch()
    return load_checkpoint(folder / "checkpoint_last.pt")["model"]


def run(options: Options, line: list[str], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    module = {"fairseq-train": "fairseq_cli.train", "fairseq-ext": "fairseq_ext.cli"}[line[0]]
    command = ["python", "-m", module, *line[1:]]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ)
    (folder / "log").write_text(done.stdout + done.stderr, "utf-8")
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-1500:]}")


def compare(ours: Any, theirs: Any, bound: float) -> dict[str, Any]:
    """Return the largest difference of parameters; fail above the bound."""
    assert ours.keys() == theirs.keys()
    worst = max((ours[key].float() - theirs[key].float()).abs().max().item() for key in ours)
    assert worst <= bound, f"parameters differ by {worst}, at most {bound}"
    return {"largest difference": f"{worst:.1e}", "bound": bound}


def resume(options: Options, family: str) -> dict[str, Any]:
    """Compare a training with one that was interrupted in the middle."""
    train(options, family, "resumed", UPDATES // 2)
    resumed = train(options, family, "resumed", UPDATES)
    return compare(resumed, train(options, family, "whole", UPDATES), EXACT)


def launch_one(options: Options, family: str) -> dict[str, Any]:
    """Compare `fairseq-ext launch` on one device with fairseq-train."""
    how = "--cpu-processes 1" if options.dry else "--gpus 1"
    launched = train(options, family, "launched", UPDATES, launch=how)
    return compare(launched, train(options, family, "whole", UPDATES), EXACT)


def group_one(options: Options, family: str) -> dict[str, Any]:
    """Compare a process that meets itself, by NCCL on a GPU, with one that meets nobody."""
    flags = ["--distributed-init-method", f"tcp://127.0.0.1:{PORT}", "--distributed-no-spawn"]
    if options.dry:
        flags += ["--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"]
    met = train(options, family, "group", UPDATES, *flags)
    return compare(met, train(options, family, "whole", UPDATES), EXACT)


def spawn(options: Options, family: str, count: int) -> dict[str, Any]:
    """Compare processes that fairseq-train starts with those that launch starts."""
    started = train(options, family, "spawned", UPDATES, "--distributed-world-size", str(count))
    many = train(options, family, "many", UPDATES, launch=f"--gpus {count}")
    return compare(started, many, SUMMED)


def launch_many(options: Options, family: str, count: int) -> dict[str, Any]:
    """Compare several processes with one that makes as many batches an update."""
    how = f"--cpu-processes {count}" if options.dry else f"--gpus {count}"
    many = train(options, family, "many", UPDATES, launch=how)
    often = ("--update-freq", str(count))
    return compare(many, train(options, family, "often", UPDATES, *often), SUMMED)


def sweep(options: Options) -> dict[str, Any]:
    """Train two variants side by side by `fairseq-ext sweep`, and compare one with a training."""
    out = options.runs / "distributed" / "sweep"
    variants = [
        word for name in ("dna", "ag") for word in ("--variant", f"{name}={FAMILIES[name]}")
    ]
    line = ["fairseq-ext", "sweep", "--out", str(out), "--jobs", "2", *variants, "--"]
    at = COMMON.index("--seed")  # which the sweep sets
    line += [str(options.data), *COMMON[:at], *COMMON[at + 2 :]]
    run(options, [*line, "--max-update", str(UPDATES), *["--cpu"] * options.dry], out)
    swept = load_checkpoint(out / "ag" / "seed-1" / "checkpoint_last.pt")["model"]
    return compare(swept, train(options, "ag", "whole", UPDATES), EXACT)


def shard(options: Options, family: str, count: int) -> dict[str, Any]:
    """Compare fully sharded data parallel training with the ordinary one."""
    if find_spec("fairscale") is None:
        raise Skipped("fairscale, which fairseq shards with, is not installed")
    if options.dry or count < 2:
        raise Skipped("fairscale shards over several GPUs only")
    how = f"--gpus {count}"
    flags = ("--ddp-backend", "fully_sharded")
    sharded = train(options, family, "sharded", UPDATES, *flags, launch=how)
    many = train(options, family, "many", UPDATES, launch=how)
    return compare(sharded, many, SUMMED)
