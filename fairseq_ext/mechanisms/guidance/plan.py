"""The plan of guidance, from a criterion's options and a model's heads; checked before training.

Options name heads as in "next:1,prev:1,first:4", and layers as in "all" or "0,3".
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import nn

from fairseq_ext.attention import Attention
from fairseq_ext.attention.sites import SITES, choose_layers
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.guidance.patterns import PATTERNS, PERIOD_FLAG

TRANSLATION_HEADS = "next:1,prev:1"  # the heads that the paper guides in translation models
DECODER_HEADS = "prev:1,first:1"  # what it guides and a decoder can do; our choice
ENCODER_FRACTION = 0.5  # the fraction of heads that it guides in an encoder alone
DEFAULT_PERIODS = ". \u2581."  # in text, and in pieces of SentencePiece


HeadsBySite = Mapping[str, Mapping[int, Sequence[int]]]
"""site -> layer -> the heads there that are free to learn what they look at."""


class PatternHeads(NamedTuple):
    """Heads that follow one pattern: numbers `start` to `stop` of the heads that can be guided."""

    pattern: str
    start: int
    stop: int


class GuidedHeads(NamedTuple):
    """The guided heads of one site.

    Attributes:
        layers: layer -> its guided heads, in the order of the patterns.
        patterns: patterns and their heads, counted among the guided heads.
        symbol_ids: pattern -> ids of the symbols that it asks for.
    """

    layers: Mapping[int, Sequence[int]]
    patterns: list[PatternHeads]
    symbol_ids: dict[str, list[int]]

    def __str__(self) -> str:
        layers: dict[str, list[str]] = {}  # by the description of their heads
        for layer, heads in self.layers.items():
            parts = [f"{_span(heads[p.start : p.stop])} {p.pattern}" for p in self.patterns]
            layers.setdefault(", ".join(parts), []).append(str(layer))
        return "; ".join(f"heads {h}, in layers {', '.join(names)}" for h, names in layers.items())


def _span(heads: Sequence[int]) -> str:
    return str(heads[0]) if len(heads) == 1 else f"{heads[0]}-{heads[-1]}"


def plan_guidance(cfg: Any, task: Any, guidable: HeadsBySite) -> dict[str, GuidedHeads]:
    """Return the guided heads of each site, of a model's heads that can be guided.

    Raises:
        UsageError: the options cannot be met with this model and dictionary.
    """
    if not any(guidable.values()):
        raise UsageError(
            "this --arch has no attention to guide; give another, such as --arch transformer_una"
        )
    texts = _texts_of_sites(cfg, guidable)
    plan = {site: _plan_site(site, text, guidable, cfg, task) for site, text in texts.items()}
    symbols = [PATTERNS[name].symbols for heads in plan.values() for name in heads.symbol_ids]
    if cfg.ag_period != DEFAULT_PERIODS and PERIOD_FLAG not in symbols:
        raise UsageError(
            f"--ag-period {cfg.ag_period} has no effect without the pattern period; leave it out"
        )
    return plan


def _texts_of_sites(cfg: Any, guidable: HeadsBySite) -> dict[str, str]:
    """Return site -> patterns and numbers of heads as text, such as "next:1,prev:1"."""
    options = {site: getattr(cfg, f"ag_{site}_heads") for site in SITES}
    texts = {site: text for site, text in options.items() if text is not None}
    if not guidable["encoder"] and not guidable["cross"]:
        if cfg.ag_fraction is None:
            return texts or {"decoder": DECODER_HEADS}
        raise UsageError(
            f"--ag-fraction {cfg.ag_fraction:g} is a share of the encoder's heads, and this --arch "
            f"has no encoder; give --ag-decoder-heads, as in {DECODER_HEADS}"
        )
    if cfg.ag_fraction is None and (texts or not is_encoder_alone(guidable)):
        return texts or {"encoder": TRANSLATION_HEADS}
    if "encoder" in texts:
        raise UsageError(
            f"give --ag-fraction {cfg.ag_fraction:g} or --ag-encoder-heads {texts['encoder']} alone"
        )
    fewest = min(map(len, _guided_layers("encoder", guidable, cfg).values()), default=0)
    fraction = ENCODER_FRACTION if cfg.ag_fraction is None else cfg.ag_fraction
    return {"encoder": split_fraction(fraction, fewest), **texts}


def is_encoder_alone(guidable: HeadsBySite) -> bool:
    """Return whether a model, of which these heads can be guided, has no decoder."""
    return not guidable["decoder"] and not guidable["cross"]


def _guided_layers(site: str, guidable: HeadsBySite, cfg: Any) -> dict[int, Sequence[int]]:
    """Return the guidable heads of the layers that --ag-layers names, none without the site."""
    heads, noun = guidable[site], f"layers with {site} attention"
    layers = choose_layers("--ag-layers", cfg.ag_layers, heads, noun=noun) if heads else []
    return {layer: heads[layer] for layer in layers}


def _plan_site(site: str, text: str, guidable: HeadsBySite, cfg: Any, task: Any) -> GuidedHeads:
    given = getattr(cfg, f"ag_{site}_heads") is not None
    flag = f"--ag-{site}-heads" + ("" if given else f" (here: {text})")
    patterns = parse_heads(flag, text)
    layers = _guided_layers(site, guidable, cfg)
    if not layers:
        raise UsageError(f"this --arch has no {site} attention for {flag}; leave that out")
    check_patterns(flag, site, patterns, min(map(len, layers.values())))
    dictionary = task.target_dictionary if site == "decoder" else task.source_dictionary
    names = [each.pattern for each in patterns]
    return GuidedHeads(
        layers={layer: heads[: patterns[-1].stop] for layer, heads in layers.items()},
        patterns=patterns,
        symbol_ids={name: _symbol_ids(flag, name, cfg.ag_period, dictionary) for name in names},
    )


def _symbol_ids(flag: str, name: str, period: str, dictionary: Any) -> list[int]:
    """Return the ids of the symbols that a pattern asks for, of those in the dictionary."""
    asked = PATTERNS[name].symbols
    symbols = period.split() if asked == PERIOD_FLAG else asked
    ids = [dictionary.index(symbol) for symbol in symbols if symbol in dictionary]
    if asked and not ids:
        raise UsageError(
            f"{flag} names {name}, but the dictionary has none of its symbols, "
            f"{' '.join(symbols) or 'since --ag-period is empty'}; give --ag-period SYMBOL, or "
            "another pattern"
        )
    return ids


def find_guidable_heads(model: nn.Module) -> HeadsBySite:
    """Return the heads of a model that can be guided; none if its attention is not ours."""
    heads: dict[str, dict[int, Sequence[int]]] = {site: {} for site in SITES}
    for module in model.modules():
        if isinstance(module, Attention):
            heads[module.site][module.layer] = module.unrestricted_heads
    return heads


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
                f"{flag} names '{name}'; choose from {', '.join(PATTERNS)}, as in next:1,prev:1"
            )
        if not number.isdecimal() or int(number) < 1:
            raise UsageError(f"{flag} says '{part}'; give a number of heads from 1, as in {name}:1")
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
    if not 2 <= fraction * heads <= heads:
        raise UsageError(
            f"--ag-fraction {fraction:g} of {heads} heads is {fraction * heads:g}; give a number "
            f"from {math.ceil(2000 / heads) / 1000:g} (one next and one prev) to 1 (all heads)"
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
            f"{flag} asks for {heads[-1].stop} heads; a layer has {guidable} that can be guided, "
            "which hard-coded heads and those with a role cannot; guide fewer, or have fewer"
        )
    ahead = [each.pattern for each in heads if PATTERNS[each.pattern].looks_ahead]
    if site == "decoder" and ahead:
        allowed = [name for name, pattern in PATTERNS.items() if not pattern.looks_ahead]
        raise UsageError(
            f"{flag} names {ahead[0]}, which looks ahead of a decoder; give {', '.join(allowed)}"
        )
