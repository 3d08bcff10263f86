"""Items of a stage, their settings and what they raise.

They have a module of their own, since `run` is another module in worker processes.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

Result = dict[str, Any]
"""`status` (ok, failed, skipped, crashed, unfinished), `seconds`, `why`, and an item's values."""


@dataclass(frozen=True)
class Options:
    """Settings of a stage: where to write, what to read, and how long it may take."""

    out: Path
    data: Path
    text: Path
    dry: bool
    deadline: float

    @property
    def device(self) -> str:
        return "cpu" if self.dry else "cuda"

    @property
    def runs(self) -> Path:
        """Folder of data, checkpoints and logs."""
        return self.out / "runs"

    def seconds_left(self) -> float:
        return max(1.0, self.deadline - time.time())


class Item(NamedTuple):
    """A function `do(options, *arguments)` that returns values or raises, by its row of a table."""

    table: str
    name: str
    do: Callable[..., Mapping[str, Any]]
    arguments: tuple[Any, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.table}: {self.name}"


class Unfinished(Exception):
    """Raised by an item that goes on in the next run."""


class Skipped(Exception):
    """Raised by an item that this machine cannot do; its text says why."""
