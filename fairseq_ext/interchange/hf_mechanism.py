"""A mechanism between the projections of a module of transformers'; see `hf_attention`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import fairseq_ext.mechanisms  # noqa: F401 (fills the slots)
from fairseq_ext.attention.building import build_mixer, default_options
from fairseq_ext.attention.context import AttentionContext, Inputs
from fairseq_ext.attention.head_groups import HeadGroup
from fairseq_ext.attention.module import Attention
from fairseq_ext.attention.positions import Positions
from fairseq_ext.attention.presets import PRESETS
from fairseq_ext.attention.sites import SITES
from fairseq_ext.attention.slots import SLOTS
from fairseq_ext.errors import UsageError

SLOT_NAMES = ("normaliser", "head_mixer")
"""Slots between the queries and keys of a model and its mixed values."""


@dataclass
class GivenInputs(Inputs):
    """Inputs with what a model adds to its scores, broadcastable to [B, H, T, S]."""

    bias: Tensor | None = None


class GivenBias(Positions):
    """Positions that the model itself has made a bias of, such as T5's."""

    def bias(self, context: AttentionContext, heads: slice, dtype: torch.dtype) -> Tensor | None:
        """Return the bias of some heads."""
        given = context.inputs.bias  # type: ignore[attr-defined]
        return given[:, heads if given.size(1) > 1 else slice(None)].to(dtype)


class Implementation(NamedTuple):
    """A value of `attn_implementation`: its name, and a value for each option of attention."""

    name: str
    options: Mapping[str, Any]

    def looks_across(self, site: str) -> bool:
        """Tell whether its normaliser at a site looks across queries."""
        [normaliser] = SLOTS["normaliser"].build(site, 1, self.options)
        return normaliser.across_queries

    def refuse(self) -> UsageError:
        """Return the error of a normaliser that looks across queries of a decoder."""
        return UsageError(
            f'attn_implementation="{self.name}" looks across queries, which must not see each '
            "other in a decoder; give another, such as entmax, or register one of encoders alone: "
            'register("mine", normaliser="doubly", decoder_normaliser="softmax", '
            'cross_normaliser="softmax")'
        )


class Mechanism(Attention):
    """Our attention between the projections of another module.

    Args:
        heads: H.
        width: D.
        site: "encoder", "decoder" or "cross".
        layer: the number of the layer.
        implementation: what it is.
        biased: the model adds a bias to its scores.
    """

    def __init__(
        self,
        heads: int,
        width: int,
        site: str,
        layer: int,
        implementation: Implementation,
        biased: bool,
    ) -> None:
        options = implementation.options
        [normaliser] = SLOTS["normaliser"].build(site, heads, options)
        positions = GivenBias(heads) if biased else None
        groups = [HeadGroup(heads, normaliser=normaliser, positions=positions)]
        mixer = build_mixer(site, layer, heads, heads * width, options)
        with torch.device("meta"):  # projections are those of the model
            super().__init__(
                heads * width, heads, site=site, layer=layer, groups=groups, mixer=mixer
            )
        self.implementation = implementation.name
        self.q_proj = self.k_proj = self.v_proj = None  # type: ignore[assignment]
        self.out_proj = nn.Identity()  # type: ignore[assignment]

    def project(self, *given: Any) -> tuple[Tensor, Tensor, Tensor, AttentionContext]:
        """Return q [B, H, T, D], k and v [B, G, S, D] as they are, and a context."""
        q, k, v, inputs = given[:4]
        own = inputs.padded_queries() if self.self_attention and q.size(2) == k.size(2) else None
        sizes = q.size(2), k.size(2), k.size(2) - q.size(2), q.device
        return q, k, v, AttentionContext(inputs, *sizes, inputs.padding, own)


def list_options() -> dict[str, dict[str, Any]]:
    """Return name -> options of parts of both slots, and of presets of them."""
    presets = {
        name: {option.removeprefix("encoder_"): value for option, value in options.items()}
        for name, options in PRESETS["roberta"].items()
    }
    parts = {part: {slot: part} for slot in SLOT_NAMES for part in SLOTS[slot].parts}
    parts.pop("none")  # the name of no mixer
    return parts | {n: options for n, options in presets.items() if options.keys() <= {*SLOT_NAMES}}


def read_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a value for each option of attention; a slot without a site is one of all sites.

    Raises:
        UsageError: there is no such option here.
    """
    values: dict[str, Any] = {}
    for slot in SLOT_NAMES:
        if slot in given:
            values |= dict.fromkeys(map(SLOTS[slot].name_option, SITES), given[slot])
    values |= {name: value for name, value in given.items() if name not in SLOT_NAMES}
    known = {SLOTS[slot].name_option(site): slot for slot in SLOT_NAMES for site in SITES}
    parts = [SLOTS[slot].parts.parts().get(str(values.get(name))) for name, slot in known.items()]
    own = {*known}.union(*(part.options for part in parts if part is not None))
    if unknown := [name for name in values if name not in own]:
        raise UsageError(
            f"attention of transformers has no option {unknown[0]} here; give "
            f"{', '.join(SLOT_NAMES)} and options of the parts that these name"
        )
    return default_options() | values
