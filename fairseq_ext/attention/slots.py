"""The table of slots, from which options follow that name what stands in them."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Optional

from fairseq_ext.attention.gates import GATES
from fairseq_ext.attention.head_mixers import MIXERS
from fairseq_ext.attention.masks import MASKS
from fairseq_ext.attention.normalisers import NORMALISERS
from fairseq_ext.attention.options import Option, flag, read_help
from fairseq_ext.attention.parts import Part, Parts
from fairseq_ext.attention.positions import POSITIONS
from fairseq_ext.attention.scorers import SCORERS
from fairseq_ext.attention.sites import SITES
from fairseq_ext.errors import UsageError


class Slot(NamedTuple):
    """A slot: the parts that can stand in it, and the options that name one.

    Attributes:
        name: an option is called SITE_NAME, or NAME if all sites have one option.
        parts: the table of parts.
        off: the default of the options, which names no mechanism.
        sites: of attention that has an option of its own; none: all have one together.
        several: an option names several parts, separated by commas, or none.
        bare: the part that the flag means without a value.
    """

    name: str
    parts: Parts
    off: str | None
    sites: tuple[str, ...] = SITES
    several: bool = False
    bare: str | None = None

    def name_option(self, site: str) -> str:
        """Return the option that names the part at a site."""
        return f"{site}_{self.name}" if site in self.sites else self.name

    def list_names(self) -> list[str]:
        """Return the names of its options."""
        return [self.name_option(site) for site in self.sites or ("",)]

    def list_options(self) -> Iterator[tuple[str, Option]]:
        """Yield the name of each option and what it is."""
        kind = str if self.off is not None else Optional[str]
        lists, helps = self._list_names(), read_help(Helps)
        for name in self.list_names():
            yield name, Option(kind, self.off, helps[name].format(**lists))

    def _list_names(self) -> dict[str, str]:
        """Return what helps name: parts with their summaries, and parts of some kinds."""
        parts = self.parts.parts()
        kinds = {name: part.default() for name, part in parts.items()}
        summaries = [
            f"{name} ({part.summary})" if part.summary else name
            for name, part in parts.items()
            if kinds[name] is not None
        ]
        across = [name for name, kind in kinds.items() if getattr(kind, "across_queries", False)]
        built = [name for name, kind in kinds.items() if kind is not None]
        lists = {"parts": summaries, "across": across, "built": built}
        return {name: ", ".join(texts) for name, texts in lists.items()}

    def read_names(self, option: str, value: Any) -> list[str]:
        """Return the names of parts in the value of an option.

        Raises:
            UsageError: there is no such part.
        """
        if not self.several:
            if value not in self.parts:
                raise UsageError(
                    f"{flag(option)} is {value!r}; choose from {', '.join(self.parts)}"
                )
            return [value]
        names = [name.strip() for name in str(value).split(",")]
        if names == [self.off]:
            return []
        if unknown := [name for name in names if name not in self.parts]:
            choices = ", ".join(self.parts) or "no other, since none is registered"
            raise UsageError(
                f"{flag(option)} has '{unknown[0]}'; give {self.off}, or some of: {choices}"
            )
        return names

    def build(self, site: str, heads: int, options: Mapping[str, Any], **sizes: Any) -> list[Any]:
        """Build the parts that options name at a site: one, or several, or none.

        Args:
            options: a value for each option, those of parts too.
            sizes: further keywords of parts, such as the width of a head.

        Raises:
            UsageError: there is no such part, or it refuses its options.
        """
        option = self.name_option(site)
        value = options.get(option, self.off)
        names = [] if value is None else self.read_names(option, value)
        values = {**options, **sizes}
        return [self.parts.build(name, heads, **values) for name in names]


class Helps:
    """Helps of the options that name parts.

    Attributes:
        encoder_normaliser: normaliser of encoder self-attention
        decoder_normaliser: normaliser of decoder self-attention; none that looks across queries
            ({across}), which would see the future
        cross_normaliser: normaliser of encoder-decoder attention; none that looks across queries,
            since translations grow token by token
        encoder_scorer: scorer of encoder self-attention: {parts}
        decoder_scorer: scorer of decoder self-attention
        cross_scorer: scorer of encoder-decoder attention
        encoder_positions: positions of the encoder: embedded (sinusoidal, learned), in its
            self-attention ({built}) or none (default: embedded, as fairseq's flags say)
        decoder_positions: positions of the decoder
        encoder_masks: masks of encoder self-attention beside padding, as in NAME,NAME, or none
        decoder_masks: masks of decoder self-attention beside padding and the future
        cross_masks: masks of encoder-decoder attention beside padding
        encoder_head_mixer: mixer of the maps of heads in encoder self-attention: {parts}, or none
        decoder_head_mixer: mixer of the maps of heads in decoder self-attention
        cross_head_mixer: mixer of the maps of heads in encoder-decoder attention
        head_gate: gates of heads: {parts}, or none
    """


SLOTS = {
    slot.name: slot
    for slot in (
        Slot("normaliser", NORMALISERS, "softmax"),
        Slot("scorer", SCORERS, "dot"),
        Slot("positions", POSITIONS, None, SITES[:2]),
        Slot("masks", MASKS, "none", several=True),
        Slot("head_mixer", MIXERS, "none"),
        Slot("head_gate", GATES, "none", (), bare="static"),
    )
}
"""Name -> slot, in the order in which options are listed."""


def map_options() -> dict[str, Slot]:
    """Return option -> the slot whose part it names."""
    return {option: slot for slot in SLOTS.values() for option in slot.list_names()}


def list_parts() -> list[tuple[Slot, Part]]:
    """Return all registered parts that have options, each with its slot."""
    every = [(slot, part) for slot in SLOTS.values() for part in slot.parts.parts().values()]
    return [(slot, part) for slot, part in every if part.options]


def find_needs() -> dict[str, tuple[list[str], list[str]]]:
    """Return what each option of a part needs: options, of which one has one of these values."""
    needs: dict[str, tuple[list[str], list[str]]] = {}
    for slot, part in list_parts():
        kind = part.default()
        sites = slot.sites or ("",)
        if getattr(kind, "in_sequence", False):
            sites = sites[:2]
        if getattr(kind, "across_queries", False) or getattr(kind, "encoder_only", False):
            sites = sites[:1]
        for name in part.options:
            options, names = needs.setdefault(name, ([], []))
            asked = map(slot.name_option, sites)
            options += [option for option in asked if option not in options]
            names += [] if slot.several else [part.name]
    return needs
