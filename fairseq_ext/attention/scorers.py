"""Scorers: how well a query and a key match, before masking and normalising."""

import sys

from torch import Tensor, nn

from fairseq_ext.attention.context import HeadCall
from fairseq_ext.attention.parts import Parts
from fairseq_ext.attention.shared_heads import multiply_heads


class Scorer(nn.Module):
    """Base of the scorers of a group of h heads.

    Attributes:
        uses_queries: it reads queries; a layer in which no scorer does has no projection to them.
        uses_keys: it reads keys; likewise.
        encoder_only: it stands in encoders alone.
        in_sequence: it has no meaning between two sequences.
        multiplies: it compares rotated queries and keys, or parts of them, as it does whole ones.
        learned: what its heads look at is learned; else they have neither queries nor keys.
        window: how many keys before a query heads that are not learned have to see, at least 1.
        length: how many tokens it takes.
    """

    uses_queries = uses_keys = learned = True
    encoder_only = in_sequence = multiplies = False
    window: int | None = None
    length: int = sys.maxsize

    def __init__(self, heads: int = 1) -> None:
        super().__init__()

    def forward(self, call: HeadCall) -> Tensor:
        """Return scores, broadcastable to [B, h, T, S]."""
        raise NotImplementedError

    def as_product(self, call: HeadCall) -> tuple[Tensor, Tensor | None] | None:
        """Return q' [B, h, T, D] and b of scores q' k^T / sqrt(D) + b, or None if there are none.

        Fused kernels compute such scores. b may be None; it is, where the scorer multiplies.
        """
        return None

    def fused(self, call: HeadCall) -> Tensor | None:
        """Return the output [B, h, T, D] of heads that are not learned, or None to decline."""
        return None

    def build_projections(self, width: int, queries: int, dropout: float) -> nn.Module | None:
        """Build the module of a layer that makes `HeadCall.relative`, or return None.

        It is called with the attention, its `Inputs` and the number of keys.

        Args:
            width: C.
            queries: h D, the width of the queries of learned heads.
            dropout: of the relative embeddings.
        """
        return None

    def build_embeddings(self, width: int) -> nn.Module | None:
        """Build the module that makes `Inputs.relative` of all layers, or return None."""
        return None


SCORERS: Parts[Scorer] = Parts("scorer", None, optional=("width",))
"""Scorers by name; see `registry.register_scorer`."""


def dot_product(call: HeadCall) -> Tensor:
    """Return q k^T / sqrt(D) (Vaswani et al. 2017, Eq. 1), [B, h, T, S]."""
    return multiply_heads(call.q * call.q.size(-1) ** -0.5, call.k.transpose(-1, -2))


@SCORERS.register("dot", summary="the scaled dot product")
class DotProduct(Scorer):
    """The scaled dot product, which the fused kernels compute too."""

    multiplies = True

    def forward(self, call: HeadCall) -> Tensor:
        """Return scores [B, h, T, S]."""
        return dot_product(call)

    def as_product(self, call: HeadCall) -> tuple[Tensor, None]:
        """Return the queries as they are."""
        return call.q, None
