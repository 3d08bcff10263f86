"""Ranges of numbers of options, checked at start.

ranges.toml is the table of fairseq's options; ours say their ranges where they stand (see
`attention/options.py`). `rows` yields all and `find_range` looks an option up: inside its range an
option works (or is refused with what it was combined with), outside it is refused. Large sizes
inside a range may still need more memory than a machine has.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from fairseq_ext.attention.options import RANGES, Range, read_range
from fairseq_ext.errors import UsageError

TABLE = Path(__file__).with_suffix(".toml")

AS_TEXT = frozenset(
    "batch_size_valid max_tokens_valid decoder_embed_dim decoder_ffn_embed_dim decoder_input_dim "
    "decoder_output_dim encoder_layers_to_keep decoder_layers_to_keep total_num_update "
    "adam_betas adamax_betas adafactor_eps".split()
)
"""Options that fairseq's parsers keep as text, to be read as numbers later."""

REFERENCE = re.compile(r"\$\{|\?\?\?")  # to another option, or none given yet

ANY = Range("finite", -1e300, 1e300, True, True, whole=False)
"""Range of a number that the table does not have."""


@cache
def _read() -> dict[str, Range]:
    """Return the table: names and patterns of options -> range."""
    table = tomllib.loads(TABLE.read_text("utf-8"))
    return {
        option: _make(row.get("means", kind), row)
        for kind, row in table.items()
        for option in row["options"].split()
    }


def _make(means: str, row: Mapping[str, Any]) -> Range:
    number = int if "whole" in row else float
    special = {number(value): what for value, what in row.get("special", {}).items()}
    interval = row.get("whole") or row["real"]
    return read_range(interval, means, "whole" in row, special, row.get("length"))


def rows() -> Iterator[tuple[str, Range]]:
    """Yield (option, range) of the table and of ours; an option may be a pattern with `*`."""
    yield from (_read() | RANGES).items()


def find_range(*names: str) -> Range | None:
    """Return the range of an option by the first of its names that has one; None without one."""
    table = _read()
    for name in names:
        if accepted := RANGES.get(name) or table.get(name):
            return accepted
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
    listed = {*_read(), *RANGES, *AS_TEXT}
    if isinstance(value, str) and listed.isdisjoint(names):
        return
    if accepted is None and not isinstance(value, int | float):
        return
    numbers = _read_numbers(value)
    if numbers is None and (value is None or AS_TEXT.isdisjoint(names) or REFERENCE.match(value)):
        return
    (accepted or ANY).check(given, value, numbers or [])


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
