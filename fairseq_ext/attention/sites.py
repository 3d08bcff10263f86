"""Sites of attention in a model, and layers by the words of options."""

from collections.abc import Iterable, Mapping

from fairseq_ext.errors import UsageError

SITES = ("encoder", "decoder", "cross")
"""Self-attention of an encoder and of a decoder, and attention of a decoder to an encoder."""

ALL_LAYERS = {"all": slice(None)}


def choose_layers(
    flag: str,
    text: str,
    layers: Iterable[int],
    keywords: Mapping[str, slice] = ALL_LAYERS,
    noun: str = "layers",
) -> list[int]:
    """Return the layers that a text names, by a keyword or by numbers separated by commas.

    Args:
        flag: the option, for errors.
        text: its value.
        layers: all there are.
        keywords: keyword -> the part of all layers that it means.
        noun: what the layers are called in errors.

    Raises:
        UsageError: a keyword or a number is not among them.
    """
    layers = sorted(layers)
    if text in keywords:
        return layers[keywords[text]]
    parts = [part.strip() for part in text.split(",")]
    chosen = {int(part) for part in parts if part.isdecimal()}
    if len(chosen) < len(set(parts)) or not chosen <= set(layers):
        raise UsageError(
            f"{flag} is '{text}'; give {', '.join(keywords)}, or some of the {noun} "
            f"{', '.join(map(str, layers))}, as in {layers[0]},{layers[-1]}"
        )
    return sorted(chosen)
