"""Choices among the cases of a test."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but_first(cases: Iterable[Any]) -> list[Any]:
    """Return the cases, of which all but the first are slow tests."""
    first, *rest = cases
    return [first, *(pytest.param(*_arguments(case), marks=pytest.mark.slow) for case in rest)]


def _arguments(case: Any) -> tuple:
    return case if isinstance(case, tuple) else (case,)
