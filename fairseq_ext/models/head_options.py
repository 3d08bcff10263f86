"""Groups of a layer's heads, built from the words of options.

Hard-coded heads (You et al. 2020) come first, then heads with a role (Wang et al. 2020), then
others. A list in an option holds for all layers; slashes separate lists of single layers.
"""

import math
from collections.abc import Collection, Mapping
from copy import copy
from typing import Any

from torch import nn

from fairseq_ext.attention import (
    GATES,
    MASKS,
    NORMALISERS,
    POSITIONS,
    SCORERS,
    Attention,
    HeadGate,
    HeadGroup,
    build_normaliser,
)
from fairseq_ext.attention.gates import FORMER_VALUES
from fairseq_ext.attention.masks import DEFAULT_MASKS, MaskFunction
from fairseq_ext.attention.positions import EMBEDDED, Positions
from fairseq_ext.attention.sites import ALL_LAYERS, SITES, choose_layers
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.gaussian import build_gaussian_heads
from fairseq_ext.mechanisms.roles.role_masks import RoleMask
from fairseq_ext.models import config
from fairseq_ext.models.role_options import check_role_heads, parse_roles, scale_queries

NOT_OF_HARD_CODED_HEADS: dict[str, tuple[tuple[str | None, ...], str]] = {
    "normaliser": (("softmax",), "are not normalised"),
    "scorer": (("dot",), "have scores of their own"),
    "positions": (("none", None, *EMBEDDED), "have positions of their own"),
}
"""Slot -> values that hard-coded heads alone go with, the first one advised, and the reason."""


def count_heads(site: str, heads: int, options: Mapping[str, Any]) -> int:
    """Return the number of heads at a site, on a side of the model that has `heads`."""
    return (options["cross_attention_heads"] if site == "cross" else 0) or heads


def build_heads(
    site: str,
    layer: int,
    heads: int,
    layers: int,
    options: Mapping[str, Any],
    width: int = 1,
    unpruned: int | None = None,
) -> list[HeadGroup]:
    """Build the groups of the heads at a site of a layer.

    Args:
        site: "encoder", "decoder" (self-attention) or "cross".
        heads: the number of heads of each layer there.
        layers: the number of layers there.
        options: a value for each of `options.OPTIONS`.
        width: D, the width of a head; it does not matter to what the groups compute.
        unpruned: the number of heads before some were pruned.

    Raises:
        UsageError: an option cannot be read, fits neither heads nor layers, or has no effect.
    """

    def choose(slot: str, parts: Collection[str]) -> str:
        option = f"{site}_{slot}"
        if options[option] not in parts:
            raise UsageError(
                f"{config.flag(option)} is {options[option]!r}; choose from {', '.join(parts)}"
            )
        return options[option]

    named = site == "encoder" and parse_roles(options["encoder_roles"], layers)
    factor = scale_queries(named, options, unpruned or heads) if named else 1.0

    def group(count: int, *masks: MaskFunction) -> HeadGroup:
        own = slice(heads - hard - rest, heads - hard - rest + count)
        return HeadGroup(
            count,
            normaliser=build_normaliser(choose("normaliser", NORMALISERS), count, **options),
            scorer=SCORERS.build(choose("scorer", SCORERS), count, width=width, **options),
            masks=(*DEFAULT_MASKS, *build_masks(site, count, options), *masks),
            positions=build_positions(site, heads - hard, options, own),
            query_factor=factor,
            made_by="--encoder-roles" if masks else "",
        )

    hard_coded = build_hard_coded_heads(site, layer, heads, layers, options)
    groups = [] if hard_coded is None else [hard_coded]
    hard = sum(each.num_heads for each in groups)
    rest = heads - hard
    if named and (names := named[layer]):
        check_role_heads(len(names), layer, rest)
        groups.append(group(len(names), RoleMask(names, str(options["role_definitions"]))))
        rest -= len(names)
    return [*groups, group(rest)] if rest else groups


def build_positions(
    site: str, heads: int, options: Mapping[str, Any], own: slice = slice(None)
) -> Positions | None:
    """Build the positions in the self-attention of a site, or return None if it has none.

    Args:
        heads: those that have positions there.
        own: those of them that are built.

    Raises:
        UsageError: they rotate queries and keys that the scorer does not compare.
    """
    name = options.get(f"{site}_positions")
    if name is None:
        return None
    if name not in POSITIONS:
        raise UsageError(f"--{site}-positions is '{name}'; choose from {', '.join(POSITIONS)}")
    scorer = options[f"{site}_scorer"]
    if name == "rotary" and scorer != "dot":
        raise UsageError(
            f"--{site}-positions rotary turns queries and keys, which --{site}-scorer {scorer} "
            f"does not multiply; give --{site}-scorer dot, or other positions"
        )
    if (positions := POSITIONS.build(name, heads, **options)) is not None:
        positions.own = own
    return positions


def embed_positions(cfg: Any, side: str) -> Any:
    """Return a configuration that embeds positions as the option of a side of the model says."""
    name = getattr(cfg, f"{side}_positions", None)
    if name is None:
        return cfg
    cfg = copy(cfg)
    cfg.no_token_positional_embeddings = name not in EMBEDDED
    setattr(cfg, side, copy(getattr(cfg, side)))
    getattr(cfg, side).learned_pos = EMBEDDED.get(name, False)
    return cfg


def name_positions(side: str, options: Mapping[str, Any]) -> str:
    """Return the positions of a side of the model, by fairseq's flags if our option is not given.

    Without these flags it is an encoder of fairseq's RoBERTa, which learns them, or is sinusoidal.
    """
    if (name := options.get(f"{side}_positions")) is not None:
        return str(name)
    if options.get("no_token_positional_embeddings"):
        return "none"
    alone = side == "encoder" and "decoder_layers" not in options
    return "learned" if options.get(f"{side}_learned_pos", alone) else "sinusoidal"


