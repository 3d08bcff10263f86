"""Trained weights of heads: the hybrid weight u of normalisers, and static gates."""

from collections.abc import Iterator
from typing import NamedTuple

from torch.nn import Parameter

from fairseq_ext.attention import Attention
from fairseq_ext.attention.normalisers import Normaliser
from fairseq_ext.mechanisms.doubly import Hybrid


class HeadWeight(NamedTuple):
    """A trained weight of a head.

    Attributes:
        kind: "u" or "gate".
    """

    kind: str
    site: str
    layer: int
    head: int
    value: float


def read_attention(module: Attention) -> Iterator[HeadWeight]:
    """Yield the weights of the heads of an attention module."""
    first = 0
    for group in module.groups:
        yield from read_normaliser(group.normaliser, module.site, module.layer, first)
        first += group.num_heads
    if isinstance(module.gate, Parameter):
        for head, offset in enumerate(module.gate.tolist()):
            yield HeadWeight("gate", module.site, module.layer, head, 1 + offset)


def read_normaliser(
    normaliser: Normaliser, site: str, layer: int, first: int = 0
) -> Iterator[HeadWeight]:
    """Yield u of each head of a normaliser, numbered from `first`; nothing if it has none."""
    if isinstance(normaliser, Hybrid):
        for head, u in enumerate(normaliser.u().tolist(), first):
            yield HeadWeight("u", site, layer, head, u)
