"""Layout of tables as text, Markdown or CSV."""

import csv
import html
import io
import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        title: its heading.
        shown: its cells as text and Markdown show them.
        plain: its values for CSV, by the names of the columns there.
    """

    title: str
    shown: list[str]
    plain: dict[str, list]


def make_column(
    title: str, values: Iterable, show: Callable[[Any], str] = str, plain: str = ""
) -> Column:
    """Return a column of one value a row; ``plain`` names it in CSV if ``title`` does not."""
    cells = list(values)
    return Column(title, [show(value) for value in cells], {plain or title: cells})


def make_range_column(title: str, groups: Iterable[Sequence[int]]) -> Column:
    """Return a column of the lowest and highest count of each group, or of one count if equal."""
    ends = [sorted({min(values), max(values)}) for values in groups]
    plain = ["-".join(map(str, each)) for each in ends]
    return Column(title, ["–".join(f"{end:,}" for end in each) for each in ends], {title: plain})


def make_mean_column(
    title: str, groups: Iterable[Iterable[float]], digits: int, spread: str = "error"
) -> Column:
    """Return a column of mean ± spread of each group; a single value has no spread.

    Args:
        title: the heading.
        groups: the values of each row.
        digits: the number of decimals.
        spread: a name of SPREADS.
    """
    rows = [(statistics.mean(each), SPREADS[spread].compute(each)) for each in map(list, groups)]
    shown = [" ± ".join(f"{x:.{digits}f}" for x in row if x is not None) for row in rows]
    names = title, f"{title} standard {spread}"
    return Column(title, shown, dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


class Spread(NamedTuple):
    """A measure of how far repetitions differ, and its name."""

    compute: Callable[[Sequence[float]], float | None]
    title: str


def standard_deviation(values: Sequence[float]) -> float | None:
    """Return the sample's standard deviation, or None for a single value.

    It is NaN if a value is not finite, as after a training that diverged.
    """
    if len(values) < 2:
        return None
    return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan


def standard_error(values: Sequence[float]) -> float | None:
    """Return the standard error of the mean, or None for a single value."""
    deviation = standard_deviation(values)
    return None if deviation is None else deviation / math.sqrt(len(values))


SPREADS = {
    "error": Spread(standard_error, "standard error of the mean over n repetitions"),
    "deviation": Spread(standard_deviation, "standard deviation over n repetitions"),
}


def as_text(columns: Sequence[Column], notes: Sequence[str]) -> str:
    """Return a table as aligned columns, with the notes below."""
    return "\n".join([*("  ".join(row).rstrip() for row in _align(columns)), "", *notes, ""])


def as_markdown(columns: Sequence[Column], notes: Sequence[str]) -> str:
    """Return a table in Markdown, with the notes as a list below."""
    escaped = [
        column._replace(title=escape(column.title), shown=[*map(escape, column.shown)])
        for column in columns
    ]
    header, *rows = (f"| {' | '.join(row)} |" for row in _align(escaped))
    rule = "| :--- |" + " ---: |" * (len(columns) - 1)
    return "\n".join([header, rule, *rows, "", *(f"- {escape(note, '')}" for note in notes), ""])


def escape(text: str, cell: str = "|") -> str:
    """Return text that Markdown shows as it is: no HTML, no link, no code, no end of a `cell`."""
    line = html.escape(" ".join(text.split()), quote=False)
    return re.sub(rf"[\\`\[\]{cell}]", r"\\\g<0>", line)


def as_csv(columns: Sequence[Column], notes: Sequence[str]) -> str:
    """Return a table of plain numbers as CSV; notes are lines that begin with #."""
    plain = {name: values for column in columns for name, values in column.plain.items()}
    text = rows_as_csv([*plain], zip(*plain.values(), strict=True))
    return text + "".join(f"# {note}\n" for note in notes)


def rows_as_csv(names: Sequence[str], rows: Iterable[Sequence]) -> str:
    """Return rows of plain values as CSV under the names of their columns."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([names, *rows])
    return text.getvalue()


def records_as_csv(records: Sequence[Mapping[str, Any]]) -> str:
    """Return records as CSV, a row each; a cell is empty where a record lacks the value."""
    names = list(dict.fromkeys(name for record in records for name in record))
    return rows_as_csv(names, ([record.get(name, "") for name in names] for record in records))


def _align(columns: Sequence[Column]) -> Iterator[list[str]]:
    """Yield the rows, header first, with cells padded to the width of their column.

    The first column is aligned to the left, the others to the right.
    """
    texts = [[column.title, *column.shown] for column in columns]
    widths = [max(map(len, column)) for column in texts]
    for first, *others in zip(*texts, strict=True):
        padded = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        yield [first.ljust(widths[0]), *padded]


FORMATS = {"text": as_text, "markdown": as_markdown, "csv": as_csv}


def format_duration(seconds: float) -> str:
    """Return a time as hours:minutes:seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
