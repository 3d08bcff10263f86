"""Finished runs: the contents of their checkpoints and logs, grouped as repetitions of variants.

A run is the folder that `fairseq-train --save-dir` filled, with its output kept as train.log.
"""

import hashlib
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_ext.errors import UsageError
from fairseq_ext.training_logs import LOG, REPETITION, Record, is_finished, name_variants, read_log

CHECKPOINT = "checkpoint_last.pt"
EPOCH = "train"  # the kind of the records of an epoch
LAST = "last"  # stands before a value of the last validation
TRAINING_KINDS = ("train_inner", EPOCH)  # since the previous record, of an epoch

# Stored with the parameters but never trained: a format number, and a device marker.
BUFFERS = ("version", "_float_tensor")

# Settings in which repetitions may differ: what is logged and where, and on which machine ...
MACHINE_SETTINGS = """
    save_dir user_dir log_interval log_format log_file no_progress_bar tensorboard_logdir
    wandb_project aim_repo aim_run_hash azureml_logging num_workers plasma_path device_id
    distributed_rank distributed_port distributed_init_method no_seed_provided
    distributed_num_procs nprocs_per_node
""".split()
# ... and what makes them repetitions.
REPETITION_SETTINGS = {
    "seed": ["seed"],
    "fold": ["seed", "fold", "data", "train_subset", "valid_subset"],
}
REPETITION_PART = re.compile(r"([a-z]+)-(\d+)")  # "seed" and "1" of "seed-1-fold-3"
NUMBER = re.compile(r"((?<=[A-Za-z_/-])\d+)")  # after a name or in a path, not of 1e-3 or 0.1


class Facts(NamedTuple):
    """Facts about a training that its checkpoint holds.

    Attributes:
        parameters: their number; see `count_parameters`.
        updates: the number of updates.
        seconds: the time spent in training.
        settings: fairseq's whole configuration; see `flatten_settings`.
        vocabulary: a hash of its dictionaries, None if the checkpoint does not have them.
    """

    parameters: int
    updates: int
    seconds: float
    settings: dict[str, Any]
    vocabulary: str | None = None


class Run(NamedTuple):
    """A training that reached its end, or the results of one in a record.

    Attributes:
        folder: its --save-dir; of a record, the name of its row, where nothing is.
        variant: the name of what it repeats.
        repetition: the folder's name if it is seed-N, fold-N or seed-N-fold-M, else empty.
        facts: the contents of its last checkpoint.
        records: the lines of numbers in its log.
        results: in a record, by name, the title, the number of decimals, and the value.
    """

    folder: Path
    variant: str
    repetition: str
    facts: Facts
    records: list[Record]
    results: Mapping[str, tuple[str, int, float]] = {}


def count_parameters(state: Mapping[str, Any]) -> int:
    """Return how many numbers a model's parameters hold, frozen ones too.

    Equal matrices count once: they are one matrix, saved under several names. Values are compared,
    since fairseq saves tied matrices of a GPU as separate copies.
    """
    counted: list[Any] = []
    for name, value in state.items():
        tied = value.dim() > 1 and any(value.shape == x.shape and value.equal(x) for x in counted)
        if name.rpartition(".")[2] not in BUFFERS and not tied:
            counted.append(value)
    return sum(value.numel() for value in counted)


def get_architecture(config: Any) -> str:
    """Return the name given to --arch, from the model's part of a checkpoint's configuration."""
    values = config if isinstance(config, Mapping) else vars(config)
    return values.get("arch") or values["_name"]


def read_facts(checkpoint: Path) -> Facts:
    """Read a checkpoint without running anything in it.

    Raises:
        UsageError: there is none, it cannot be read, or it lacks its configuration.
    """
    from fairseq_ext.safe_loading import read_checkpoint  # slow, as torch is

    state = read_checkpoint(checkpoint)
    config, extra = state.get("cfg"), state.get("extra_state") or {}
    if not config or "previous_training_time" not in extra:
        raise UsageError(
            f"{checkpoint} does not say how it was trained; give one of fairseq-train 0.11 or later"
        )
    return Facts(
        count_parameters(state["model"]),
        state["optimizer_history"][-1]["num_updates"],
        float(extra["previous_training_time"]),  # a tensor, after several processes
        flatten_settings(config),
        _hash_vocabulary(extra.get("fingerprints")),
    )


