"""Heads and layers in the words of options: "next:1,prev:1,first:4", "all", "0,3"."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from torch import nn

from fairseq_ext.attention import Attention
from fairseq_ext.attention.model_report import HeadsBySite
from fairseq_ext.errors import UsageError
from fairseq_ext.guidance.patterns import PATTERNS

SITES = ("encoder", "decoder", "cross")
ALL_LAYERS = {"all": slice(None)}


class PatternHeads(NamedTuple):
    """Heads that follow one pattern: number `start` to `stop` of those that are free."""

    pattern: str
    start: int
    stop: int


def find_guidable_heads(model: nn.Module) -> HeadsBySite:
    """The heads of a model that can be guided; none if its attention is not ours."""
    places: dict[str, dict[int, Sequence[int]]] = {site: {} for site in SITES}
    for module in model.modules():
        if isinstance(module, Attention):
            places[module.site][module.layer] = module.unrestricted_heads
    return places


def parse_heads(flag: str, text: str) -> list[PatternHeads]:
    """ "next:1,prev:1" as guides, heads counted in the order of writing.

    Raises:
        UsageError: an unknown pattern, one twice, or a number that is none.
    """
    guides: list[PatternHeads] = []
    for part in text.split(","):
        name, _, number = part.strip().partition(":")
        if name not in PATTERNS:
            raise UsageError(
                f"{flag} names the pattern '{name}'; choose from {', '.join(PATTERNS)}, as in "
                "next:1,prev:1,first:4"
            )
        if not number.isdecimal() or int(number) < 1:
            raise UsageError(
                f"{flag} says '{part}'; give each pattern a number of heads from 1, as in {name}:1"
            )
        if name in [guide.pattern for guide in guides]:
            raise UsageError(f"{flag} names {name} twice; name it once, with all of its heads")
        start = guides[-1].stop if guides else 0
        guides.append(PatternHeads(name, start, start + int(number)))
    return guides


def split_fraction(fraction: float, heads: int) -> str:
    """The paper's split of a share of h heads: 1 next, 1 prev, fraction * h - 2 first.

    Raises:
        UsageError: there are fewer than 2, or the share is more than all of them or less than 2.
    """
    if heads < 2:
        raise UsageError(
            "guidance of a share of the heads needs 2 in each layer, one next and one prev, and a "
            f"layer has {heads} that can be guided, which hard-coded heads and those with a role "
            "cannot; give fewer of those, or leave guidance out"
        )
    if not 0 < fraction <= 1 or fraction * heads < 2:
        raise UsageError(
            f"--ag-fraction {fraction:g} of {heads} heads is {fraction * heads:g}; give a number "
            f"from {2 / heads:.3g} (one next and one prev) to 1 (all heads)"
        )
    first = round(fraction * heads) - 2
    return "next:1,prev:1" + (f",first:{first}" if first else "")


def check_patterns(
    flag: str, site: str, guides: Sequence[PatternHeads], layers: Mapping[int, Sequence[int]]
) -> None:
    """Raises UsageError for more heads than learn, or a pattern that would need to look ahead."""
    wanted, fewest = guides[-1].stop, min(map(len, layers.values()))
    if wanted > fewest:
        raise UsageError(
            f"{flag} asks for {wanted} heads, but a layer has {fewest} that can be guided, "
            "which hard-coded heads and those with a role cannot; guide fewer, or have fewer"
        )
    ahead = [guide.pattern for guide in guides if PATTERNS[guide.pattern].looks_ahead]
    if site == "decoder" and ahead:
        allowed = [name for name, known in PATTERNS.items() if not known.looks_ahead]
        raise UsageError(
            f"{flag} names {ahead[0]}, which looks at tokens that a decoder has yet to write; "
            f"choose from {', '.join(allowed)}"
        )


def choose_layers(
    flag: str,
    text: str,
    layers: Iterable[int],
    words: Mapping[str, slice] = ALL_LAYERS,
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
