"""What tasks on plain text read: lines of a binarised corpus, with a dictionary that has <mask>."""

from pathlib import Path
from typing import Any

from fairseq import utils
from fairseq.data import Dictionary, data_utils

from fairseq_ext.errors import UsageError


def load_lines(task: Any, split: str, epoch: int, combine: bool) -> tuple[str, Any]:
    """The name and the lines of a split; with several folders as data, each has its epochs.

    Raises:
        UsageError: there is no such split, or nothing in it.
    """
    folders = utils.split_paths(task.cfg.data)
    path = str(Path(folders[(epoch - 1) % len(folders)]) / split)
    lines = data_utils.load_indexed_dataset(path, task.source_dictionary, combine=combine)
    if lines is None or not len(lines):
        reason = "is empty" if lines is not None else "is not there"
        raise UsageError(
            f"{path}.idx {reason}; binarise text with fairseq-preprocess --only-source"
        )
    return path, lines


def load_dictionary(cfg: Any) -> Dictionary:
    """dict.txt of the data.

    Raises:
        UsageError: it is not there, or has no <mask>, which fairseq would add without a word.
    """
    path = Path(utils.split_paths(cfg.data)[0]) / "dict.txt"
    if not path.exists():
        raise UsageError(f"{path} is not there; give a folder that fairseq-preprocess wrote")
    dictionary = Dictionary.load(str(path))
    if "<mask>" not in dictionary:
        raise UsageError(f"{path} has no <mask>; add the line '<mask> 0' at its end")
    return dictionary