def _hash_vocabulary(fingerprints: Mapping[str, Any] | None) -> str | None:
    sides = [(fingerprints or {}).get(side) for side in ("source", "target")]
    return hashlib.sha256(repr(sides).encode()).hexdigest() if any(sides) else None


def flatten_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration in one level, with names such as "optimization.max_update"."""
    flat: dict[str, Any] = {}
    for part, values in config.items():
        if not isinstance(values, Mapping):
            values = vars(values) if hasattr(values, "__dict__") else {"_name": values}
        flat |= {f"{part}.{name}": value for name, value in values.items()}
    return flat


def read_runs(folders: Sequence[Path]) -> dict[str, list[Run]]:
    """Return the repetitions of each variant.

    Raises:
        UsageError: a run is not finished, lacks its log or checkpoint, or is given twice; or the
            runs of a variant differ in more than seed (or data, if they are folds).
    """
    absolute = [folder.resolve() for folder in folders]
    if twice := [str(f) for f, a in zip(folders, absolute, strict=True) if absolute.count(a) > 1]:
        raise UsageError(f"{min(twice)} is given twice; give each run once")
    runs: dict[str, list[Run]] = {}
    for folder, variant in zip(folders, name_variants(folders), strict=True):
        runs.setdefault(variant, []).append(read_run(folder, variant))
    for repetitions in runs.values():
        for one, other in combinations(repetitions, 2):
            _check_repetitions(one, other)
    return runs


def read_run(folder: Path, variant: str) -> Run:
    """Return a run of a variant; raise UsageError if it is not finished or incomplete."""
    records = read_log(folder)
    if not is_finished(folder):
        raise UsageError(
            f"{folder} is not finished: its {LOG} does not end with 'done training'; let it finish"
        )
    name = folder.resolve().name
    repetition = name if REPETITION.fullmatch(name) else ""
    return Run(folder, variant, repetition, read_facts(folder / CHECKPOINT), records)


def pair_numbers(one: Run, other: Run) -> set[tuple[str, str]]:
    """Return the numbers in which two repetitions may differ, such as their seeds."""
    parts, others = (REPETITION_PART.findall(run.repetition) for run in (one, other))
    return {(a, b) for (_, a), (_, b) in zip(parts, others, strict=False)}


def _check_repetitions(one: Run, other: Run) -> None:
    """Raise UsageError unless two runs differ in what makes them repetitions, and in that alone."""
    free = [
        name
        for kind, _ in REPETITION_PART.findall(one.repetition)
        for name in REPETITION_SETTINGS[kind]
    ]
    ours, theirs = one.facts.settings, other.facts.settings
    differing = sorted(key for key in ours.keys() & theirs.keys() if ours[key] != theirs[key])
    numbers = pair_numbers(one, other)
    for key in differing:
        name = _name_setting(key)
        if name in MACHINE_SETTINGS + free or differ_by(numbers, ours[key], theirs[key]):
            continue
        flag = f"--{name.replace('_', '-')}"
        raise UsageError(
            f"{one.folder} was trained with {flag} {ours[key]} and {other.folder} with "
            f"{theirs[key]}, so they are no repetitions; give each variant a folder of its own"
        )
    if free and not any(_name_setting(key) in free for key in differing):
        raise UsageError(
            f"{one.folder} and {other.folder} have the same {', '.join(free)}; repetitions differ"
        )


def _name_setting(key: str) -> str:
    """Return "max_update" for "optimization.max_update", "arch" for "model._name"."""
    part, _, name = key.rpartition(".")
    return {"model": "arch"}.get(part, part) if name == "_name" else name


def differ_by(numbers: set[tuple[str, str]], ours: object, theirs: object) -> bool:
    """Return whether two texts differ only in numbers of the repetitions.

    They do where $SEED stands in a path, or in a name such as enc$SEED.pt.
    """
    if not (isinstance(ours, str) and isinstance(theirs, str)):
        return False
    parts = NUMBER.split(ours), NUMBER.split(theirs)
    return len(parts[0]) == len(parts[1]) and all(
        a == b or (a, b) in numbers for a, b in zip(*parts, strict=True)
    )


def measure_speed(run: Run) -> float:
    """Return tokens a second, the median over the log; NaN if they were not logged."""
    for kind in TRAINING_KINDS:
        if speeds := [r.values["wps"] for r in run.records if r.kind == kind and "wps" in r.values]:
            return statistics.median(speeds)
    return math.nan


def find_logged_value(run: Run, name: str) -> float:
    """Return a logged value of the last epoch of training, or of the best or last validation.

    Args:
        run: the training.
        name: train.NAME for the last epoch. Otherwise the name in the log, or SUBSET.NAME for
            another subset than the first; the best validation is chosen by
            --best-checkpoint-metric. With "last." in front it is of the last validation.

    Raises:
        UsageError: there is no such value.
    """
    subset, _, value = name.rpartition(".")
    if subset == EPOCH:
        epochs = [record.values for record in run.records if record.kind == EPOCH]
        where, values = "last epoch of training", epochs[-1] if epochs else {}
    elif subset.partition(".")[0] == LAST:
        validations = [r.values for r in select_validations(run, subset.partition(".")[2])]
        where, values = "last validation", validations[-1] if validations else {}
    else:
        where, values = _best_validation(run, subset)
    if value not in values:
        raise UsageError(
            f"{run.folder} has no {name} in the {where}; it has "
            f"{', '.join(sorted(values)) or 'none at all'}"
        )
    return values[value]


def select_validations(run: Run, subset: str = "") -> list[Record]:
    """Return the validations on a subset (default: the first one), in the order of updates."""
    first = run.facts.settings.get("dataset.valid_subset", "valid").split(",")[0]
    return [record for record in run.records if record.kind == (subset or first)]


def _best_validation(run: Run, subset: str) -> tuple[str, dict[str, float]]:
    """Return the name of the best validation, and its values on a subset (default: the first)."""
    settings = run.facts.settings
    metric = settings.get("checkpoint.best_checkpoint_metric", "loss")
    sign = 1 if settings.get("checkpoint.maximize_best_checkpoint_metric") else -1
    scored = {r.update: r.values.get(metric, math.nan) for r in select_validations(run)}
    scores = {update: sign * score for update, score in scored.items() if not math.isnan(score)}
    best = max(reversed(scores), key=scores.__getitem__, default=None)
    validated = (r.values for r in select_validations(run, subset) if r.update == best)
    return f"validation with its best {metric}", next(validated, {})


def sort_variants(
    runs: Mapping[str, Sequence[Run]], values: Mapping[Path, float], highest_first: bool
) -> dict[str, Sequence[Run]]:
    """Return the variants in the order of their means, with variants that diverged last."""

    def key(variant: str) -> tuple[bool, float]:
        mean = statistics.mean(values[run.folder] for run in runs[variant])
        return not math.isfinite(mean), -mean if highest_first else mean

    return {name: runs[name] for name in sorted(runs, key=key)}


def name_older(name: str, runs: Sequence[Run]) -> str:
    """Return which runs have a file of results that is older than their last checkpoint, or ""."""
    folders = [run.folder for run in runs]
    older = [f for f in folders if 0 < _written(f / name) < _written(f / CHECKPOINT)]
    return f"{name} is older than {CHECKPOINT} in {', '.join(map(str, older))}" if older else ""


def _written(file: Path) -> float:
    return file.stat().st_mtime if file.is_file() else 0
