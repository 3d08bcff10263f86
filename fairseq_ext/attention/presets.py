"""Presets: names of mechanisms that architectures have, and the options that these set."""

from typing import Any

PRESETS: dict[str, dict[str, dict[str, Any]]] = {}
"""Family of architectures -> name of a mechanism -> options of `FAMILY_NAME…`, by rank."""

LAST = 100

_RANKS: dict[tuple[str, str], int] = {}


def preset(name: str, families: str, rank: int = LAST, **options: Any) -> None:
    """Let architectures FAMILY_NAME of every size have these options.

    Args:
        name: small letters, digits and _.
        families: of "transformer", "roberta", "deberta" and "transformer_lm", with blanks between.
        rank: the lower, the earlier among the choices of --arch.
        options: as in `encoder_normaliser="softmax"`.
    """
    for family in families.split():
        _RANKS[family, name] = rank
        own = PRESETS.setdefault(family, {})
        own[name] = options
        for each in sorted(own, key=lambda each: _RANKS.get((family, each), LAST)):
            own[each] = own.pop(each)


preset("una", "transformer roberta deberta", 0, encoder_normaliser="softmax")
preset("una", "transformer_lm", 0, decoder_normaliser="softmax")
