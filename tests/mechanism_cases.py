"""Mechanisms as the suites take them: the file of tests of each one says what they need to know."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from fairseq_ext.attention.parts import OWN, Parts
from fairseq_ext.attention.slots import SLOTS

FOLDER = Path(__file__).parent / "mechanisms"
TABLES: dict[str, Parts] = {name: slot.parts for name, slot in SLOTS.items()}
BIASES = {"queries": "k_proj.bias", "keys": "q_proj.bias"}


@dataclass(frozen=True)
class Case:
    """A mechanism, which is a part in a table or stands elsewhere.

    Attributes:
        name: in combinations.
        slot: the name of its table in TABLES, or what its kind is called.
        part: its name in that table (default: `name`).
        twin: its naive form, as the functions of fairseq_ext.testing take it.
        options: with which options the part is checked; with all but the first one in slow tests.
        sums_to_one: rows of its weights do.
        models: further models for test_invariants.py, name -> options of transformer_una_tiny.
        flags: for an encoder of 8 heads, or "" if its criterion is all; None: it is not combined.
        paper: it is of one of the five papers, and has a row and a column in *Together*.
        neutral: options with which it has no effect; None: as SLOTS of test_combinations.py says.
        own: what stands in the name of a parameter of its own.
        apart: names and slots of what it does not go with.
        encoder_only: a decoder cannot have it.
        ignores: a constant in the scores of a query does not matter to it ("queries"), or in those
            of a key ("keys"); None: both do.
        biases: the parameters that are such constants.
    """

    name: str
    slot: str
    part: str = ""
    twin: Callable[..., Any] | None = None
    options: Sequence[Mapping[str, Any]] = ({},)
    sums_to_one: bool = True
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    flags: str | None = None
    paper: bool = False
    neutral: Mapping[str, Any] | None = None
    own: str | None = None
    apart: Sequence[str] = ()
    encoder_only: bool = False
    ignores: str | None = "queries"
    biases: Mapping[str, str] = field(default_factory=lambda: BIASES)

    @property
    def key(self) -> tuple[str, str]:
        return self.slot, self.part or self.name

    def build(self, heads: int, **further: Any) -> Any:
        """Build the part with its first options; others have their default values."""
        slot, part = self.key
        defaults = {name: each.default for name, each in TABLES[slot][part].options.items()}
        return TABLES[slot].build(part, heads, **(defaults | dict(self.options[0]) | further))


def softmax(scores, masked, absent, normaliser, head):
    e = torch.where(masked, 0, scores.exp())
    return torch.stack([row / row.sum() for row in e])


def dot(q, k, scorer, head):
    return torch.stack([torch.stack([(x * y).sum() for y in k]) for x in q]) / q.size(1) ** 0.5


CORE = [
    Case("softmax", "normaliser", twin=softmax),
    Case("dot", "scorer", twin=dot),
    *(Case(name, "positions") for name in ("sinusoidal", "learned", "none")),
    Case("none", "head_mixer"),
    Case("none", "head_gate"),
]
"""Parts of attention without a mechanism."""


def load(name: str) -> ModuleType:
    """Import tests/mechanisms/test_NAME.py; by this function alone tests use each other."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    return import_module(f"test_{name}")


@cache
def list_cases() -> list[Case]:
    """Return the cases of all mechanisms."""
    names = [path.stem.removeprefix("test_") for path in sorted(FOLDER.glob("test_*.py"))]
    return [*CORE, *(case for name in names for case in getattr(load(name), "CASES", ()))]


def list_parts() -> list[tuple[str, str]]:
    """Return the slot and the name of each part of ours."""
    tables = {slot: table.parts() for slot, table in TABLES.items()}
    return [
        (s, n) for s, parts in tables.items() for n, part in parts.items() if part.package == OWN
    ]


def find_case(slot: str, part: str) -> Case:
    """Return the case of a part; where there is none, say which file is to have it."""
    for case in list_cases():
        if case.key == (slot, part):
            return case
    module = TABLES[slot][part].make.__module__.split(".")[2]
    raise AssertionError(
        f"no test knows the {slot} {part!r}: write tests/mechanisms/test_{module}.py with CASES, "
        f"a list that has Case({part!r}, {slot!r}, twin=..., flags=...) of mechanism_cases.py"
    )
