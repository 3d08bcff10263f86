"""Mixers of a layer's heads, built from the words of options."""

from collections.abc import Mapping
from typing import Any

from fairseq_ext.attention import MIXERS, HeadMixer
from fairseq_ext.errors import UsageError
from fairseq_ext.models import config


def build_mixer(
    site: str, layer: int, heads: int, width: int, options: Mapping[str, Any]
) -> HeadMixer | None:
    """Build the mixer of the heads at a site of a layer of this width; return None without one.

    Raises:
        UsageError: the mixer is not known, or refuses the width of a head.
    """
    option = f"{site}_head_mixer"
    name = options[option]
    if name not in MIXERS:
        raise UsageError(f"{config.flag(option)} is {name!r}; choose from {', '.join(MIXERS)}")
    if heads < 1 or width % heads:
        return None  # attention refuses that
    return MIXERS.build(name, heads, width=width // heads, layer=layer, **options)
