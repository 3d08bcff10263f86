"""Scorers: how well a query and a key match, before masking and normalising."""

import sys
import warnings
from functools import cache
from typing import Any

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


ATTRIBUTES = ("uses_queries", "uses_keys", "encoder_only", "in_sequence")
"""Attributes by which functions say what scorers of earlier versions could say."""


class _Function(Scorer):
    """A function of a `HeadCall` as a scorer, with its attributes."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        for name in ATTRIBUTES:
            setattr(self, name, getattr(function, name, getattr(Scorer, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self).get("function"), name)

    def forward(self, call: HeadCall) -> Tensor:
        """Return the function's scores."""
        return self.function(call)

    def extra_repr(self) -> str:
        """Return the function, for printing."""
        return getattr(self.function, "__name__", type(self.function).__name__)


def as_scorer(scorer: Any) -> Scorer:
    """Return a scorer; a function, or a module with another base, becomes one, with a warning.

    A module keeps the names of its parameters.
    """
    if isinstance(scorer, Scorer):
        return scorer
    if scorer is dot_product:
        return DotProduct()
    message = (
        f"{type(scorer).__name__} is no fairseq_ext.attention.scorers.Scorer; derive it from that"
    )
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    if not isinstance(scorer, nn.Module):
        return _Function(scorer)
    kind = type(scorer)
    scorer.__class__ = _derive(kind)  # type: ignore[arg-type]
    return scorer  # type: ignore[return-value]


@cache
def _derive(kind: Any) -> Any:
    return type(kind.__name__, (kind, Scorer), {"__module__": kind.__module__})
