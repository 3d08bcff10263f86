"""Tables as text, Markdown or CSV."""

import csv
import io
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple


class Column(NamedTuple):
    """A column as it is shown and, for CSV, the plain values by the names of their columns."""

    title: str
    shown: list[str]
    plain: dict[str, list]


def column(title: str, values: Iterable, show: Callable = str, plain: str = "") -> Column:
    """A value for each row; ``plain`` names those of CSV, by default as the others."""
    listed = list(values)
    return Column(title, [show(value) for value in listed], {plain or title: listed})


def ranges(title: str, groups: Iterable[Sequence[int]]) -> Column:
    """A count for each group, or its lowest and highest."""
    ends = [sorted({min(values), max(values)}) for values in groups]
    plain = ["-".join(map(str, each)) for each in ends]
    return Column(title, ["–".join(f"{end:,}" for end in each) for each in ends], {title: plain})


def means(
    title: str, groups: Iterable[Sequence[float]], digits: int, spread: str = "error"
) -> Column:
    """Mean ± standard error (or another of SPREADS) of each group; that of a single value is not
    known."""
    found = [(statistics.mean(each), SPREADS[spread].value(each)) for each in map(list, groups)]
    shown = [" ± ".join(f"{x:.{digits}f}" for x in each if x is not None) for each in found]
    names = title, f"{title} standard {spread}"
    return Column(title, shown, dict(zip(names, map(list, zip(*found, strict=True)), strict=True)))


class Spread(NamedTuple):
    """How far repetitions differ, and what that is called."""

    value: Callable[[Sequence[float]], float | None]
    title: str


def standard_deviation(values: Sequence[float]) -> float | None:
    """None of a single value; NaN if one is not finite, as of a training that diverged."""
    if len(values) < 2:
        return None
    return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan


def standard_error(values: Sequence[float]) -> float | None:
    deviation = standard_deviation(values)
    return None if deviation is None else deviation / math.sqrt(len(values))


SPREADS = {
    "error": Spread(standard_error, "standard error of the mean over n repetitions"),
    "deviation": Spread(standard_deviation, "standard deviation over n repetitions"),
}


def as_text(columns: Sequence[Column], notes: Sequence[str]) -> str:
    """Aligned columns."""
    return "\n".join([*("  ".join(row).rstrip() for row in _rows(columns)), "", *notes, ""])


def as_markdown(columns: Sequence[Column], notes: Sequence[str]) -> str:
    header, *rows = (f"| {' | '.join(row)} |" for row in _rows(columns))
    rule = "|" + " ---: |" * len(columns)
    lines = [header, rule.replace("---:", ":---", 1), *rows, "", *(f"- {note}" for note in notes)]
    return "\n".join([*lines, ""])


def as_csv(columns: Sequence[Column], notes: Sequence[str]) -> str:
    """Plain numbers; the notes are lines that begin with #."""
    plain = {name: values for each in columns for name, values in each.plain.items()}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([plain, *zip(*plain.values(), strict=True)])
    return text.getvalue() + "".join(f"# {note}\n" for note in notes)


def rows_as_csv(names: Sequence[str], rows: Iterable[Sequence]) -> str:
    """Plain numbers, row by row."""
    return as_csv([column(*each) for each in zip(names, zip(*rows, strict=True), strict=True)], [])


def records_as_csv(records: Sequence[Mapping[str, Any]]) -> str:
    """Plain numbers, a row for each record; what one does not have is empty."""
    names = list(dict.fromkeys(name for record in records for name in record))
    return rows_as_csv(names, [[record.get(name, "") for name in names] for record in records])


def _rows(columns: Sequence[Column]) -> Iterator[list[str]]:
    """Cells of one width in each column: the first to the left, the others to the right."""
    widths = [max(map(len, [each.title, *each.shown])) for each in columns]
    for cells in zip(*([each.title, *each.shown] for each in columns), strict=True):
        first, *others = zip(cells, widths, strict=True)
        yield [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]


FORMATS = {"text": as_text, "markdown": as_markdown, "csv": as_csv}
