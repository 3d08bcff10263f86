"""Attention maps of a forward pass, handed on layer by layer instead of kept."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch import Tensor

from fairseq_ext.attention import AttentionRecorder
from fairseq_ext.mechanisms.guidance.patterns import View

SITES = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention",
}
"""Sites of attention, and what they are called; a room above this one adds its own."""


class LayerAttention(NamedTuple):
    """The attention maps of one layer for a batch.

    Attributes:
        site: one of `SITES`.
        maps: [B, H, T, S] float32.
        view: which queries and keys are real, and which tokens the keys are.
    """

    site: str
    layer: int
    maps: Tensor
    view: View


Receiver = Callable[[LayerAttention], None]
"""It gets the maps of a batch, layer by layer."""


class LayerRecorder(AttentionRecorder):
    """Recorder that hands each layer's maps on, so that one layer's are in memory at a time.

    Args:
        heads: the number of heads by site and layer.
        views: what rows and columns of the maps are, by site.
        receive: is called with each layer's maps.
    """

    def __init__(
        self, heads: Mapping[str, Mapping[int, int]], views: Mapping[str, View], receive: Receiver
    ) -> None:
        super().__init__(lambda site, layer: range(heads[site][layer]), detach=True)
        self._views, self._receive = views, receive

    def record(self, site: str, layer: int, maps: Tensor) -> None:
        """Hand the maps of a layer on."""
        self._receive(LayerAttention(site, layer, maps, self._views[site]))