def build_masks(site: str, heads: int, options: Mapping[str, Any]) -> list[MaskFunction]:
    """Build the masks of a site beside the default ones.

    Raises:
        UsageError: a mask is not known.
    """
    names = [name.strip() for name in options[f"{site}_masks"].split(",")]
    if unknown := [name for name in names if name not in MASKS and names != ["none"]]:
        choices = ", ".join(MASKS) or "no other, since none is registered"
        raise UsageError(f"--{site}-masks has '{unknown[0]}'; give none, or some of: {choices}")
    return [MASKS.build(name, heads, **options) for name in names if name in MASKS]


def parse_gate(value: Any) -> str:
    """Return the name of a gate; checkpoints from when --head-gate took no value have a bool."""
    return FORMER_VALUES.get(str(value), str(value))


def parse_gate_sites(options: Mapping[str, Any]) -> list[str]:
    """Return the sites of heads with gates; raise UsageError for other words."""
    text = options.get("head_gate_sites", "encoder")
    sites = [site.strip() for site in text.split(",")]
    if not set(sites) <= set(SITES):
        raise UsageError(
            f"--head-gate-sites is '{text}'; give some of {', '.join(SITES)}, as in encoder,decoder"
        )
    return [] if parse_gate(options["head_gate"]) == "none" else sites


def check_gate_sites(model: nn.Module, options: Mapping[str, Any]) -> None:
    """Raise UsageError if heads are to have gates at a site where the model has no attention."""
    sides = [module for name, module in model.named_modules() if name in ("encoder", "decoder")]
    parts = [part for side in sides for part in side.modules() if isinstance(part, Attention)]
    present = {part.site for part in parts}
    # a decoder alone has no such option, and gates at its only site
    named = parse_gate_sites(options) if "head_gate_sites" in options else []
    if missing := [site for site in named if site not in present]:
        raise UsageError(
            f"--head-gate-sites is '{options['head_gate_sites']}', and this model has no attention "
            f"called {missing[0]}; give some of {', '.join(s for s in SITES if s in present)}"
        )


def build_gate(
    site: str, heads: int, width: int, options: Mapping[str, Any]
) -> HeadGate | nn.Parameter | None:
    """Build the gate of a layer's heads, or return None if they have none."""
    if site not in parse_gate_sites(options) or not heads:
        return None
    return GATES.build(parse_gate(options["head_gate"]), heads, width=width, **options)


def build_hard_coded_heads(
    site: str, layer: int, heads: int, layers: int, options: Mapping[str, Any]
) -> HeadGroup | None:
    """Build the group of hard-coded heads for `build_heads`; return None if there are none."""
    flag, text = f"--{site}-gaussian-heads", options[f"{site}_gaussian_heads"]
    if not (count := _parse_count(flag, text, heads)):
        return None
    for slot, (usual, reason) in NOT_OF_HARD_CODED_HEADS.items():
        value = options.get(f"{site}_{slot}")
        if count == heads and value not in usual:
            raise UsageError(
                f"{flag} {text} leaves no head to --{site}-{slot} {value}, since hard-coded heads "
                f"{reason}; give fewer of them, or --{site}-{slot} {usual[0]}"
            )
    names = f"{site}_gaussian_offsets", "gaussian_sigma"
    offsets, sigmas = (_parse_numbers(n, options[n], layer, count, layers) for n in names)
    ratio = options["gaussian_ratio"] if site == "cross" else 1.0
    masks = tuple(build_masks(site, count, options))
    return build_gaussian_heads(offsets, sigmas, ratio, masks, flag)


def parse_cross_layers(text: str, layers: int) -> list[int]:
    """Return the decoder layers that attend to the encoder, named as "all", "last" or "0,3"."""
    words = {**ALL_LAYERS, "last": slice(-1, None)}
    return choose_layers("--cross-layers", text, range(layers), words)


def parse_adversary_layers(text: str, layers: int) -> list[int]:
    """Return the encoder layers with an adversary, named as "none", "all", "upper" or "3,5"."""
    words = {"none": slice(0), **ALL_LAYERS, "upper": slice(layers // 2, None)}
    return choose_layers("--asa-layers", text, range(layers), words)


def _parse_count(flag: str, text: str, heads: int) -> int:
    if text == "all":
        return heads
    if not text.isdecimal() or int(text) > max(heads, 0):
        raise UsageError(f"{flag} is '{text}'; give all, or a number from 0 to {heads}")
    return int(text)


def _parse_numbers(name: str, text: str, layer: int, heads: int, layers: int) -> list[float]:
    """Return a number for each head of a layer; "-1,1" is repeated over the heads."""
    flag = config.flag(name)
    try:
        lists = [[float(number) for number in part.split(",")] for part in text.split("/")]
    except ValueError:
        lists = [[math.nan]]
    if not all(math.isfinite(number) for numbers in lists for number in numbers):
        example = "=-1,1" if flag.endswith("offsets") else " 1,2"
        raise UsageError(
            f"{flag} is '{text}'; give numbers with commas between them, as in {flag}{example}"
        )
    if len(lists) not in (1, layers) or any(heads % len(numbers) for numbers in lists):
        raise UsageError(
            f"{flag} is '{text}', which fits neither {heads} hard-coded heads nor {layers} layers; "
            f"give a number for each head, or so many that they can be repeated, and with / "
            "between layers one such list for each"
        )
    numbers = lists[layer if len(lists) > 1 else 0]
    return numbers * (heads // len(numbers))
