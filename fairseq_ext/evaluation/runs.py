"""Finished runs: what their checkpoints and logs say, and which are repetitions of one variant.

A run is the folder that `fairseq-train --save-dir` filled, with its output kept as train.log.
"""

import math
import re
import statistics
import zipfile
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fairseq_ext.errors import UsageError
from fairseq_ext.training_logs import LOG, REPETITION, Record, is_finished, read_log, variants

if TYPE_CHECKING:
    from torch import Tensor

CHECKPOINT = "checkpoint_last.pt"
EPOCH = "train"  # what the lines of numbers of an epoch are called
TRAINING = ("train_inner", EPOCH)  # since the last such line, of an epoch

# Stored with the parameters but never trained: a format number, and a device marker.
BUFFERS = ("version", "_float_tensor")

# Settings in which repetitions may differ: what is logged and where, and on which machine ...
ELSEWHERE = """
    save_dir user_dir log_interval log_format log_file no_progress_bar tensorboard_logdir
    wandb_project aim_repo aim_run_hash azureml_logging num_workers plasma_path device_id
    distributed_rank distributed_port distributed_init_method no_seed_provided
    distributed_num_procs nprocs_per_node
""".split()
# ... and what makes them repetitions.
REPEATED = {"seed": ["seed"], "fold": ["seed", "fold", "data", "train_subset", "valid_subset"]}
NUMBER = re.compile(r"((?<=[A-Za-z_/-])\d+)")  # after a name or in a path, not of 1e-3 or 0.1


class Facts(NamedTuple):
    """What a checkpoint says about its training.

    Attributes:
        seconds: spent in it.
        settings: all of fairseq's configuration, see `settings`.
    """

    parameters: int
    updates: int
    seconds: float
    settings: dict[str, Any]


class Run(NamedTuple):
    """A training that came to its end.

    Attributes:
        repetition: seed-N, fold-N or seed-N-fold-M, from the name of the folder; empty if it has
            another name.
    """

    folder: Path
    variant: str
    repetition: str
    facts: Facts
    records: list[Record]


def count_parameters(state: Mapping[str, "Tensor"]) -> int:
    """Numbers in the parameters, frozen ones too; matrices that are equal are one, saved under
    many names.

    By value, since fairseq unties what it copies from a GPU.
    """
    counted: list[Tensor] = []
    for name, value in state.items():
        tied = value.dim() > 1 and any(
            value.shape == other.shape and value.equal(other) for other in counted
        )
        if name.rpartition(".")[2] not in BUFFERS and not tied:
            counted.append(value)
    return sum(value.numel() for value in counted)


def architecture(config: Any) -> str:
    """The name given to --arch, from the model's part of a checkpoint's configuration."""
    values = config if isinstance(config, Mapping) else vars(config)
    return values.get("arch") or values["_name"]


