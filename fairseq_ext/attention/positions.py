"""Positions in attention: rotated queries and keys, or a bias of the scores by distance.

They stand where a model has no embeddings of positions. Distances are those of one sequence: there
are none in attention from one to another, as in the papers.
"""

from typing import Any

import torch
from torch import Tensor, nn

from fairseq_ext.attention.context import AttentionContext, HeadCall
from fairseq_ext.attention.parts import Parts


class Positions(nn.Module):
    """Base of the positions of a group of h heads in self-attention.

    Attributes:
        shared: all layers with as many heads have the parameters of the first one.
        rotates: `rotate` changes queries and keys, which the scorer has to multiply.
        heads: H, the heads of the layer that have positions.
        own: the heads among them that are of this group, all at first.
    """

    shared = rotates = False

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads, self.own = heads, slice(None)

    def check_width(self, width: int) -> None:
        """Raise UsageError if heads of this width D cannot have such positions."""

    def rotate(self, call: HeadCall) -> HeadCall:
        """Return the call with other queries and keys; the same one by default."""
        return call

    def bias(self, context: AttentionContext, heads: slice, dtype: torch.dtype) -> Tensor | None:
        """Return what is added to scores, broadcastable to [B, heads, T, S], or None."""
        return None


POSITIONS: Parts[Positions | None] = Parts("kind of positions", Positions)
"""Kinds of positions by name; those that are embedded, or absent, are built as None."""

EMBEDDED = {"sinusoidal": False, "learned": True}
"""Kind of embedded positions -> whether they are learned."""


@POSITIONS.register("sinusoidal")
@POSITIONS.register("learned")
@POSITIONS.register("none")
def build_no_positions(heads: int) -> None:
    """Return no positions: they are embedded, or there are none."""


def share_parameters(attentions: list[Any]) -> None:
    """Give all layers the shared parameters of the first one that has as many heads."""
    first: dict[tuple[int, str], nn.Parameter] = {}
    for attention in attentions:
        for group in attention.groups:
            if (positions := group.positions) is not None and positions.shared:
                for name, parameter in positions.named_parameters(recurse=False):
                    setattr(positions, name, first.setdefault((positions.heads, name), parameter))
