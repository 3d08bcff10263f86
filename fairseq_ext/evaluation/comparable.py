"""Whether results of several runs may stand in one column: of the same data, tests, vocabulary."""

from collections.abc import Sequence
from pathlib import Path

from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.runs import Run, differ_by, pair_numbers

DATA_SETTINGS = {
    "task.data": "DATA",
    "task.source_lang": "--source-lang",
    "task.target_lang": "--target-lang",
    "dataset.train_subset": "--train-subset",
    "dataset.valid_subset": "--valid-subset",
}
"""Settings that say what a run was trained and validated on, and how they are given."""

OF_SYMBOLS = ("loss", "nll_loss", "nll", "ppl")
"""Logged values that depend on the vocabulary, not on the text alone."""

PERMISSION = "compare like with like, or permit it by --mixed"


def check_comparable(runs: Sequence[Run], names: Sequence[str]) -> None:
    """Raise UsageError if runs were trained on different data, or with different dictionaries.

    Folds of one number are compared with each other, since folds differ in their data. What an
    older checkpoint does not say may be the same.

    Args:
        runs: of all variants.
        names: of the metrics; dictionaries matter to those that count symbols.
    """
    symbols = any(name.rpartition(".")[2].removesuffix("_avg") in OF_SYMBOLS for name in names)
    first: dict[tuple[str, str], Run] = {}  # of each fold, the first one that says it
    for run in runs:
        fold = run.repetition if "fold" in run.repetition else ""
        for key, flag in DATA_SETTINGS.items():
            if run.facts.settings.get(key) is not None:
                _check_setting(first.setdefault((fold, key), run), run, key, flag)
        if not symbols or run.facts.vocabulary is None:
            continue
        one = first.setdefault((fold, "vocabulary"), run)
        if one.facts.vocabulary != run.facts.vocabulary:
            raise UsageError(
                f"{one.folder} and {run.folder} have different dictionaries, so that their losses "
                f"cannot be compared; {PERMISSION}"
            )


def _check_setting(one: Run, other: Run, key: str, flag: str) -> None:
    ours, theirs = (run.facts.settings[key] for run in (one, other))
    if ours == theirs or differ_by(pair_numbers(one, other), ours, theirs):
        return
    if key == "task.data" and _resolve(ours) == _resolve(theirs):
        return
    raise UsageError(
        f"{one.folder} was trained with {flag} {ours} and {other.folder} with {theirs}, so "
        f"that their scores cannot be compared; {PERMISSION}"
    )


def _resolve(data: object) -> list[Path]:
    return [Path(part).resolve() for part in str(data).split(":")]
