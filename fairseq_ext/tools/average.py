"""Average the parameters of several checkpoints of one training into one checkpoint.

Give the files, or the --save-dir of a run with --last N or --best N. --best ranks every checkpoint
in the folder by the metric that training chose its best by (--best-checkpoint-metric). Settings and
counters are taken from the last file. OUT lacks what only training needs: the state of the
optimizer, moving averages and adversaries. To train from OUT, give --restore-file OUT
--reset-optimizer --reset-lr-scheduler --reset-dataloader --reset-meters. Nothing in the files is
run.

Example:
  fairseq-ext average --output averaged.pt checkpoints/mine --last 5
  fairseq-ext average --output averaged.pt checkpoints/mine --best 3
  fairseq-ext average --output averaged.pt checkpoints/mine/checkpoint{8,9,10}.pt
"""

import argparse
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from fairseq_ext.data.fingerprints import FINGERPRINTS
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.runs import get_architecture
from fairseq_ext.interchange.new_checkpoint import check_output, write_checkpoint
from fairseq_ext.models.mixins import drop_adversaries
from fairseq_ext.models.model_report import SMART_MEAN
from fairseq_ext.models.pretrained import computing_options, saved_options
from fairseq_ext.permissions import is_given
from fairseq_ext.safe_loading import read_checkpoint

# Names of checkpoints that are saved after each epoch, or after some updates.
PATTERNS = {"epoch": r"checkpoint(\d+)\.pt", "update": r"checkpoint_\d+_(\d+)\.pt"}
NAMES = {"epoch": "checkpoint<epoch>.pt", "update": "checkpoint_<epoch>_<update>.pt"}
ANY = r"checkpoint(\d+|_\d+_\d+|_best|_last|\.best_.+)\.pt"

TRAINING = (
    "common.seed task._name task.data criterion._name optimizer._name optimization.lr "
    "lr_scheduler._name model.dropout"
).split()
"""Settings that make another training; what a user changes to continue one is not among them."""

