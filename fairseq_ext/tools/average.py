"""Average the parameters of several checkpoints of one training into one checkpoint.

Give the files, or the --save-dir of a run with --last N or --best N. --best ranks every checkpoint
in the folder by the metric that training chose its best by (--best-checkpoint-metric). Settings and
counters are those of the last file. What only training needs is left out: the state of the
optimizer, moving averages and adversaries. To train from OUT, give --restore-file OUT
--reset-optimizer --reset-lr-scheduler --reset-dataloader --reset-meters. Nothing in the files is
run.
"""

import argparse
import math
import os
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from fairseq_ext.attention.model_report import SMART_MEAN
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.runs import architecture
from fairseq_ext.models import adversaries
from fairseq_ext.models.options import OPTIONS
from fairseq_ext.safe_loading import load_checkpoint

EXAMPLE = """\
  fairseq-ext average --output averaged.pt checkpoints/mine --last 5
  fairseq-ext average --output averaged.pt checkpoints/mine --best 3
  fairseq-ext average --output averaged.pt checkpoints/mine/checkpoint{8,9,10}.pt"""

SAVED = {"epoch": r"checkpoint(\d+)\.pt", "update": r"checkpoint_\d+_(\d+)\.pt"}
NAMES = {"epoch": "checkpoint<epoch>.pt", "update": "checkpoint_<epoch>_<update>.pt"}
ANY = r"checkpoint(\d+|_\d+_\d+|_best|_last|\.best_.+)\.pt"

# What says that equal parameters compute something else, beside the names in OPTIONS.
SETTINGS = ("encoder_", "decoder_", "activation_fn", *(name for name, *_ in OPTIONS))

LEFT_OUT = ("last_optimizer_state", "ema", "ema_fp32_params", SMART_MEAN)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", type=Path, metavar="CHECKPOINT | RUN")
    parser.add_argument("--output", type=Path, required=True, metavar="OUT")
    parser.add_argument("--force", action="store_true", help="replace OUT if it exists")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--last", type=int, metavar="N", help="the N newest checkpoints of RUN")
    choice.add_argument("--best", type=int, metavar="N", help="the N best checkpoints of RUN")
    parser.add_argument(
        "--by",
        choices=SAVED,
        help=f"for --last: {' or '.join(NAMES.values())} (default: whichever there are)",
    )
    parser.add_argument("--at-most", action="store_true", help="fewer than N will do")


def run(given: argparse.Namespace) -> None:
    _check_output(given.output, given.force)
    files = select(given.paths, given.last, given.best, given.by, given.at_most)
    write(average(files), given.output)
    print(f"{given.output} is the average of {', '.join(map(str, files))}")
    if copies := [str(path) for path in given.paths if path.is_file() and path not in files]:
        print(f"counted once, being copies of these: {', '.join(copies)}")


def _check_output(output: Path, force: bool) -> None:
    folder = output.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(
            f"{folder} is not a folder that can be written to; create it or choose another --output"
        )
    if output.is_dir() or output.exists() and not force:
        raise UsageError(f"{output} exists already; choose another --output, or add --force")


class Saved(NamedTuple):
    """A checkpoint of a run; ``value`` is its validation score, NaN if there is none."""

    file: Path
    updates: int | None
    value: float
    metric: str
    maximise: bool


def read(file: Path) -> dict:
    """A checkpoint whose tensors stay in the file until they are used; see `load_checkpoint`."""
    if not file.is_file():
        raise UsageError(f"there is no checkpoint {file}; give files that fairseq-train saved")
    return load_checkpoint(str(file), map_location="cpu", mmap=zipfile.is_zipfile(file))


def describe(file: Path) -> Saved:
    """What a checkpoint says about itself; raises UsageError if it cannot be read."""
    state = read(file)
    settings = (state.get("cfg") or {}).get("checkpoint", {})
    value = state.get("extra_state", {}).get("val_loss")
    updates = (state.get("optimizer_history") or [{}])[-1].get("num_updates")
    metric = settings.get("best_checkpoint_metric", "loss")
    maximise = settings.get("maximize_best_checkpoint_metric", False)
    return Saved(file, updates, math.nan if value is None else float(value), metric, maximise)


def select(
    paths: Sequence[Path],
    last: int | None = None,
    best: int | None = None,
    by: str | None = None,
    at_most: bool = False,
) -> list[Path]:
    """The files to average, the newest (or the best) last, each state of a run once.

    Raises:
        UsageError: there are none, or fewer than asked, or it is not clear which are meant.
    """
    wanted = best if last is None else last
    if wanted is None:
        return _files(paths)
    if len(paths) > 1 or not paths[0].is_dir() or wanted < 1:
        raise UsageError(
            f"--last and --best take a number from 1 and one folder of checkpoints, not {wanted} "
            f"and {' '.join(map(str, paths))}"
        )
    found = _last(paths[0], by) if best is None else _best(paths[0])
    if len(found) < (1 if at_most else wanted):
        names = [name for kind, name in NAMES.items() if by in (None, kind)]
        looked = "any with a validation score" if best is not None else " or ".join(names)
        there = ", ".join(sorted(file.name for file in paths[0].glob("*.pt"))) or "no .pt file"
        raise UsageError(
            f"{paths[0]} has {len(found)} checkpoints to choose from, not {wanted} (looked for "
            f"{looked}; found {there}); ask for fewer, or give the files"
        )
    return found[-wanted:]


