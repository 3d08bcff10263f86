"""Parts of a layer's attention, built from the words of options.

Heads of kinds that other options make come first, such as hard-coded ones; all others have what
stands in the slots. A list in an option holds for all layers; slashes separate lists of single
layers.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import nn

from fairseq_ext.attention.gates import HeadGate
from fairseq_ext.attention.head_groups import HeadGroup
from fairseq_ext.attention.head_mixers import HeadMixer
from fairseq_ext.attention.masks import DEFAULT_MASKS, MaskFunction
from fairseq_ext.attention.module import Attention
from fairseq_ext.attention.options import flag, read_options
from fairseq_ext.attention.positions import Positions
from fairseq_ext.attention.sites import SITES
from fairseq_ext.attention.slots import SLOTS, list_parts, map_options
from fairseq_ext.errors import UsageError

ALL = "all"


class LayerHeads:
    """The heads of a site of a layer, while their groups are built.

    Args:
        site: "encoder", "decoder" (self-attention) or "cross".
        layer: the number of the layer, from 0.
        heads: the number of heads of each layer there.
        layers: the number of layers there.
        options: a value for each option.
        width: D, the width of a head; it does not matter to what the groups compute.
        unpruned: the number of heads before some were pruned.

    Attributes:
        groups: those that are built.
        query_factor: of heads whose parts stand in slots.
        hard_coded: how many heads are built that are not learned.
    """

    def __init__(
        self,
        site: str,
        layer: int,
        heads: int,
        layers: int,
        options: Mapping[str, Any],
        width: int = 1,
        unpruned: int | None = None,
    ) -> None:
        self.site, self.layer, self.heads, self.layers = site, layer, heads, layers
        self.options, self.width, self.unpruned = options, width, unpruned or heads
        self.groups: list[HeadGroup] = []
        self.query_factor, self.hard_coded = 1.0, 0

    @property
    def free(self) -> int:
        """Return how many heads are in no group yet."""
        return self.heads - sum(group.num_heads for group in self.groups)

    def read(self, name: str, default: Any = None) -> Any:
        """Return the value of the option SITE_NAME, or the default if there is no such option."""
        return self.options.get(f"{self.site}_{name}", default)

    def add_learned(self, count: int, *masks: MaskFunction, made_by: str = "") -> None:
        """Add a group whose parts are those of the slots, with further masks.

        Args:
            count: its heads.
            made_by: as `HeadGroup` takes it.
        """
        start = self.heads - self.free - self.hard_coded
        (normaliser,) = SLOTS["normaliser"].build(self.site, count, self.options)
        (scorer,) = SLOTS["scorer"].build(self.site, count, self.options, width=self.width)
        own = build_masks(self.site, count, self.options)
        positions = build_positions(
            self.site, self.heads - self.hard_coded, self.options, slice(start, start + count)
        )
        if positions is not None and positions.rotates and not scorer.multiplies:
            raise UsageError(
                f"{flag(f'{self.site}_positions', self.read('positions'))} turns queries and keys, "
                f"which {flag(f'{self.site}_scorer', self.read('scorer'))} does not multiply; give "
                f"--{self.site}-scorer dot, or other positions"
            )
        self.groups.append(
            HeadGroup(
                count,
                normaliser=normaliser,
                scorer=scorer,
                masks=(*DEFAULT_MASKS, *own, *masks),
                positions=positions,
                query_factor=self.query_factor,
                made_by=made_by,
            )
        )


class HeadKind(ABC):
    """Base of the kinds of heads that options of their own make, and not what stands in a slot.

    Attributes:
        name: the option SITE_NAME switches it on.
        off: the value of that option that switches it off.
        options: the dataclass of its options.
    """

    name: str
    off: str
    options: type

    @abstractmethod
    def build(self, layer: LayerHeads) -> None:
        """Add groups of these heads to a layer."""

    def is_at(self, site: str, options: Mapping[str, Any]) -> bool:
        """Return whether there are such heads at a site."""
        return options.get(f"{site}_{self.name}", self.off) != self.off


HEAD_KINDS: dict[str, HeadKind] = {}
"""Name -> kind of heads, in the order in which they are built."""


def register_heads(kind: type[HeadKind]) -> type[HeadKind]:
    """Register a kind of heads; decorate its class by this."""
    HEAD_KINDS[kind.name] = kind()
    return kind


def default_options() -> dict[str, Any]:
    """Return the default of each option of slots, of kinds of heads, and of registered parts."""
    configs = [read_options(kind.options) for kind in HEAD_KINDS.values()]
    parts = [part.options for _, part in list_parts()]
    every = (each for options in (*configs, *parts) for each in options.items())
    named: dict[str, Any] = {option: slot.off for option, slot in map_options().items()}
    return named | {name: option.default for name, option in every}


def build_attention(
    width: int,
    heads: int,
    options: Mapping[str, Any],
    *,
    site: str = "encoder",
    layer: int = 0,
    layers: int = 1,
    heads_left: int | None = None,
    number: int | None = None,
    kind: type[Attention] = Attention,
    **more: Any,
) -> Attention:
    """Build the attention at a site of a layer from options; others have their defaults.

    Args:
        width: C.
        heads: H before any was pruned.
        options: as in {"encoder_normaliser": "softmax"}.
        layers: the number of layers there.
        heads_left: the number of heads that are left (default: all).
        number: the number that the layer had in training (default: `layer`).
        kind: the class of what is built.
        more: further arguments of `Attention`.

    Raises:
        UsageError: an option has no meaning, or not with others.
    """
    values = {**default_options(), **options}
    left = heads if heads_left is None else heads_left
    return kind(
        width,
        heads,
        site=site,
        layer=layer,
        heads_left=left,
        groups=build_heads(site, layer, left, layers, values, width // max(1, heads), heads),
        gate=build_gate(site, left, width, values),
        mixer=build_mixer(site, layer if number is None else number, left, width, values),
        **more,
    )


def build_heads(*place: Any, **more: Any) -> list[HeadGroup]:
    """Build the groups of the heads at a site of a layer; arguments are those of `LayerHeads`.

    Raises:
        UsageError: an option cannot be read, fits neither heads nor layers, or has no effect.
    """
    layer = LayerHeads(*place, **more)
    for kind in HEAD_KINDS.values():
        if kind.is_at(layer.site, layer.options):
            kind.build(layer)
    if layer.free:
        layer.add_learned(layer.free)
    return layer.groups


def build_positions(
    site: str, heads: int, options: Mapping[str, Any], own: slice = slice(None)
) -> Positions | None:
    """Build the positions in the self-attention of a site, or return None if it has none.

    Args:
        heads: those that have positions there.
        own: those of them that are built.
    """
    if site not in (slot := SLOTS["positions"]).sites:
        return None
    positions = next(iter(slot.build(site, heads, options)), None)
    if positions is not None:
        positions.own = own
    return positions


def build_masks(site: str, heads: int, options: Mapping[str, Any]) -> list[MaskFunction]:
    """Build the masks of a site beside the default ones."""
    return SLOTS["masks"].build(site, heads, options)


def build_mixer(
    site: str, layer: int, heads: int, width: int, options: Mapping[str, Any]
) -> HeadMixer | None:
    """Build the mixer of the heads at a site of a layer of this width; return None without one."""
    if heads < 1 or width % heads:
        return None  # attention refuses that
    sizes = {"width": width // heads, "layer": layer}
    return SLOTS["head_mixer"].build(site, heads, options, **sizes)[0]


def parse_gate_sites(options: Mapping[str, Any]) -> list[str]:
    """Return the sites of heads with gates; raise UsageError for other words."""
    text = options.get("head_gate_sites", "encoder")
    sites = [site.strip() for site in text.split(",")]
    if not set(sites) <= set(SITES):
        raise UsageError(
            f"--head-gate-sites is '{text}'; give some of {', '.join(SITES)}, as in encoder,decoder"
        )
    return [] if options["head_gate"] == SLOTS["head_gate"].off else sites


def build_gate(
    site: str, heads: int, width: int, options: Mapping[str, Any]
) -> HeadGate | nn.Parameter | None:
    """Build the gate of a layer's heads, or return None if they have none."""
    if site not in parse_gate_sites(options) or not heads:
        return None
    return SLOTS["head_gate"].build(site, heads, options, width=width)[0]