LEFT_OUT = ("last_optimizer_state", "ema", "ema_fp32_params", SMART_MEAN)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fairseq-ext average`."""
    add = parser.add_argument
    add("paths", nargs="+", type=Path, metavar="CHECKPOINT | RUN")
    add("--output", type=Path, required=True, metavar="OUT")
    add("--force", action="store_true", help="replace OUT if it exists")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--last", type=int, metavar="N", help="the N newest checkpoints of RUN")
    choice.add_argument("--best", type=int, metavar="N", help="the N best checkpoints of RUN")
    names = " or ".join(NAMES.values())
    add("--by", choices=PATTERNS, help=f"for --last: {names} (default: whichever there are)")
    add("--at-most", action="store_true", help="fewer than N will do")
    add("--different-trainings", action="store_true", help="also of several trainings")


def run(args: argparse.Namespace) -> None:
    """Write the average, and print which files it is of."""
    if args.by and args.last is None:
        raise UsageError(f"--by {args.by} is for --last; give both, or leave it out")
    if args.at_most and args.last is None and args.best is None:
        raise UsageError("--at-most is for --last and --best; give one of them, or leave it out")
    check_output(args.output, args.force)
    files = select_checkpoints(args.paths, args.last, args.best, args.by, args.at_most)
    write_checkpoint(average_checkpoints(files, args.different_trainings), args.output)
    print(f"{args.output} is the average of {', '.join(map(str, files))}")
    if copies := [str(path) for path in args.paths if path.is_file() and path not in files]:
        print(f"counted once, being copies of these: {', '.join(copies)}")


class SavedCheckpoint(NamedTuple):
    """Facts about a checkpoint of a run.

    Attributes:
        file: its path.
        identity: run and number of updates; of a file that was renamed, or does not say them, its
            path and None.
        score: its validation score, which is higher for better ones; NaN if there is none.
        metric: the name of that score.
    """

    file: Path
    identity: tuple[Path, int | None]
    score: float
    metric: str


def describe_checkpoint(file: Path) -> SavedCheckpoint:
    """Return the facts in a checkpoint; raise UsageError if it cannot be read."""
    state = read_checkpoint(file)
    settings = (state.get("cfg") or {}).get("checkpoint", {})
    value = state.get("extra_state", {}).get("val_loss")
    updates = (state.get("optimizer_history") or [{}])[-1].get("num_updates")
    path = file.resolve()
    sign = 1 if settings.get("maximize_best_checkpoint_metric") else -1
    return SavedCheckpoint(
        file,
        (path.parent, updates) if updates and re.fullmatch(ANY, path.name) else (path, None),
        math.nan if value is None else sign * float(value),
        settings.get("best_checkpoint_metric", "loss"),
    )


def select_checkpoints(
    paths: Sequence[Path],
    last: int | None = None,
    best: int | None = None,
    by: str | None = None,
    at_most: bool = False,
) -> list[Path]:
    """Return the files to average, the newest (or the best) last, each state of a run once.

    Args:
        paths: checkpoints, or the folder of a run.
        last: how many of the newest checkpoints to take.
        best: how many of the best checkpoints to take.
        by: whether the newest are those of "epoch" or "update".
        at_most: whether fewer will do.

    Raises:
        UsageError: there are none, or fewer than asked, or it is not clear which are meant.
    """
    wanted = best if last is None else last
    folder = next((path for path in paths if path.is_dir()), None)
    if wanted is None and folder:
        raise UsageError(f"{folder} is a folder; add --last N or --best N, or give its checkpoints")
    if wanted is None:
        return [saved.file for saved in _drop_copies(map(describe_checkpoint, paths))]
    if len(paths) > 1 or not paths[0].is_dir() or wanted < 1:
        raise UsageError(
            f"--last and --best take a number from 1 and one folder of checkpoints, not {wanted} "
            f"and {' '.join(map(str, paths))}"
        )
    files = _sort_by_age(paths[0], by) if best is None else _sort_by_score(paths[0])
    if len(files) < (1 if at_most else wanted):
        names = [name for kind, name in NAMES.items() if by in (None, kind)]
        sought = "any with a validation score" if best is not None else " or ".join(names)
        raise _refuse_too_few(paths[0], len(files), wanted, sought)
    return files[-wanted:]


def _refuse_too_few(folder: Path, number: int, wanted: int, sought: str) -> UsageError:
    present = ", ".join(sorted(file.name for file in folder.glob("*.pt"))) or "no .pt file"
    return UsageError(
        f"{folder} has {number} checkpoints to choose from, not {wanted} (looked for {sought}; "
        f"found {present}); ask for fewer, or give the files"
    )


def _drop_copies(checkpoints: Iterable[SavedCheckpoint]) -> list[SavedCheckpoint]:
    """Return the first of each state: checkpoint_last.pt and checkpoint_best.pt copy others."""
    return list({one.identity: one for one in reversed([*checkpoints])}.values())[::-1]


def _sort_by_age(folder: Path, by: str | None) -> list[Path]:
    files = {
        kind: [file for file in folder.iterdir() if re.fullmatch(pattern, file.name)]
        for kind, pattern in PATTERNS.items()
        if by in (None, kind)
    }
    if all(files.values()) and len(files) > 1:
        raise UsageError(f"{folder} has files of epochs and of updates; add --by epoch or update")
    return sorted(sum(files.values(), []), key=lambda file: int(re.findall(r"\d+", file.name)[-1]))


def _sort_by_score(folder: Path) -> list[Path]:
    files = sorted(file for file in folder.iterdir() if re.fullmatch(ANY, file.name))
    scored = [one for one in map(describe_checkpoint, files) if not math.isnan(one.score)]
    metrics = sorted({one.metric for one in scored})
    if len(metrics) > 1:
        raise UsageError(
            f"{folder} has checkpoints judged by {' and by '.join(metrics)}; give files of one"
        )
    return [one.file for one in sorted(_drop_copies(scored), key=lambda one: one.score)]


def average_checkpoints(files: Sequence[Path], different_trainings: bool = False) -> dict:
    """Return the last checkpoint with the mean of all parameters, in their own dtypes.

    The mean is computed in float64, and one checkpoint at a time is read. Numbers that are not
    floating-point (counters) are taken from the last checkpoint.

    Raises:
        UsageError: they are not checkpoints of one architecture, or cannot be read, or are of
            several trainings without `different_trainings`.
    """
    first = read_checkpoint(files[0])
    sums: dict[str, Tensor] = {}
    for file in tqdm(files, unit="checkpoint", disable=None):
        state = read_checkpoint(file)
        _check_same_model(first, files[0], state, file)
        if not different_trainings:
            _check_same_training(first, files[0], state, file)
        for name, value in state["model"].items():
            if value.is_floating_point():
                sums[name] = value.double() + sums.get(name, 0)
    for name, total in sums.items():
        state["model"][name] = (total / len(files)).to(state["model"][name].dtype)
    state["extra_state"] = state.get("extra_state", {}) | {"averaged": [*map(str, files)]}
    if len(files) > 1:
        for name in ("val_loss", "best"):  # of the last one, not of the average
            state["extra_state"].pop(name, None)
    return leave_training_out(state)


def leave_training_out(state: dict) -> dict:
    """Return a checkpoint without what only training needs, whose tied parameters are one."""
    state = {**state, "model": share_equal(drop_adversaries(state["model"]))}
    if "asa_layers" in (model := (state.get("cfg") or {}).get("model") or {}):
        model["asa_layers"] = "none"
    for name in ("extra_state", "task_state"):
        state[name] = _leave_out(state.get(name) or {})
    return _leave_out(state)


def _leave_out(values: dict) -> dict:
    return {name: value for name, value in values.items() if name not in LEFT_OUT}


def share_equal(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Replace equal tensors (tied embeddings) by one, which is then written once."""
    kept: list[Tensor] = []
    shared = {}
    for name, value in parameters.items():
        equal = (x for x in kept if x.dtype == value.dtype and torch.equal(x, value))
        shared[name] = next(equal, value)
        if shared[name] is value:
            kept.append(value)
    return shared


def _check_same_model(first: dict, file: Path, other: dict, other_file: Path) -> None:
    """Raise UsageError unless parameters have equal shapes and settings are equal where both are.

    An older checkpoint lacks newer settings.
    """
    shapes = [{n: tuple(x.shape) for n, x in state["model"].items()} for state in (first, other)]
    ours, theirs = _read_settings(first), _read_settings(other)
    one, two = shapes[0] | theirs | ours, shapes[1] | ours | theirs
    for name in sorted(one.keys() | two.keys()):
        if (a := one.get(name, "absent")) != (b := two.get(name, "absent")):
            raise UsageError(
                f"{name} is {a} in {file} and {b} in {other_file}; give checkpoints of one "
                "training, or of trainings with the same architecture and dictionaries"
            )
    texts = [(state.get("extra_state") or {}).get(FINGERPRINTS) for state in (first, other)]
    if all(texts) and texts[0] != texts[1] and not is_given("--other-dictionary"):
        raise UsageError(
            f"{file} and {other_file} were trained with other dictionaries or tokenisers; give "
            "checkpoints of one training, or --other-dictionary"
        )


def _check_same_training(first: dict, file: Path, other: dict, other_file: Path) -> None:
    """Raise UsageError for a setting of `TRAINING` that differs; a folder may have been moved."""
    for part, name in (setting.split(".") for setting in TRAINING):
        both = [saved_options(state, part).get(name) for state in (first, other)]
        compared = both
        if name == "data":
            compared = [[Path(x).name for x in str(path).split(":")] for path in both]
        if None not in both and compared[0] != compared[1]:
            raise UsageError(
                f"{file} is of a training with the {part if name == '_name' else name} {both[0]}, "
                f"{other_file} of one with {both[1]}; give checkpoints of one training, or "
                "--different-trainings"
            )


def _read_settings(state: dict) -> dict[str, Any]:
    options = saved_options(state)
    return computing_options(options) | (
        {"the architecture": get_architecture(options)} if options else {}
    )
