"""Normalisers: from scores to attention weights whose rows sum to one.

Ding et al. 2020, "Attention that does not Explain Away", call them upper-normalised (UNAS,
softmax), doubly-normalised (DNAS) and hybrid (HNAS) attention schemes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_ext.attention.kernels import doubly_cpu, doubly_triton
from fairseq_ext.attention.masks import Mask, mask_to_bias
from fairseq_ext.errors import UsageError

MIN_SCORES = 32 * 32  # scores a head; below, torch's fused attention is the slower one on CPUs


@dataclass(frozen=True)
class FusedCall:
    """What a fused kernel gets: dot-product attention of heads of a group.

    Args:
        q: [B, h, T, D]. k, v: [B, h, S, D]. The scores are q k^T / sqrt(D).
        mask: what is masked.
        query_padding: [B, T] bool, queries that do not exist; None if all do.
        heads: which heads of the group these are.
        dropout: probability, of the weights.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Mask
    query_padding: Tensor | None
    heads: slice
    dropout: float


class Normaliser(nn.Module):
    """Base of the normalisers of a group of h heads.

    Attributes:
        across_queries: a row depends on the other queries. Such a normaliser is refused where
            queries must not see each other.
    """

    across_queries = False

    def weights(
        self, scores: Tensor, bias: Tensor | None, query_padding: Tensor | None, heads: slice
    ) -> Tensor:
        """Attention weights, same shape and dtype as `scores`.

        Args:
            scores: [B, heads, T, S], float32 or float64.
            bias: what is masked, to be added to the scores; see `masks.bias`.
            query_padding: [B, T] bool, queries that do not exist; None if all do.
            heads: which heads of the group these are.
        """
        raise NotImplementedError

    def fused(self, call: FusedCall) -> Tensor | None:
        """dropout(weights) @ v, [B, h, T, D], without a map in memory; None = declined."""
        return None

    def statistics(self) -> dict[str, Callable[[], float]]:
        """What a training log shows of it, by name; called when a line is written."""
        return {}


class Softmax(Normaliser):
    """UNAS: W_ij = exp(s_ij) / sum_j' exp(s_ij')  (Ding et al., Eq. 1)."""

    def weights(
        self, scores: Tensor, bias: Tensor | None, query_padding: Tensor | None, heads: slice
    ) -> Tensor:
        return add_bias(scores, bias).softmax(-1)

    def fused(self, call: FusedCall) -> Tensor | None:
        small = call.q.size(2) * call.k.size(2) <= MIN_SCORES
        if call.q.device.type == "cpu" and (small or call.dropout):  # SDPA drops out slowly there
            return None
        allowed = None if call.mask.masked is None else ~call.mask.masked
        return F.scaled_dot_product_attention(
            call.q,
            call.k,
            call.v,
            attn_mask=allowed,
            dropout_p=call.dropout,
            is_causal=call.mask.causal,
        )


class Unnormalised(Normaliser):
    """W_ij = exp(s_ij): the scores are logarithms of the weights already."""

    def weights(
        self, scores: Tensor, bias: Tensor | None, query_padding: Tensor | None, heads: slice
    ) -> Tensor:
        return add_bias(scores, bias).exp()


class Sinkhorn(Normaliser):
    """k sweeps, each over the columns (queries) first and the rows (keys) last.

    One sweep is DNAS (Ding et al., Eq. 5): C_ij = exp(s_ij) / sum_i' exp(s_i'j), then
    W_ij = C_ij / sum_j' C_ij'. Many sweeps approach a doubly stochastic matrix (Eq. 9, 10).
    Computed on logarithms, where nothing underflows: log C is the log-softmax of the scores over
    the queries. Padded queries do not enter the columns.

    Args:
        sweeps: k >= 1.

    Raises:
        UsageError: k < 1.
    """

    across_queries = True

    def __init__(self, sweeps: int = 1) -> None:
        super().__init__()
        if sweeps < 1:
            raise UsageError(
                f"sinkhorn_sweeps is {sweeps}; give a whole number from 1 (DNA) upwards."
            )
        self.sweeps = sweeps

    def weights(
        self, scores: Tensor, bias: Tensor | None, query_padding: Tensor | None, heads: slice
    ) -> Tensor:
        absent = None
        if query_padding is not None:
            absent = mask_to_bias(query_padding[:, None, :, None], scores.dtype)
        # what blocks a key for all queries alike changes nothing in its column
        partly = bias if bias is not None and bias.size(-2) > 1 else None
        for sweep in range(self.sweeps):
            if sweep:
                scores = scores.log_softmax(-1)
            scores = add_bias(add_bias(scores, absent), partly).log_softmax(-2)
            if partly is not None:
                partly = bias = partly.detach()  # what is masked stays so; one gradient
            scores = add_bias(scores, bias)
        return scores.softmax(-1)

    def fused(self, call: FusedCall) -> Tensor | None:
        return None if self.sweeps > 1 else _doubly(call)

    def extra_repr(self) -> str:
        return f"sweeps={self.sweeps}"


