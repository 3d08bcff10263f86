"""Normalisers: from scores to attention weights; their base, their table, and softmax."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_ext.attention.context import HeadCall
from fairseq_ext.attention.masks import Mask, add_bias, as_bias
from fairseq_ext.attention.parts import Parts
from fairseq_ext.attention.shared_heads import repeat_heads

MIN_SCORES = 32 * 32  # scores a head; below, torch's fused attention is the slower one on CPUs


class Normaliser(nn.Module):
    """Base of the normalisers of a group of h heads.

    Attributes:
        across_queries: a row depends on the other queries. Such a normaliser is refused where
            queries must not see each other.
        fuses_bias: `fused` takes a mask with a bias of the scores, and gets all masks so.
        shares_heads: `fused` takes keys and values with fewer heads than queries have.
        is_softmax: it is softmax and nothing else.
    """

    across_queries = False
    fuses_bias = shares_heads = is_softmax = False

    def __init__(self, heads: int = 1) -> None:
        super().__init__()

    def weights(
        self, scores: Tensor, bias: Tensor | None, query_padding: Tensor | None, heads: slice
    ) -> Tensor:
        """Return the attention weights, with the shape and dtype of `scores`.

        Args:
            scores: [B, heads, T, S], float32 or float64.
            bias: the mask, to be added to the scores; see `masks.combined_bias`.
            query_padding: [B, T] bool, queries that do not exist; None if all do.
            heads: which heads of the group these are.
        """
        raise NotImplementedError

    def fused(self, call: HeadCall, mask: Mask) -> Tensor | None:
        """Return dropout(weights) @ v, [B, h, T, D], without a map in memory, or None to decline.

        The scores are q k^T / sqrt(D).
        """
        return None

    def statistics(self) -> dict[str, Callable[[], float]]:
        """Return what a training log shows, by name; called when a line is written."""
        return {}


NORMALISERS: Parts[Normaliser] = Parts("normaliser", Normaliser)
"""Normalisers by name; see `fairseq_ext.registry.register_normaliser`."""


def build_normaliser(name: str, heads: int, **options: Any) -> Normaliser:
    """Build the normaliser `name` for a group of `heads` heads.

    Args:
        options: a value for each option of this normaliser; others are ignored.

    Raises:
        UsageError: the name is unknown or an option has no meaning.
    """
    return NORMALISERS.build(name, heads, **options)


def select_heads(x: Tensor, heads: slice) -> Tensor:
    """Return the part of some heads of a parameter [h, ...]; the whole has no copied gradient."""
    whole = heads.indices(len(x)) == (0, len(x), 1)
    return x if whole else x[heads]


def is_fused(call: HeadCall) -> bool:
    """Tell whether torch's fused attention is the faster one for a call."""
    if call.q.device.type != "cpu":
        return True
    if call.dropout:  # torch draws random numbers slowly there
        return False
    # a graph is the same for all sizes
    return torch.compiler.is_compiling() or call.q.size(2) * call.k.size(2) > MIN_SCORES


@NORMALISERS.register("softmax")
class Softmax(Normaliser):
    """UNAS: W_ij = exp(s_ij) / sum_j' exp(s_ij')  (Ding et al., Eq. 1)."""

    fuses_bias = shares_heads = is_softmax = True

    def weights(
        self, scores: Tensor, bias: Tensor | None, query_padding: Tensor | None, heads: slice
    ) -> Tensor:
        """Return the softmax of each row."""
        return add_bias(scores, bias).softmax(-1)

    def fused(self, call: HeadCall, mask: Mask) -> Tensor | None:
        """Return the output of torch's fused attention, or None where that is slower."""
        if not is_fused(call):
            return None
        q, k, v, dropout = call.q, call.k, call.v, call.dropout
        bias, shared = as_bias(mask, q.dtype), k.size(1) < q.size(1)
        # on a GPU the kernel that shares heads takes neither a bias nor 32 bits
        if shared and q.is_cuda and (bias is not None or q.dtype == torch.float32):
            k, v, shared = repeat_heads(k, q.size(1)), repeat_heads(v, q.size(1)), False
        return F.scaled_dot_product_attention(
            q, k, v, bias, dropout, mask.causal, enable_gqa=shared
        )