def facts(checkpoint: Path) -> Facts:
    """Read a checkpoint without running anything in it; raises UsageError if that cannot be."""
    from fairseq_ext.safe_loading import load_checkpoint  # slow, as torch is

    if not checkpoint.is_file():
        raise UsageError(f"there is no checkpoint {checkpoint}; give the --save-dir of a training")
    mapped = zipfile.is_zipfile(checkpoint)  # parameters are read when they are needed
    state = load_checkpoint(str(checkpoint), map_location="cpu", mmap=mapped)
    config, extra = state.get("cfg"), state.get("extra_state") or {}
    if not config or "previous_training_time" not in extra:
        raise UsageError(
            f"{checkpoint} does not say how it was trained; give one of fairseq-train 0.11 or later"
        )
    return Facts(
        count_parameters(state["model"]),
        state["optimizer_history"][-1]["num_updates"],
        extra["previous_training_time"],
        settings(config),
    )


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration in one level: "optimization.max_update", ..."""
    flat: dict[str, Any] = {}
    for part, values in config.items():
        if not isinstance(values, Mapping):
            values = vars(values) if hasattr(values, "__dict__") else {"_name": values}
        flat |= {f"{part}.{name}": value for name, value in values.items()}
    return flat


def read_runs(folders: Sequence[Path]) -> dict[str, list[Run]]:
    """The repetitions of each variant.

    Raises:
        UsageError: a run is not finished or lacks its log or checkpoint, is given twice, or those
            of a variant differ in more than seed (or data, if they are folds).
    """
    if twice := {str(f) for f in folders if [g.resolve() for g in folders].count(f.resolve()) > 1}:
        raise UsageError(f"{min(twice)} is given twice; give each run once")
    runs: dict[str, list[Run]] = {}
    for folder, variant in zip(folders, variants(folders), strict=True):
        runs.setdefault(variant, []).append(read_run(folder, variant))
    for repetitions in runs.values():
        for one, other in combinations(repetitions, 2):
            _check_alike(one, other)
    return runs


def read_run(folder: Path, variant: str) -> Run:
    records = read_log(folder)
    if not is_finished(folder):
        raise UsageError(
            f"{folder} is not finished: its {LOG} does not end with 'done training'; let "
            "fairseq-train come to its end"
        )
    name = folder.resolve().name
    repetition = name if REPETITION.fullmatch(name) else ""
    return Run(folder, variant, repetition, facts(folder / CHECKPOINT), records)


def _check_alike(one: Run, other: Run) -> None:
    free = [name for part in _parts(one) for name in REPEATED[part.partition("-")[0]]]
    ours, theirs = one.facts.settings, other.facts.settings
    differing = sorted(key for key in ours.keys() & theirs.keys() if ours[key] != theirs[key])
    for key in differing:
        if _name(key) not in ELSEWHERE + free and not _alike(one, other, key):
            flag = f"--{_name(key).replace('_', '-')}"
            raise UsageError(
                f"{one.folder} was trained with {flag} {ours[key]} and {other.folder} with "
                f"{theirs[key]}, so they are no repetitions of one variant; give each variant a "
                "folder of its own"
            )
    if free and not any(_name(key) in free for key in differing):
        raise UsageError(
            f"{one.folder} and {other.folder} have the same {', '.join(free)}; repetitions of a "
            "variant differ in these"
        )


def _name(key: str) -> str:
    """ "max_update" for "optimization.max_update", "arch" for "model._name"."""
    part, _, name = key.rpartition(".")
    return {"model": "arch"}.get(part, part) if name == "_name" else name


def _alike(one: Run, other: Run, key: str) -> bool:
    """Whether a setting is one: with $SEED in its path, say, or in a name such as enc$SEED.pt."""
    ours, theirs = one.facts.settings[key], other.facts.settings[key]
    if not (isinstance(ours, str) and isinstance(theirs, str)):
        return ours == theirs
    numbers = {*zip(_numbers(one), _numbers(other), strict=False)}
    pieces = [NUMBER.split(text) for text in (ours, theirs)]
    return len(pieces[0]) == len(pieces[1]) and all(
        a == b or (a, b) in numbers for a, b in zip(*pieces, strict=True)
    )


def _numbers(run: Run) -> list[str]:
    return [part.rpartition("-")[2] for part in _parts(run)]


def _parts(run: Run) -> list[str]:
    """ "seed-1" and "fold-3" of "seed-1-fold-3"."""
    return re.findall(r"[a-z]+-\d+", run.repetition)


def speed(run: Run) -> float:
    """Tokens a second, the median over the log; NaN if that does not say."""
    for kind in TRAINING:
        if found := [r.values["wps"] for r in run.records if r.kind == kind and "wps" in r.values]:
            return statistics.median(found)
    return math.nan


def logged(run: Run, name: str) -> float:
    """A value of the log: train.NAME of the last epoch, others of the best validation.

    ``name`` as in the log, or SUBSET.NAME for another subset than the first; the best is that by
    --best-checkpoint-metric. Raises UsageError if there is no value.
    """
    subset, _, value = name.rpartition(".")
    where, values = _last_epoch(run) if subset == EPOCH else _best_validation(run, subset)
    if value not in values:
        raise UsageError(
            f"{run.folder} has no {name} in the {where}; it has "
            f"{', '.join(sorted(values)) or 'none at all'}"
        )
    return values[value]


def _last_epoch(run: Run) -> tuple[str, dict[str, float]]:
    epochs = [record.values for record in run.records if record.kind == EPOCH]
    return "last epoch of training", epochs[-1] if epochs else {}


def _best_validation(run: Run, subset: str) -> tuple[str, dict[str, float]]:
    known = run.facts.settings
    first = known.get("dataset.valid_subset", "valid").split(",")[0]
    by = known.get("checkpoint.best_checkpoint_metric", "loss")
    sign = 1 if known.get("checkpoint.maximize_best_checkpoint_metric") else -1
    found = {r.update: sign * r.values.get(by, math.nan) for r in run.records if r.kind == first}
    scores = {update: score for update, score in found.items() if not math.isnan(score)}
    best = max(reversed(scores), key=scores.__getitem__, default=None)
    values = {(r.kind, r.update): r.values for r in run.records}.get((subset or first, best), {})
    return f"validation with its best {by}", values
