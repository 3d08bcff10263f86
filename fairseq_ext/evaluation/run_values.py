"""Values of runs by name: logged, of analyses of attention, and relative to a baseline's run."""

import csv
import math
import statistics
from collections.abc import Sequence

from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation import predictions
from fairseq_ext.evaluation.checkpoint_notes import name_checkpoints
from fairseq_ext.evaluation.comparisons import Measure
from fairseq_ext.evaluation.runs import (
    EPOCH,
    LAST,
    Run,
    find_logged_value,
    measure_speed,
    name_older,
    select_validations,
)

ANALYSIS, UPDATES, TIME = "analysis.", "updates-to.", "time-ratio"

FALLING = ("loss", "nll", "ppl", "mse")
"""Parts of the names of logged values that are better if they are lower."""

TABLES = ("column_sums.csv", "heads.csv")
"""Files of `fairseq-ext analyse` with a row for each head."""

MOMENTS = {EPOCH: "the last epoch of training", LAST: "the last validation"}


def needs_baseline(name: str) -> bool:
    """Return whether a value is relative to the run of the baseline that has the same number."""
    return name == TIME or name.startswith(UPDATES)


def measure_named(
    name: str, runs: Sequence[Run], baseline: Sequence[Run], mixed: bool = False
) -> tuple[Measure, str]:
    """Return a value of each run, and the note that says what it is.

    Args:
        name: see `fairseq-ext table`.
        runs: all runs.
        baseline: the runs of the baseline.
        mixed: whether runs may have answered different examples.

    Raises:
        UsageError: a run does not have the value, or no run of the baseline has its number.
    """
    if name.startswith(ANALYSIS):
        values = {run.folder: find_analysed_value(run, name) for run in runs}
        note = f"{name}: mean over heads, of `fairseq-ext analyse`"
        older = name_older(f"{ANALYSIS[:-1]}/{TABLES[0]}", runs)
        return Measure(name, 4, values), _join(note, older)
    if name.startswith(predictions.PREFIX):
        measure, note = predictions.measure(name, [run.folder for run in runs], mixed)
        file = predictions.name_file(name)
        return measure, _join(note, name_checkpoints(file, runs), name_older(file, runs))
    if needs_baseline(name):
        values = {run.folder: compare_run(name, run, _match(run, baseline)) for run in runs}
        against = f"{baseline[0].variant}'s run of the same number"
        if name == TIME:
            return Measure(
                name, 3, values
            ), f"{name}: time of a token, divided by that of {against}"
        loss = name.removeprefix(UPDATES)
        note = f"{name}: the first validation whose {loss} is as low as the best of {against}"
        return Measure(name, 0, values), f"{note}; inf: none"
    values = {run.folder: find_logged_value(run, name) for run in runs}
    moment = MOMENTS.get(name.partition(".")[0], "the best validation")
    return Measure(name, 3, values), f"{name}: from the log, of {moment}"


def compare_run(name: str, run: Run, base: Run) -> float:
    """Return a value of a run relative to another one: `time-ratio` or `updates-to.NAME`.

    It is NaN if the other run has had no loss that is a number.
    """
    if name == TIME:
        return measure_speed(base) / measure_speed(run)
    loss = name.removeprefix(UPDATES)
    if loss.partition(".")[0] in MOMENTS:
        raise UsageError(f"{name} is not of each validation; give {UPDATES} and a loss that is")
    subset, _, value = loss.rpartition(".")
    if not any(part in value for part in FALLING):
        raise UsageError(
            f"{name} is of {value}, and what falls is asked for; give {UPDATES}NAME with "
            f"{' or '.join(FALLING)} in NAME"
        )
    for one in (base, run):
        find_logged_value(one, loss)  # refuses what it does not have
    curves = [
        {r.update: r.values.get(value, math.inf) for r in select_validations(one, subset)}
        for one in (base, run)
    ]
    target = min((each for each in curves[0].values() if not math.isnan(each)), default=math.nan)
    if math.isnan(target):
        return target
    return next((update for update, each in curves[1].items() if each <= target), math.inf)


def find_analysed_value(run: Run, name: str) -> float:
    """Return the mean over heads of a value in RUN/analysis.

    Args:
        run: the training, whose folder `analysis` was written by `fairseq-ext analyse`.
        name: analysis.SITE.NAME, NAME being a column of a table for all heads.

    Raises:
        UsageError: there is no such value, or there are several models.
    """
    _, site, value = [*name.split(".", 2), "", ""][:3]
    folder = run.folder / ANALYSIS[:-1]
    tables = [folder / table for table in TABLES if (folder / table).is_file()]
    if not tables:
        raise UsageError(
            f"{run.folder} has no {ANALYSIS[:-1]}/{' nor '.join(TABLES)}; run 'fairseq-ext analyse "
            f"--out {folder}' on its checkpoint"
        )
    rows = []
    for path in tables:
        with path.open(encoding="utf-8", newline="") as file:
            found = list(csv.DictReader(file))
        if len(models := {row["model"] for row in found}) > 1:
            raise UsageError(
                f"{path} has heads of {len(models)} models; give the folder that 'fairseq-ext "
                f"analyse --out {folder}' writes for the checkpoint of this run alone"
            )
        rows += [row for row in found if row["site"] == site]
    columns = sorted({column for row in rows for column in row} - {"model", "site"})
    values = [float(row[value]) for row in rows if value in columns and row.get(value)]
    if not values:
        raise UsageError(
            f"{run.folder} has no {name}; give {ANALYSIS}SITE.NAME, SITE being encoder, decoder, "
            f"cross or views, and NAME {' or '.join(columns) or 'a column of the tables there'}"
        )
    return statistics.mean(values)


def _join(*notes: str) -> str:
    return "; ".join(filter(None, notes))


def _match(run: Run, baseline: Sequence[Run]) -> Run:
    """Return the run of the baseline that has the number of a run."""
    for base in baseline:
        if base.repetition == run.repetition:
            return base
    raise UsageError(
        f"{baseline[0].variant} has no {run.repetition or 'run without number'}, with which "
        f"{run.folder} would be compared; give the same repetitions of all variants"
    )
