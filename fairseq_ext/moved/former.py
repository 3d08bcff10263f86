"""Functions of earlier versions that asked what a scorer now says of itself."""

from typing import Any


def uses_queries(scorer: Any) -> bool:
    """Return `scorer.uses_queries`."""
    return scorer.uses_queries


def uses_keys(scorer: Any) -> bool:
    """Return `scorer.uses_keys`."""
    return scorer.uses_keys


def find_length(scorer: Any) -> int:
    """Return `scorer.length`."""
    return scorer.length


def find_scorer(groups: Any) -> Any:
    """Return the first scorer of encoders alone among groups of heads, or None."""
    scorers = (group.scorer for group in groups)
    return next((scorer for scorer in scorers if scorer.encoder_only), None)