def _files(paths: Sequence[Path]) -> list[Path]:
    if folder := next((path for path in paths if path.is_dir()), None):
        raise UsageError(f"{folder} is a folder; add --last N or --best N, or give its checkpoints")
    kept = _distinct([describe(path) for path in paths])
    return [saved.file for saved in kept]


def _distinct(saved: Sequence[Saved]) -> list[Saved]:
    """One of each state: checkpoint_last.pt and checkpoint_best.pt are copies of others."""
    return list({_state(one): one for one in reversed(saved)}.values())[::-1]


def _state(saved: Saved) -> tuple[Path, int | None]:
    """Within a run the number of updates; a file that was renamed stands for itself."""
    file = saved.file.resolve()
    return (file.parent, saved.updates) if re.fullmatch(ANY, file.name) else (file, None)


def _last(folder: Path, by: str | None) -> list[Path]:
    found = {
        kind: [file for file in folder.iterdir() if re.fullmatch(pattern, file.name)]
        for kind, pattern in SAVED.items()
        if by in (None, kind)
    }
    if all(found.values()) and len(found) > 1:
        raise UsageError(
            f"{folder} has checkpoints of epochs and of updates; add --by epoch or --by update"
        )
    return sorted(sum(found.values(), []), key=lambda file: int(re.findall(r"\d+", file.name)[-1]))


def _best(folder: Path) -> list[Path]:
    files = sorted(file for file in folder.iterdir() if re.fullmatch(ANY, file.name))
    saved = [one for one in map(describe, files) if not math.isnan(one.value)]
    metrics = sorted({one.metric for one in saved})
    if len(metrics) > 1:
        raise UsageError(
            f"{folder} has checkpoints judged by {' and by '.join(metrics)}, which cannot be "
            "ranked together; give the files"
        )
    ranked = sorted(_distinct(saved), key=lambda one: one.value if one.maximise else -one.value)
    return [one.file for one in ranked]


def average(files: Sequence[Path]) -> dict:
    """The last checkpoint with the mean of all parameters, computed in float64, in its own dtype.

    One checkpoint at a time is read. What is not a floating-point number (a counter) is the
    last one's.

    Raises:
        UsageError: they are not checkpoints of one architecture, or cannot be read.
    """
    first = read(files[0])
    sums: dict[str, Tensor] = {}
    for file in tqdm(files, unit="checkpoint", disable=None):
        state = read(file)
        _check_alike(first, files[0], state, file)
        for name, value in state["model"].items():
            if value.is_floating_point():
                sums[name] = value.double() + sums.get(name, 0)
    for name, total in sums.items():
        state["model"][name] = (total / len(files)).to(state["model"][name].dtype)
    state["model"] = _shared(adversaries.drop_adversaries(state["model"]))
    if "asa_layers" in (model := (state.get("cfg") or {}).get("model") or {}):
        model["asa_layers"] = "none"
    extra = state.get("extra_state", {}) | {"averaged": [str(file) for file in files]}
    state["extra_state"] = _without(extra)
    state["task_state"] = _without(state.get("task_state") or {})
    return _without(state)


def _without(values: dict) -> dict:
    return {name: value for name, value in values.items() if name not in LEFT_OUT}


def _shared(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Equal tensors are one (tied embeddings), which is then written once."""
    kept: list[Tensor] = []
    shared = {}
    for name, value in parameters.items():
        alike = (x for x in kept if x.dtype == value.dtype and torch.equal(x, value))
        shared[name] = next(alike, value)
        if shared[name] is value:
            kept.append(value)
    return shared


def _check_alike(first: dict, file: Path, other: dict, other_file: Path) -> None:
    settings, theirs = _settings(first), _settings(other)
    common = settings.keys() & theirs.keys()  # an older checkpoint lacks newer ones
    ours = _shapes(first) | {name: settings[name] for name in common}
    yours = _shapes(other) | {name: theirs[name] for name in common}
    for name in sorted(ours.keys() | yours.keys()):
        one, two = ours.get(name, "absent"), yours.get(name, "absent")
        if one != two:
            raise UsageError(
                f"{name} is {one} in {file} and {two} in {other_file}; give checkpoints of one "
                "training, or of trainings with the same architecture and dictionaries"
            )


def _shapes(state: dict) -> dict[str, Any]:
    return {name: tuple(value.shape) for name, value in state["model"].items()}


def _settings(state: dict) -> dict[str, Any]:
    config = (state.get("cfg") or {}).get("model") or state.get("args") or {}  # args: old ones
    values = config if isinstance(config, Mapping) else vars(config)
    kept = {name: value for name, value in values.items() if name.startswith(SETTINGS)}
    return kept | ({"the architecture": architecture(config)} if values else {})


def write(state: dict, output: Path) -> None:
    """Save a checkpoint under its name only when it is complete."""
    output = output.resolve()  # a link stays
    unfinished = output.with_name(f"{output.name}.unfinished")
    try:
        torch.save(state, unfinished)
        unfinished.replace(output)
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UsageError(f"{output} cannot be written ({reason}); give another --output") from None
    finally:
        unfinished.unlink(missing_ok=True)