def count_heads(site: str, heads: int, options: Mapping[str, Any]) -> int:
    """Return the number of heads at a site, on a side of the model that has `heads`."""
    return (options.get("cross_attention_heads") if site == "cross" else 0) or heads


def list_heads_left(site: str, heads: int, layers: int, options: Mapping[str, Any]) -> list[int]:
    """Return the number of heads at a site of each layer.

    Args:
        heads: the number of heads of a layer from which none was pruned.

    Raises:
        UsageError: the option cannot be read, or heads have parts by their number or position
            among all heads, or depend on each other.
    """
    name = f"{site}_heads_left"
    text = options.get(name, ALL)
    if text == ALL:
        return [heads] * layers
    numbers = text.split("/")
    if len(numbers) != layers or not all(n.isdecimal() and int(n) <= heads for n in numbers):
        raise UsageError(
            f"{flag(name, text)}: give {ALL}, or for each of the {layers} layers, with / between "
            f"them, a number from 0 to {heads}"
        )
    if reason := find_fixed_heads(site, options):
        raise UsageError(
            f"{flag(name, text)} does not go with {reason}, since heads are pruned that it names, "
            "mixes or shares between layers; leave one of them out"
        )
    return [int(number) for number in numbers]


def find_fixed_heads(site: str, options: Mapping[str, Any]) -> str | None:
    """Return an option, as it was given, for which it matters which number a head of a site has."""
    kinds = [f"{site}_{kind.name}" for kind in HEAD_KINDS.values() if kind.is_at(site, options)]
    mixer = SLOTS["head_mixer"].name_option(site)
    if options.get(mixer, SLOTS["head_mixer"].off) != SLOTS["head_mixer"].off:
        kinds.append(mixer)
    positions = build_positions(site, 1, options)
    if positions is not None and positions.shared:
        kinds.append(f"{site}_positions")
    if options.get(f"{site}_kv_heads"):
        kinds.append(f"{site}_kv_heads")
    return next((flag(name, options[name]) for name in kinds), None)
