"""Files of the numbers that an analysis computes: CSV and JSON."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq_ext.evaluation.layout import records_as_csv
from fairseq_ext.files import atomic_writer


def write_rows(rows: Sequence[Mapping[str, Any]], stem: Path, **about: Any) -> None:
    """Write rows to STEM.csv, and to STEM.json together with facts about them."""
    with atomic_writer(stem.with_suffix(".csv")) as file:
        file.write(records_as_csv(rows))
    write_json({**about, "rows": [dict(row) for row in rows]}, stem.with_suffix(".json"))


def write_json(value: Any, path: Path, indent: int | None = 1) -> None:
    """Write a value as JSON; numbers that are not finite become null, paths become strings."""
    with atomic_writer(path) as file:
        json.dump(_as_plain(value), file, indent=indent, ensure_ascii=False)
        file.write("\n")


def _as_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _as_plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_as_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
