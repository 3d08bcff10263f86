"""Sums and means over logging outputs, the dicts that fairseq's criterions return to be reduced."""

from typing import Any

from fairseq.logging import metrics
from torch import Tensor

Log = dict[str, Any]
"""A logging output: name -> number to be summed, or list to be joined."""

Sample = dict[str, Any]
"""A batch, as a fairseq task makes it."""


def log_entry(loss: Tensor, sample: Sample, size: Any) -> Log:
    """Return the entries that fairseq expects in every logging output."""
    counts = {name: sample[name] for name in ("ntokens", "nsentences")}
    return {"loss": loss.detach(), **counts, "sample_size": size}


def sum_entries(logs: list[Log], name: str) -> Any:
    """Return the sum of an entry over logging outputs, which may lack it."""
    return sum(log.get(name, 0) for log in logs)


def log_means(logs: list[Log], names: tuple[str, ...]) -> None:
    """Log the sums of these entries, divided by the sample size, as far as they are there."""
    size = sum_entries(logs, "sample_size")
    for name in names:
        if any(name in log for log in logs):
            metrics.log_scalar(name, sum_entries(logs, name) / size, size, round=5)


def log_sums(logs: list[Log], names: tuple[str, ...]) -> None:
    """Log the sums of these entries, under their names with "_" before, which no log shows."""
    for name in names:
        metrics.log_scalar_sum(f"_{name}", sum_entries(logs, name))


def log_percentage(name: str, part: str, *wholes: str) -> None:
    """Log 100 `part` / mean(`wholes`), computed from sums that :func:`log_sums` logged.

    F1 is such a percentage: hits in the mean of the predicted and the right number.
    """

    def compute(meters: dict[str, Any]) -> float:
        whole = float(sum(meters[f"_{each}"].sum for each in wholes))
        return round(100 * len(wholes) * float(meters[f"_{part}"].sum) / whole, 2) if whole else 0.0

    metrics.log_derived(name, compute)
