"""Runs in records, the files that `fairseq-ext record` writes, beside runs in folders."""

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.comparisons import Measure
from fairseq_ext.evaluation.runs import Facts, Run, read_runs

ENDING = ".toml"
NEEDED = ("columns", "runs", "measures")
PROVENANCE = ("question", "data", "command", "commit", "hardware", "versions", "date")


def read_results(paths: Sequence[Path]) -> dict[str, list[Run]]:
    """Return the repetitions of each variant, of folders of runs and of records.

    Raises:
        UsageError: `read_runs` refuses the folders, a file is no record with numbers of runs, or
            two of them have a variant of the same name.
    """
    runs = read_runs([path for path in paths if not is_record(path)])
    for path in filter(is_record, paths):
        for variant, repetitions in read_recorded_runs(path).items():
            if variant in runs:
                other = runs[variant][0].folder
                raise UsageError(
                    f"{path} and {other} both have a variant {variant}; rename one of them"
                )
            runs[variant] = repetitions
    return runs


def is_record(path: Path) -> bool:
    """Return whether a path is that of a record, not of a folder."""
    return path.suffix == ENDING and not path.is_dir()


def read_record(path: Path) -> dict[str, Any]:
    """Return the fields of a record; raise UsageError if it cannot be read."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        reason = "is not there" if isinstance(error, FileNotFoundError) else f"is no TOML: {error}"
        raise UsageError(f"{path} {reason}; give a record of 'fairseq-ext record'") from error


def read_recorded_runs(path: Path) -> dict[str, list[Run]]:
    """Return the runs of a record by variant: by its side, with the group before it if it has any.

    Raises:
        UsageError: it is no record, or has means without the runs that they are of.
    """
    record = read_record(path)
    if missing := [name for name in NEEDED if not record.get(name)]:
        raise UsageError(
            f"{path} has no {missing[0]}, and the numbers of each run are needed; give a record of "
            "'fairseq-ext record'"
        )
    try:
        runs = list(_list_runs(path, record))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path} has a run that is not as columns and measures say ({error!r}); correct it"
        ) from error
    variants: dict[str, list[Run]] = {}
    for run in runs:
        variants.setdefault(run.variant, []).append(run)
    return variants


def _list_runs(path: Path, record: dict[str, Any]) -> Iterator[Run]:
    facts = Facts(0, 0, 0.0, {"task.data": record.get("data")})
    for number, run in enumerate(record["runs"], 1):
        row = dict(zip(record["columns"], run, strict=True))
        variant = "/".join(filter(None, [row.get("group"), row["side"]]))
        repetition = row["repetition"].replace(" ", "-")
        results = {
            name: (measure["title"], measure["digits"], float(row[name]))
            for name, measure in record["measures"].items()
            if row[name] != ""
        }
        name = Path(f"{path}, run {number}")
        yield Run(name, variant, repetition, facts, [], results)


def measure_recorded(name: str, runs: Sequence[Run]) -> Measure:
    """Return a result of runs in records; raise UsageError if one has none of this name."""
    for run in runs:
        if name not in run.results:
            raise UsageError(f"{run.folder} has no {name}; it has {', '.join(run.results)}")
    title, digits, _ = runs[0].results[name]
    return Measure(title, digits, {run.folder: run.results[name][2] for run in runs})
