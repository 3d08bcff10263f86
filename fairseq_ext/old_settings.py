"""Settings of early versions, and what they are called now.

Checkpoints are upgraded when they are read, and options that a user gives when a model or criterion
is built, so that nothing else knows of early versions.
"""

import logging
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from fairseq_ext.errors import UsageError

logger = logging.getLogger(__name__)

CHANGED: dict[str, tuple[str, dict[str, str]]] = {
    "asa_rival": ("asa_baseline", {}),
    "head_gate": ("head_gate", {"False": "none", "True": "static"}),
}
"""Option of an early version -> its name now, and its former values -> values now."""

OFF = "none"
"""Value of an option of the table that nobody gave."""


def upgrade_checkpoint(state: Mapping[str, Any]) -> None:
    """Upgrade the settings of a checkpoint in place."""
    parts: Any = state["cfg"] if state.get("args") is None else state
    for name, options in parts.items():
        if isinstance(options, Namespace):
            options.__dict__ = upgrade_settings(vars(options))
        elif isinstance(options, Mapping):
            parts[name] = upgrade_settings(options)


def upgrade_settings(options: Mapping[str, Any], warn: bool = False) -> dict[str, Any]:
    """Return options under the names, and with the values, that they have now.

    Args:
        options: by name.
        warn: say what to give instead of an old name.

    Raises:
        UsageError: an option is given under both names, with different values.
    """
    upgraded = dict(options)
    for old, (new, values) in CHANGED.items():
        if old not in options:
            continue
        value = upgraded.pop(old)
        value = values.get(str(value), value)
        other = upgraded.setdefault(new, value)
        if old == new or str(value) == OFF:
            continue
        if str(other) not in (str(value), OFF):
            raise UsageError(
                f"{_flag(old)}, old for {_flag(new)}, is {value} and not {other}; leave it out"
            )
        upgraded[new] = value
        if warn:
            new_flag = _flag(new)
            text = "%s is the old name of %s; give %s %s"
            logger.warning(text, _flag(old), new_flag, new_flag, value)
    return upgraded


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"
