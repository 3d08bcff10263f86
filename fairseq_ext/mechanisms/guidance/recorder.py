"""The recorder of attention guidance: distances of maps to their patterns, or the maps."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from fairseq_ext.attention.context import AttentionRecorder, HeadCall, Meter
from fairseq_ext.attention.masks import Mask
from fairseq_ext.attention.shared_heads import repeat_heads
from fairseq_ext.mechanisms.guidance.loss import find_targets
from fairseq_ext.mechanisms.guidance.patterns import View
from fairseq_ext.mechanisms.guidance.plan import GuidedHeads
from fairseq_ext.mechanisms.kernels import guided as kernel


class GuidanceRecorder(AttentionRecorder):
    """Recorder of the guided heads.

    Where a kernel can, it keeps the distance of each row from its pattern, [B, heads, T], in place
    of a map: if all patterns of a site have one target a row, and maps are large.

    Args:
        guided: site -> its guided heads.
        build_views: returns the view of each site, from the arguments of the model.
        edges: one of `loss.EDGES`.
        dropped: maps are those after dropout.
    """

    def __init__(
        self,
        guided: Mapping[str, GuidedHeads],
        build_views: Callable[[Mapping[str, Any]], Mapping[str, View]],
        edges: str,
        dropped: bool,
    ) -> None:
        heads = {(site, i): h for site, each in guided.items() for i, h in each.layers.items()}
        super().__init__(lambda *place: heads.get(place), dropped=dropped)
        self._guided, self._build_views, self._edges = guided, build_views, edges

    def begin(self, inputs: Mapping[str, Any]) -> None:
        """Forget what was recorded; the arguments of the model are these."""
        super().begin(inputs)
        self._targets: dict[str, kernel.Targets | None] = {}

    def build_meter(self, site: str, layer: int, q: Tensor, k: Tensor) -> Meter | None:
        """Return the kernel with the targets of a site, or None where it is not worth its cost."""
        if not kernel.supports(q, k):
            return None
        if site not in self._targets:
            view = self._build_views(self.inputs)[site]
            self._targets[site] = find_targets(self._guided[site], view, self._edges)
        if (targets := self._targets[site]) is None:
            return None
        return Meter(partial(self._attend, targets), kernel.takes_all_heads(q, k))

    def _attend(
        self, targets: kernel.Targets, heads: slice, first: int, call: HeadCall, mask: Mask
    ) -> tuple[Tensor, Tensor]:
        """Return the output of a call and distances of its heads from `first` on: some guided."""
        keys, exist, share = targets
        own = kernel.Targets(keys[:, heads], exist[:, heads], share)
        k, v = (repeat_heads(x, call.q.size(1)) for x in (call.k, call.v))
        return kernel.attend(call.q, k, v, mask, own, call.dropout, self.dropped, first)
