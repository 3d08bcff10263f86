"""Layers in the words of an option: "all", "0,3"."""

from collections.abc import Iterable, Mapping

from fairseq_ext.errors import UsageError

ALL = {"all": slice(None)}


def choose_layers(
    flag: str,
    text: str,
    layers: Iterable[int],
    words: Mapping[str, slice] = ALL,
    of: str = "layers",
) -> list[int]:
    """Those of `layers` that are named, by one of the words or by numbers with commas.

    Args:
        words: which part of all layers each means.
        of: what the layers are called in an error.

    Raises:
        UsageError: a word or a number is not among them.
    """
    layers = sorted(layers)
    if text in words:
        return layers[words[text]]
    named = [part.strip() for part in text.split(",")]
    chosen = {int(part) for part in named if part.isdecimal()}
    if len(chosen) < len(set(named)) or not chosen <= set(layers):
        raise UsageError(
            f"{flag} is '{text}'; give {', '.join(words)}, or some of the {of} "
            f"{', '.join(map(str, layers))}, as in {layers[0]},{layers[-1]}"
        )
    return sorted(chosen)