class Hybrid(Normaliser):
    """HNAS: W = u * DNAS + (1 - u) * UNAS with one trainable u per head (Ding et al., Eq. 12).

    u is stored as an offset that starts at zero: in 16 bits a stored logit(u0) would never move.

    Args:
        heads: h, how many heads the group has.
        init: u0, 0.5 in the paper's VQA model, 0.1 for headlines.
        weight: how u stays in [0, 1]. "sigmoid": u = sigmoid(logit(u0) + offset). "raw":
            u = u0 + offset, unbounded, the paper's form. "clamp": raw, clamped, with the gradient
            passed through so that a u at a bound can return.

    Raises:
        UsageError: u0 outside [0, 1], or 0 or 1 with "sigmoid", or an unknown `weight`.
    """

    across_queries = True
    WEIGHTS = ("sigmoid", "raw", "clamp")

    def __init__(self, heads: int, *, init: float = 0.5, weight: str = "sigmoid") -> None:
        super().__init__()
        if weight not in self.WEIGHTS:
            raise UsageError(f"hna_weight is {weight!r}; choose from {', '.join(self.WEIGHTS)}.")
        if not 0 <= init <= 1:
            raise UsageError(f"hna_init is {init}; give a number from 0 (softmax) to 1 (DNA).")
        if weight == "sigmoid" and init in (0, 1):
            raise UsageError(
                f"hna_init {init} cannot be reached by a sigmoid; give a number between 0 and 1, "
                "or hna_weight raw or clamp."
            )
        self.init, self.weight = init, weight
        self.doubly, self.softmax = Sinkhorn(), Softmax()
        self.offset = nn.Parameter(torch.zeros(heads))

    def u(self) -> Tensor:
        """[h] share of the doubly-normalised weights, in float32 or wider."""
        offset = self.offset.to(torch.promote_types(self.offset.dtype, torch.float32))
        if self.weight == "sigmoid":
            return torch.sigmoid(math.log(self.init / (1 - self.init)) + offset)
        raw = self.init + offset
        return raw if self.weight == "raw" else raw + (raw.clamp(0, 1) - raw).detach()

    def weights(
        self, scores: Tensor, bias: Tensor | None, query_padding: Tensor | None, heads: slice
    ) -> Tensor:
        softmax = self.softmax.weights(scores, bias, query_padding, heads)
        doubly = self.doubly.weights(scores, bias, query_padding, heads)
        return torch.lerp(softmax, doubly, self.u()[heads, None, None].to(scores.dtype))

    def fused(self, call: FusedCall) -> Tensor | None:
        return _doubly(call, self.u()[call.heads])

    def statistics(self) -> dict[str, Callable[[], float]]:
        return {"u": lambda: round(self.u().mean().item(), 4)}

    def extra_repr(self) -> str:
        return f"init={self.init}, weight={self.weight}"


def _doubly(call: FusedCall, u: Tensor | None = None) -> Tensor | None:
    """DNAS, or with u [h] HNAS, by the first kernel that suits; kernels know no dropout."""
    if call.dropout:
        return None
    for kernel in (doubly_cpu, doubly_triton):
        if kernel.supports(call.q, call.k, call.mask):
            try:
                return kernel.attend(
                    call.q, call.k, call.v, call.mask.masked, call.query_padding, u
                )
            except doubly_cpu.Inexact:
                return None
    return None


def add_bias(scores: Tensor, bias: Tensor | None) -> Tensor:
    """Their sum."""
    return scores if bias is None else scores + bias


NORMALISERS: dict[str, Callable[..., Normaliser]] = {
    "softmax": lambda heads, **_: Softmax(),
    "doubly": lambda heads, **_: Sinkhorn(),
    "hybrid": lambda heads, hna_init, hna_weight, **_: Hybrid(
        heads, init=hna_init, weight=hna_weight
    ),
    "sinkhorn": lambda heads, sinkhorn_sweeps, **_: Sinkhorn(sinkhorn_sweeps),
}


def build_normaliser(name: str, heads: int, **options: Any) -> Normaliser:
    """The normaliser `name` for a group of `heads` heads.

    Args:
        options: hna_init, hna_weight (hybrid) and sinkhorn_sweeps (sinkhorn); others ignore them.

    Raises:
        UsageError: the name is unknown or an option has no meaning.
    """
    if name not in NORMALISERS:
        raise UsageError(f"normaliser is {name!r}; choose from {', '.join(NORMALISERS)}.")
    return NORMALISERS[name](heads, **options)
