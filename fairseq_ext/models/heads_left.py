"""Numbers of heads of layers from which heads were pruned, read from options."""

from collections.abc import Mapping
from typing import Any

from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.roles.role_masks import NO_ROLE
from fairseq_ext.models.config import flag
from fairseq_ext.models.head_options import build_positions

ALL = "all"


def list_heads_left(site: str, heads: int, layers: int, options: Mapping[str, Any]) -> list[int]:
    """Return the number of heads at a site of each layer.

    Args:
        site: "encoder", "decoder" (self-attention) or "cross".
        heads: the number of heads of a layer from which none was pruned.
        layers: the number of layers there.
        options: a value for each of `options.OPTIONS`.

    Raises:
        UsageError: the option cannot be read, or heads have parts by their number or position
            among all heads, or depend on each other.
    """
    name = f"{site}_heads_left"
    text = options.get(name, ALL)
    if text == ALL:
        return [heads] * layers
    numbers = text.split("/")
    if len(numbers) != layers or not all(n.isdecimal() and int(n) <= heads for n in numbers):
        raise UsageError(
            f"{flag(name, text)}: give {ALL}, or for each of the {layers} layers, with / between "
            f"them, a number from 0 to {heads}"
        )
    if reason := name_places(site, options):
        raise UsageError(
            f"{flag(name, text)} does not go with {reason}, since heads are pruned that it names, "
            "mixes or shares between layers; leave one of them out"
        )
    return [int(number) for number in numbers]


def name_places(site: str, options: Mapping[str, Any]) -> str | None:
    """Return the option, as it is given, that gives heads of a site a meaning by their place."""
    switched_off = {"gaussian_heads": "0", "roles": NO_ROLE, "head_mixer": "none"}
    for part, off in switched_off.items():
        name = f"{site}_{part}"
        if (value := options.get(name, off)) != off:
            return flag(name, value)
    positions = build_positions(site, 1, options)
    if positions is not None and positions.shared:
        return flag(f"{site}_positions", options[f"{site}_positions"])
    return None
