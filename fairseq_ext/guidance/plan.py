"""What is guided, from options of a criterion and what the model has; checked before training."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fairseq_ext.attention.model_report import HeadsBySite, get_model_report
from fairseq_ext.errors import UsageError
from fairseq_ext.guidance.patterns import PATTERNS
from fairseq_ext.guidance.selection import (
    SITES,
    PatternHeads,
    check_patterns,
    choose_layers,
    parse_heads,
    split_fraction,
)

# what the paper guides: for translation, and in an encoder alone
TRANSLATION_HEADS, ENCODER_FRACTION = "next:1,prev:1", 0.5
DEFAULT_PERIODS = ". \u2581."  # as in text, and in SentencePiece

PERIOD_SYMBOLS = ("--ag-period",)


class GuidedHeads(NamedTuple):
    """What is guided at one site.

    Attributes:
        layers: layer -> the guided heads, in the order of the guides.
        patterns: patterns and their heads, counted among the guided ones.
        symbol_ids: pattern -> ids of the symbols that it asked for.
    """

    layers: Mapping[int, Sequence[int]]
    patterns: list[PatternHeads]
    symbol_ids: dict[str, list[int]]

    def __str__(self) -> str:
        alike: dict[str, list[int]] = {}
        for layer, heads in self.layers.items():
            said = ", ".join(f"{_span(heads[g.start : g.stop])} {g.pattern}" for g in self.patterns)
            alike.setdefault(said, []).append(layer)
        return "; ".join(f"heads {h}, in layers {', '.join(map(str, n))}" for h, n in alike.items())


def _span(heads: Sequence[int]) -> str:
    return str(heads[0]) if len(heads) == 1 else f"{heads[0]}-{heads[-1]}"


def plan_guidance(cfg: Any, task: Any) -> dict[str, GuidedHeads]:
    """What is guided at each site; raises UsageError if that cannot be done."""
    places: HeadsBySite = get_model_report(task).guidable
    if not any(places.values()):
        raise UsageError(
            "--criterion asks to guide attention, but this --arch has none that can be; choose one "
            "of fairseq_ext, such as --arch transformer_una"
        )
    found = {
        site: _plan_site(_flag(cfg, site, words), words, site, places, cfg, task)
        for site, words in _words(cfg, places).items()
    }
    asked = {guide.pattern for guided in found.values() for guide in guided.patterns}
    if cfg.ag_period != DEFAULT_PERIODS and not any(
        PATTERNS[p].symbols == PERIOD_SYMBOLS for p in asked
    ):
        raise UsageError(
            f"--ag-period {cfg.ag_period} has no effect without the pattern period; leave it out, "
            "or give heads to that pattern"
        )
    return found


def _flag(cfg: Any, site: str, words: str) -> str:
    flag = f"--ag-{site}-heads"
    return flag if getattr(cfg, f"ag_{site}_heads") is not None else f"{flag} (here: {words})"


def _words(cfg: Any, places: HeadsBySite) -> dict[str, str]:
    words = {s: said for s in SITES if (said := getattr(cfg, f"ag_{s}_heads")) is not None}
    alone = not places["decoder"] and not places["cross"]
    if cfg.ag_fraction is None and (words or not alone):
        return words or {"encoder": TRANSLATION_HEADS}
    if "encoder" in words:
        raise UsageError(
            f"--ag-fraction {cfg.ag_fraction:g} and --ag-encoder-heads {words['encoder']} both say "
            "which heads of the encoder are guided; give one of them"
        )
    free = places["encoder"]
    fewest = min((len(free[layer]) for layer in _layers(cfg, "encoder", places)), default=0)
    fraction = ENCODER_FRACTION if cfg.ag_fraction is None else cfg.ag_fraction
    return {"encoder": split_fraction(fraction, fewest), **words}


def _layers(cfg: Any, site: str, places: HeadsBySite) -> list[int]:
    """Those that are to be guided, of those there are."""
    if not places[site]:
        return []
    said = f"layers with {site} attention"
    return choose_layers("--ag-layers", cfg.ag_layers, places[site], of=said)


def _plan_site(
    flag: str, words: str, site: str, places: HeadsBySite, cfg: Any, task: Any
) -> GuidedHeads:
    guides = parse_heads(flag, words)
    layers = _layers(cfg, site, places)
    if not layers:
        raise UsageError(
            f"this --arch has no {site} attention for {flag}; guide that of another site, or none"
        )
    check_patterns(flag, site, guides, {layer: places[site][layer] for layer in layers})
    words_of_keys = task.target_dictionary if site == "decoder" else task.source_dictionary
    marks = {g.pattern: _marks(flag, g.pattern, cfg.ag_period, words_of_keys) for g in guides}
    heads = {layer: places[site][layer][: guides[-1].stop] for layer in layers}
    return GuidedHeads(heads, guides, marks)


def _marks(flag: str, name: str, period: str, dictionary: Any) -> list[int]:
    """The ids of the symbols that a pattern asks for."""
    asked = PATTERNS[name].symbols
    symbols = period.split() if asked == PERIOD_SYMBOLS else asked
    known = [dictionary.index(symbol) for symbol in symbols if symbol in dictionary]
    if asked and not known:
        raise UsageError(
            f"{flag} names {name}, but the dictionary has none of its symbols, "
            f"{' '.join(symbols) or 'since --ag-period is empty'}; give --ag-period SYMBOL, or "
            "another pattern"
        )
    return known
