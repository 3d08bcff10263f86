"""The weight alpha of attention guidance over a training (Deshpande & Narasimhan 2020)."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from fairseq_ext.errors import UsageError

ALPHA_CHOICES = (1.0, 10.0, 100.0)  # alpha_0 in the paper
DECODER_ALPHAS = (1.0,)  # ours for models with a decoder: in translation 10 slowed training
RELEASED_HOLD = 20_000  # updates, in the released code


class Schedule(NamedTuple):
    """The factor alpha_t / alpha_0: 1 up to update `hold`, then linear, 0 from update `end` on.

    The paper has no plateau, its released code one of 20,000 updates.
    """

    hold: int
    end: int

    def factor(self, updates: int) -> float:
        """Return alpha_t / alpha_0 for the update that follows `updates` others."""
        if updates < self.hold:
            return 1.0
        return max(0.0, (self.end - updates) / max(1, self.end - self.hold))


def build_schedule(decay: int | None, hold: int, max_update: int) -> Schedule:
    """Build a schedule from --ag-decay-updates, --ag-hold-updates and --max-update.

    Raises:
        UsageError: they do not say when guidance ends, or it ends before it starts to fall.
    """
    end = max_update if decay is None else decay
    if not end:
        raise UsageError(
            "there is no --max-update; say at which update guidance ends, as --ag-decay-updates N"
        )
    if hold > end:
        raise UsageError(f"--ag-hold-updates is {hold}; give 0 to {end}, where guidance ends")
    return Schedule(hold, end)


def parse_alpha(text: str | None) -> float | None:
    """Return alpha_0 from the text of --ag-alpha; None for "auto" and for no text.

    Raises:
        UsageError: the text is neither "auto" nor a number from 0.
    """
    try:
        alpha = None if text in (None, "auto") else float(text)
    except ValueError:
        alpha = math.nan
    if alpha is not None and not 0 <= alpha < math.inf:
        raise UsageError(f"--ag-alpha is '{text}'; give a number from 0, or auto")
    return alpha


def choose_alpha(
    task: float, guidance: float, alphas: Sequence[float] = ALPHA_CHOICES
) -> float | None:
    """Return the alpha_0 that brings both losses closest in size, the paper's rule.

    Args:
        task: the loss of the task at the start of training.
        guidance: the loss of guidance there.
        alphas: what to choose from.

    Returns:
        alpha_0, or None if one of the losses is not above 0 and so tells nothing.
    """
    if not (task > 0 and guidance > 0):
        return None
    return min(alphas, key=lambda alpha: abs(math.log(task / (alpha * guidance))))
