"""Settings of early versions, and what they are called now.

Checkpoints are upgraded when they are read, so that nothing else knows of early versions.
"""

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

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


def upgrade_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options, by name, under the names and with the values that they have now."""
    upgraded = dict(options)
    for old, (new, values) in CHANGED.items():
        if old in options:
            value = upgraded.pop(old)
            value = values.get(str(value), value)
            if old == new or str(value) != OFF:
                upgraded[new] = value
            upgraded.setdefault(new, value)
    return upgraded
