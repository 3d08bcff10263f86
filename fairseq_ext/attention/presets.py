"""Presets: names of mechanisms that architectures have, and the options that these set."""

from typing import Any

PRESETS: dict[str, dict[str, dict[str, Any]]] = {}
"""Family of architectures -> name of a mechanism -> options of `FAMILY_NAME…`."""


def preset(name: str, families: str, **options: Any) -> None:
    """Let architectures FAMILY_NAME of every size have these options.

    Args:
        name: small letters, digits and _.
        families: of "transformer", "roberta", "deberta" and "transformer_lm", with blanks between.
        options: as in `encoder_normaliser="softmax"`.
    """
    for family in families.split():
        PRESETS.setdefault(family, {})[name] = options


preset("una", "transformer roberta deberta", encoder_normaliser="softmax")
preset("una", "transformer_lm", decoder_normaliser="softmax")
