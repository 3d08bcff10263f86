"""Checked data of tasks on plain text, fairseq's own "masked_lm" included."""

from pathlib import Path
from typing import Any

from fairseq import utils
from fairseq.data import Dictionary, data_utils

from fairseq_ext.errors import UsageError

OBJECTIVES = ("masked_lm", "replaced_token_detection")
# "cross_entropy" is fairseq's default.
GENERAL_CRITERIONS = ("cross_entropy", "label_smoothed_cross_entropy", "adaptive_loss")


def find_split(task: Any, split: str, epoch: int) -> str:
    """Return the path of a split, without its ending.

    If the data are several folders, each epoch has its own.

    Raises:
        UsageError: there is no such split, or nothing in it.
    """
    folders = utils.split_paths(task.cfg.data)
    path = Path(folders[(epoch - 1) % len(folders)]) / split
    index, text = path.with_name(f"{split}.idx"), path.with_name(f"{split}.bin")
    missing = not (index.exists() and text.exists())
    if missing or not text.stat().st_size:
        raise UsageError(
            f"{index} {'is not there' if missing else 'has no text'}; binarise some with "
            "fairseq-preprocess --only-source, or scripts/prepare_mlm.sh"
        )
    return str(path)


def load_lines(task: Any, split: str, epoch: int, combine: bool) -> tuple[str, Any]:
    """Return the path and the lines of a split."""
    path = find_split(task, split, epoch)
    return path, data_utils.load_indexed_dataset(path, task.source_dictionary, combine=combine)


def load_dictionary(cfg: Any) -> Dictionary:
    """Return the dictionary of the data.

    Raises:
        UsageError: it is not there, or has no <mask>, which fairseq would add silently.
    """
    path = Path(utils.split_paths(cfg.data)[0]) / "dict.txt"
    if not path.exists():
        raise UsageError(f"{path} is not there; give a folder that fairseq-preprocess wrote")
    dictionary = Dictionary.load(str(path))
    if "<mask>" not in dictionary:
        raise UsageError(f"{path} has no <mask>; add the line '<mask> 0' at its end")
    return dictionary


def check_criterion(task: str, criterion: str) -> None:
    """Raise UsageError for the criterion of another task on text."""
    other = criterion.startswith(OBJECTIVES) and not criterion.startswith(task)
    if other or criterion.startswith(GENERAL_CRITERIONS):
        raise UsageError(
            f"--criterion {criterion} is not for --task {task}; give --criterion {task}, or "
            f"{task}_ag"
        )
