"""Heads and layers in the words of options ("next:1,prev:1,first:4", "all", "0,3"), checked."""

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
    """Heads that follow one pattern: numbers `start` to `stop` of the heads that can be guided."""

    pattern: str
    start: int
    stop: int


def find_guidable_heads(model: nn.Module) -> HeadsBySite:
    """Return the heads of a model that can be guided; none if its attention is not ours."""
    heads: dict[str, dict[int, Sequence[int]]] = {site: {} for site in SITES}
    for module in model.modules():
        if isinstance(module, Attention):
            heads[module.site][module.layer] = module.unrestricted_heads
    return heads


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


def parse_heads(flag: str, text: str) -> list[PatternHeads]:
    """Return the heads of each pattern in "next:1,prev:1", counted in the order of writing.

    Raises:
        UsageError: an unknown pattern, one twice, or a number that is none.
    """
    heads: list[PatternHeads] = []
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
        if name in [each.pattern for each in heads]:
            raise UsageError(f"{flag} names {name} twice; name it once, with all of its heads")
        start = heads[-1].stop if heads else 0
        heads.append(PatternHeads(name, start, start + int(number)))
    return heads


def split_fraction(fraction: float, heads: int) -> str:
    """Return the paper's split of a fraction of h heads: 1 next, 1 prev, fraction * h - 2 first.

    Raises:
        UsageError: there are fewer than 2 heads, or the fraction is more than all of them or less
            than 2.
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


def check_patterns(flag: str, site: str, heads: Sequence[PatternHeads], guidable: int) -> None:
    """Raise UsageError if heads are too many, or a pattern would let a decoder look ahead.

    Args:
        flag: the option that names the heads.
        site: where they are.
        heads: of each pattern.
        guidable: how many heads can be guided in the layer that has fewest of them.
    """
    if heads[-1].stop > guidable:
        raise UsageError(
            f"{flag} asks for {heads[-1].stop} heads, but a layer has {guidable} that can be "
            "guided, which hard-coded heads and those with a role cannot; guide fewer, or have "
            "fewer"
        )
    ahead = [each.pattern for each in heads if PATTERNS[each.pattern].looks_ahead]
    if site == "decoder" and ahead:
        allowed = [name for name, pattern in PATTERNS.items() if not pattern.looks_ahead]
        raise UsageError(
            f"{flag} names {ahead[0]}, which looks at tokens that a decoder has yet to write; "
            f"choose from {', '.join(allowed)}"
        )
