"""The weight of attention guidance over a training."""

import math
from typing import NamedTuple

from fairseq_ext.errors import UsageError

ALPHA_CHOICES = (1.0, 10.0, 100.0)  # alpha_0 in the paper


class Schedule(NamedTuple):
    """alpha_t / alpha_0: 1 up to update `hold`, then linear, 0 from update `end` on.

    The paper has no plateau, its released code one of 20,000 updates.
    """

    hold: int
    end: int

    def factor(self, updates: int) -> float:
        """For the update after `updates` others."""
        if updates < self.hold:
            return 1.0
        return max(0.0, (self.end - updates) / max(1, self.end - self.hold))


def build_schedule(decay: int | None, hold: int, max_update: int) -> Schedule:
    """From --ag-decay-updates, --ag-hold-updates and --max-update; raises UsageError."""
    end = max_update if decay is None else decay
    if end < 1:
        given = "there is no --max-update" if decay is None else f"--ag-decay-updates is {decay}"
        raise UsageError(f"{given}; say at which update guidance ends, as --ag-decay-updates N")
    if not 0 <= hold <= end:
        raise UsageError(
            f"--ag-hold-updates is {hold}; give a number from 0 to {end}, where guidance ends"
        )
    return Schedule(hold, end)


def parse_alpha(text: str) -> float | None:
    """alpha_0; None for "auto". Raises UsageError for anything but a number from 0."""
    try:
        alpha = None if text == "auto" else float(text)
    except ValueError:
        alpha = math.nan
    if alpha is not None and not 0 <= alpha < math.inf:
        raise UsageError(f"--ag-alpha is '{text}'; give a number from 0, or auto")
    return alpha


def choose_alpha(task: float, guidance: float) -> float | None:
    """The paper's rule: of 1, 10, 100, what brings both losses closest in size at the start; None
    if one of them says nothing."""
    if not (task > 0 and guidance > 0):
        return None
    return min(ALPHA_CHOICES, key=lambda alpha: abs(math.log(task / (alpha * guidance))))
