"""Which heads are hard-coded and where they look, from the words of the options."""

import math
from typing import Any

from fairseq_ext.attention import HeadGroup, build_gaussian_heads
from fairseq_ext.errors import UsageError
from fairseq_ext.guidance.selection import ALL_LAYERS, choose_layers


def hard_coded_heads(
    site: str, layer: int, heads: int, layers: int, options: dict[str, Any]
) -> HeadGroup | None:
    """The hard-coded heads of a layer at a site, or None.

    Args:
        heads, layers: how many the site has.

    Raises:
        UsageError: an option cannot be read, fits neither heads nor layers, or has no effect.
    """
    count = _count(f"--{site}-gaussian-heads", options[f"{site}_gaussian_heads"], heads)
    if not count:
        return None
    normaliser = str(options[f"{site}_normaliser"])
    if count == heads and normaliser != "softmax":
        raise UsageError(
            f"--{site}-gaussian-heads {options[f'{site}_gaussian_heads']} leaves no head to "
            f"--{site}-normaliser {normaliser}, since hard-coded heads are not normalised; give "
            f"fewer of them, or --{site}-normaliser softmax"
        )
    offsets, sigmas = (
        _numbers(f"--{name.replace('_', '-')}", options[name], layer, count, layers)
        for name in (f"{site}_gaussian_offsets", "gaussian_sigma")
    )
    ratio = options["gaussian_ratio"] if site == "cross" else 1.0
    return build_gaussian_heads(offsets, sigmas, ratio)


def cross_layers(text: str, layers: int) -> list[int]:
    """ "all", "last" or "0,3": the decoder layers with attention to the encoder."""
    words = {**ALL_LAYERS, "last": slice(-1, None)}
    return choose_layers("--cross-layers", text, range(layers), words)


def _count(flag: str, text: str, heads: int) -> int:
    if text == "all":
        return heads
    if not text.isdecimal() or int(text) > max(heads, 0):
        raise UsageError(f"{flag} is '{text}'; give all, or a number from 0 to {heads}")
    return int(text)


def _numbers(flag: str, text: str, layer: int, heads: int, layers: int) -> list[float]:
    """ "-1,1" for all layers or "-1,1/-2,2" for each; numbers are repeated over the heads."""
    try:
        parts = [[float(number) for number in part.split(",")] for part in text.split("/")]
    except ValueError:
        parts = [[math.nan]]
    if not all(math.isfinite(number) for part in parts for number in part):
        example = "=-1,1" if flag.endswith("offsets") else " 1,2"
        raise UsageError(
            f"{flag} is '{text}'; give numbers with commas between them, as in {flag}{example}"
        )
    if len(parts) not in (1, layers) or any(heads % len(part) for part in parts):
        raise UsageError(
            f"{flag} is '{text}', which fits neither {heads} hard-coded heads nor {layers} layers; "
            f"give a number for each head, or so many that they can be repeated, and with / "
            "between layers one such list for each"
        )
    ours = parts[layer if len(parts) > 1 else 0]
    return ours * (heads // len(ours))
