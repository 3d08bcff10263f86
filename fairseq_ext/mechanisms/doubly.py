"""Doubly-normalised attention, several Sinkhorn sweeps, and the hybrid of it and softmax.

Ding et al. 2020, "Attention that does not Explain Away", call softmax, doubly-normalised and hybrid
attention UNAS, DNAS and HNAS.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from fairseq_ext.attention.context import HeadCall
from fairseq_ext.attention.masks import Mask, add_bias, mask_to_bias
from fairseq_ext.attention.normalisers import NORMALISERS, Normaliser, Softmax, select_heads
from fairseq_ext.attention.options import Rule, check_range, check_values, option, real, whole
from fairseq_ext.attention.presets import preset
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.kernels import doubly_cpu, doubly_triton

GPU_KERNELS = {"triton": doubly_triton, "none": None}
"""Ways to compute DNAS and HNAS on a GPU, by name; none is the plain form, with maps in memory."""


class Sinkhorn(Normaliser):
    """k sweeps, each over the columns (queries) first and the rows (keys) last.

    One sweep is DNAS (Ding et al., Eq. 5): C_ij = exp(s_ij) / sum_i' exp(s_i'j), then
    W_ij = C_ij / sum_j' C_ij'. Many sweeps approach a doubly stochastic matrix (Eq. 9, 10).
    The sweeps run on logarithms, where nothing underflows: log C is the log-softmax of the scores
    over the queries. Padded queries do not enter the columns.

    Args:
        sweeps: k >= 1.
        kernel: a name of GPU_KERNELS, for one sweep.

    Raises:
        UsageError: k < 1, or an unknown kernel.
    """

    across_queries = True

    def __init__(self, sweeps: int = 1, *, kernel: str = "triton") -> None:
        super().__init__()
        check_range(SinkhornOptions, "sinkhorn_sweeps", sweeps)
        if kernel not in GPU_KERNELS:
            raise UsageError(f"--doubly-kernel is {kernel!r}; choose from {', '.join(GPU_KERNELS)}")
        self.sweeps, self.kernel = sweeps, kernel

    def weights(
        self, scores: Tensor, bias: Tensor | None, query_padding: Tensor | None, heads: slice
    ) -> Tensor:
        """Return the weights after all sweeps."""
        absent = None
        if query_padding is not None:
            absent = mask_to_bias(query_padding[:, None, :, None], scores.dtype)
        # a mask of a key that is the same for all queries changes nothing in the key's column
        column_bias = bias if bias is not None and bias.size(-2) > 1 else None
        for sweep in range(self.sweeps):
            if sweep:
                scores = scores.log_softmax(-1)
            scores = add_bias(add_bias(scores, absent), column_bias).log_softmax(-2)
            if column_bias is not None:  # masked scores stay masked, the gradient counts once
                column_bias = bias = column_bias.detach()
            scores = add_bias(scores, bias)
        return scores.softmax(-1)

    def fused(self, call: HeadCall, mask: Mask) -> Tensor | None:
        """Return the output of a kernel for one sweep, or None."""
        return None if self.sweeps > 1 else _fused_doubly(call, mask, self.kernel)

    def extra_repr(self) -> str:
        """Return the options for the printed module."""
        return f"sweeps={self.sweeps}"


class Hybrid(Normaliser):
    """HNAS: W = u * DNAS + (1 - u) * UNAS with one trainable u per head (Ding et al., Eq. 12).

    u is stored as an offset that starts at zero: in 16 bits a stored logit(u0) would never move.

    Args:
        heads: h, how many heads the group has.
        init: u0, 0.5 in the paper's VQA model, 0.1 for headlines.
        weight: how u stays in [0, 1].
            "sigmoid": u = sigmoid(logit(u0) + offset).
            "raw": u = u0 + offset, unbounded, the paper's form.
            "clamp": raw, clamped; the gradient passes through, so that a u at a bound can return.
        kernel: a name of GPU_KERNELS.

    Raises:
        UsageError: u0 outside [0, 1], or 0 or 1 with "sigmoid", or an unknown `weight`.
    """

    across_queries = True
    WEIGHTS = ("sigmoid", "raw", "clamp")

    def __init__(
        self, heads: int, *, init: float = 0.5, weight: str = "sigmoid", kernel: str = "triton"
    ) -> None:
        super().__init__()
        if weight not in self.WEIGHTS:
            raise UsageError(f"--hna-weight is {weight!r}; choose from {', '.join(self.WEIGHTS)}")
        check_values(HybridOptions, hna_init=init, hna_weight=weight)
        self.init, self.weight = init, weight
        self.origin = math.log(init / (1 - init)) if weight == "sigmoid" else init
        self.doubly, self.softmax = Sinkhorn(kernel=kernel), Softmax()
        self.offset = nn.Parameter(torch.zeros(heads))

    def u(self) -> Tensor:
        """Return the share of the doubly-normalised weights: [h], float32 or wider."""
        offset = self.offset.to(torch.promote_types(self.offset.dtype, torch.float32))
        raw = self.origin + offset
        if self.weight == "sigmoid":
            return torch.sigmoid(raw)
        return raw if self.weight == "raw" else raw + (raw.clamp(0, 1) - raw).detach()

    def weights(
        self, scores: Tensor, bias: Tensor | None, query_padding: Tensor | None, heads: slice
    ) -> Tensor:
        """Return the mix of both weights."""
        softmax = self.softmax.weights(scores, bias, query_padding, heads)
        doubly = self.doubly.weights(scores, bias, query_padding, heads)
        u = select_heads(self.u(), heads)[:, None, None]
        return torch.lerp(softmax, doubly, u.to(scores.dtype))

    def fused(self, call: HeadCall, mask: Mask) -> Tensor | None:
        """Return the output of a kernel, or None."""
        return _fused_doubly(call, mask, self.doubly.kernel, self)

    def statistics(self) -> dict[str, Callable[[], float]]:
        """Return the mean of u over the heads."""
        return {"u": lambda: round(self.u().mean().item(), 4)}

    def extra_repr(self) -> str:
        """Return the options for the printed module."""
        return f"init={self.init}, weight={self.weight}"


def _fused_doubly(
    call: HeadCall, mask: Mask, gpu_kernel: str, hybrid: Hybrid | None = None
) -> Tensor | None:
    """Return DNAS, or HNAS of a hybrid, of a kernel that supports the call, or None."""
    asked = call.q, call.k, mask
    given = call.q, call.k, call.v, mask.masked, call.context.query_padding
    if not call.dropout and doubly_cpu.supports(*asked, hybrid is not None):
        u = None if hybrid is None else select_heads(hybrid.u(), call.heads)
        try:
            return doubly_cpu.attend(*given, u)
        except doubly_cpu.Inexact:
            return None
    kernel = GPU_KERNELS[gpu_kernel]
    if kernel is None or not kernel.supports(*asked):
        return None
    share = None
    if hybrid is not None:
        offset = select_heads(hybrid.offset, call.heads)
        share = kernel.Share(offset, hybrid.origin, hybrid.weight)
    return kernel.attend(*given, share, call.dropout)


@dataclass
class DoublyOptions:
    """Options of doubly-normalised attention.

    Attributes:
        doubly_kernel: kernel of doubly-normalised and hybrid attention on GPUs: ours in Triton, or
            none (slower, and maps in memory)
    """

    doubly_kernel: Literal["triton", "none"] = "triton"


@dataclass
class HybridOptions(DoublyOptions):
    """Options of hybrid attention.

    Attributes:
        hna_init: initial weight u of doubly-normalised attention in the hybrid (paper: 0.5 for VQA,
            0.1 for headlines, none given for other tasks)
        hna_weight: how u is kept between 0 and 1 (the paper does not say): sigmoid, raw (not at
            all) or clamp
    """

    hna_init: float = option(
        0.5,
        real("[0, 1]", "a share; 0: softmax, 1: DNA"),
        relative=True,
        excludes=Rule(
            "hna_weight",
            "{one} takes --hna-weight raw or clamp; sigmoid needs one between 0 and 1",
            lambda init, weight: init in (0, 1) and weight == "sigmoid",
        ),
    )
    hna_weight: Literal["sigmoid", "raw", "clamp"] = option("sigmoid", relative=True)


@dataclass
class SinkhornOptions(DoublyOptions):
    """Options of attention after several Sinkhorn sweeps.

    Attributes:
        sinkhorn_sweeps: sweeps of the Sinkhorn normaliser; 1 is doubly-normalised attention
    """

    sinkhorn_sweeps: int = option(1, whole("[1, 10000]", "a number of sweeps"))


@NORMALISERS.register("doubly", options=DoublyOptions)
def build_doubly(heads: int, doubly_kernel: str = "triton") -> Sinkhorn:
    """Build doubly-normalised attention."""
    return Sinkhorn(kernel=doubly_kernel)


@NORMALISERS.register("hybrid", options=HybridOptions)
def build_hybrid(
    heads: int, hna_init: float, hna_weight: str, doubly_kernel: str = "triton"
) -> Hybrid:
    """Build hybrid attention."""
    return Hybrid(heads, init=hna_init, weight=hna_weight, kernel=doubly_kernel)


@NORMALISERS.register("sinkhorn", options=SinkhornOptions)
def build_sinkhorn(heads: int, sinkhorn_sweeps: int, doubly_kernel: str = "triton") -> Sinkhorn:
    """Build attention after several Sinkhorn sweeps."""
    return Sinkhorn(sinkhorn_sweeps, kernel=doubly_kernel)


preset("dna", "transformer roberta deberta", 1, encoder_normaliser="doubly")
preset("hna", "transformer roberta deberta", 2, encoder_normaliser="hybrid")
