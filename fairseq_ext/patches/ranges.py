"""Ranges of numbers of fairseq's options, read from one table and checked at start.

ranges.toml is the table. `rows` yields it and `find_range` looks an option up: inside its range an
option works (or is refused with what it was combined with), outside it is refused. Large sizes
inside a range may still need more memory than a machine has.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any

from fairseq_ext.errors import UsageError

TABLE = Path(__file__).with_suffix(".toml")

AS_TEXT = frozenset(
    "batch_size_valid max_tokens_valid decoder_embed_dim decoder_ffn_embed_dim decoder_input_dim "
    "decoder_output_dim encoder_layers_to_keep decoder_layers_to_keep total_num_update "
    "adam_betas adamax_betas adafactor_eps".split()
)
"""Options that fairseq's parsers keep as text, to be read as numbers later."""

REFERENCE = re.compile(r"\$\{|\?\?\?")  # to another option, or none given yet

FAR = 1e9
"""Upper ends from here on only keep out what no number of its kind can be."""

Special = Mapping[float, str]


@dataclass(frozen=True)
class Range:
    """Range of a number: an interval and further values, with what the number means.

    Attributes:
        means: what the number is.
        low: lower end.
        high: upper end.
        with_low: the lower end is accepted.
        with_high: the upper end is accepted.
        whole: the number is whole.
        special: further values that are accepted -> what they do.
        length: how many such numbers the option has; None: one, or a list of any length.
    """

    means: str
    low: float
    high: float
    with_low: bool
    with_high: bool
    whole: bool
    special: Special = field(default_factory=dict)
    length: int | None = None

    def accepts(self, number: float) -> bool:
        """Tell whether one number is accepted."""
        above = self.low < number or (self.with_low and number == self.low)
        below = number < self.high or (self.with_high and number == self.high)
        inside = above and below and (not self.whole or number == int(number))
        return inside or number in self.special

    def describe(self, too_high: bool = True) -> str:
        """Return what is accepted, as in "a number from 0 to below 1 (a share)".

        Args:
            too_high: name an upper end that is far away.
        """
        kind = "whole number" if self.whole else "number"
        kind = f"a {kind}" if self.length is None else f"{self.length} {kind}s"
        low = f"{'from' if self.with_low else 'above'} {_write(self.low)}"
        high = f"{'to' if self.with_high else 'to below'} {_write(self.high)}"
        if self.high >= FAR and not too_high:
            high = "upwards"
        further = "".join(f", or {_write(value)}: {what}" for value, what in self.special.items())
        return f"{kind} {low} {high} ({self.means}{further})"


def _write(number: float) -> str:
    """Return a number without a point where it is whole."""
    return str(int(number)) if isfinite(number) and number == int(number) else f"{number:g}"


ANY = Range("finite", -1e300, 1e300, True, True, whole=False)
"""Range of a number that the table does not have."""


@cache
def _read() -> dict[str, Range]:
    """Return the table: names and patterns of options -> range."""
    table = tomllib.loads(TABLE.read_text("utf-8"))
    return {name: _make(row) for row in table.values() for name in row["options"].split()}


def _make(row: Mapping[str, Any]) -> Range:
    interval = row.get("whole") or row["real"]
    number = int if "whole" in row else float
    low, high = map(number, interval[1:-1].split(","))
    special = {number(value): what for value, what in row.get("special", {}).items()}
    ends = interval[0] == "[", interval[-1] == "]"
    return Range(row["means"], low, high, *ends, "whole" in row, special, row.get("length"))


def rows() -> Iterator[tuple[str, Range]]:
    """Yield (option, range) of the table; an option may be a pattern with `*`."""
    yield from _read().items()


def find_range(*names: str) -> Range | None:
    """Return the range of an option by the first of its names in the table; None without one."""
    table = _read()
    for name in names:
        if name in table:
            return table[name]
    patterns = [pattern for pattern in table if "*" in pattern]
    found = (p for name in names for p in patterns if fnmatchcase(name, p))
    return next((table[pattern] for pattern in found), None)


def check_number(given: str, value: Any, *names: str) -> None:
    """Raise UsageError if the value of an option is a number, or numbers, out of range.

    Args:
        given: how the option was given, as in "--dropout" or "model.dropout".
        value: anything; what is no number is refused for an option of `AS_TEXT` alone, and text is
            not read for an option that the table has by a pattern.
        names: of the option in the table; the first that it has counts.
    """
    accepted = find_range(*names)
    if isinstance(value, str) and not any(name in _read() or name in AS_TEXT for name in names):
        return
    if accepted is None and not isinstance(value, int | float):
        return
    numbers = _read_numbers(value)
    if numbers is None and (value is None or AS_TEXT.isdisjoint(names) or REFERENCE.match(value)):
        return
    accepted, numbers = accepted or ANY, numbers or []
    right_length = bool(numbers) if accepted.length is None else len(numbers) == accepted.length
    if not right_length or not all(map(accepted.accepts, numbers)):
        too_high = any(number > accepted.high for number in numbers)
        shown = _write(value) if isinstance(value, int | float) else f"'{value}'"[:80]
        raise UsageError(f"{given} is {shown}; give {accepted.describe(too_high)}")


def _read_numbers(value: Any) -> list[float] | None:
    """Return the number or numbers of a value, of text too; None if it is something else."""
    if isinstance(value, str):
        from fairseq_ext.safe_loading import parse_literal

        try:
            value = parse_literal(value)
        except UsageError:
            return None
    values = list(value) if isinstance(value, Sequence) else [value]
    if all(isinstance(number, int | float) and not isinstance(number, bool) for number in values):
        return values
    return None
