"""Functions of earlier versions that asked what a scorer now says of itself."""

import math
from typing import Any


def uses_queries(scorer: Any) -> bool:
    """Return `scorer.uses_queries`."""
    return getattr(scorer, "uses_queries", True)


def uses_keys(scorer: Any) -> bool:
    """Return `scorer.uses_keys`."""
    return getattr(scorer, "uses_keys", True)


def find_length(scorer: Any) -> float:
    """Return `scorer.length`."""
    return getattr(scorer, "length", math.inf)


def find_scorer(groups: Any) -> Any:
    """Return the first scorer of encoders alone among groups of heads, or None."""
    scorers = (group.scorer for group in groups)
    return next((scorer for scorer in scorers if getattr(scorer, "encoder_only", False)), None)
