"""Sinkformer's attention: rows, then columns, then rows again (Sander et al. 2022)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_ext.attention.context import HeadCall
from fairseq_ext.attention.masks import Mask, add_bias, mask_to_bias
from fairseq_ext.attention.normalisers import NORMALISERS, Normaliser
from fairseq_ext.attention.options import Rule, check_range, option, whole
from fairseq_ext.attention.presets import preset
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.kernels import recomputed


@dataclass
class SinkformerOptions:
    """Options of Sinkformer's attention.

    Attributes:
        sinkformer_iterations: normalisations of rows and columns in turn, rows first and last: an
            odd number; 1 is softmax
        sinkformer_detach: let no gradient pass through the sums of columns, as the authors' code
            does (the paper does not say so)
    """

    sinkformer_iterations: int = option(3, whole("[1, 10000]", "a number of sweeps"))
    sinkformer_detach: bool = option(
        False,
        excludes=Rule(
            "sinkformer_iterations",
            "{one} has no effect with {other}, which sums no columns; leave it out, or give 3 "
            "iterations or more",
            lambda detach, iterations: detach and iterations == 1,
            idle=True,
        ),
    )


@NORMALISERS.register("sinkformer", options=SinkformerOptions)
class Sinkformer(Normaliser):
    """K^0 = exp(s); K^(l+1) = N_R(K^l) if l is even, else N_C(K^l); W = K^n (Sander et al., Eq. 3).

    N_R divides by the sums of rows (keys), N_C by those of columns (queries). k Sinkhorn sweeps of
    Ding et al. (`Sinkhorn`) begin with columns instead. Padded queries do not enter the columns; in
    the authors' code they do.

    Args:
        heads: h.
        sinkformer_iterations: n, odd, so that rows sum to one.
        sinkformer_detach: take the sums of columns as constants in the gradient.

    Raises:
        UsageError: n is not an odd number from 1 on.
    """

    across_queries = True

    def __init__(
        self, heads: int, sinkformer_iterations: int = 3, sinkformer_detach: bool = False
    ) -> None:
        super().__init__(heads)
        check_range(SinkformerOptions, "sinkformer_iterations", sinkformer_iterations)
        if not sinkformer_iterations % 2:
            raise UsageError(
                f"--sinkformer-iterations is {sinkformer_iterations}, and the last of them has to "
                "normalise rows; give an odd number, 1 (softmax), 3, 5, ..."
            )
        self.iterations, self.detach = sinkformer_iterations, sinkformer_detach

    def weights(
        self, scores: Tensor, bias: Tensor | None, query_padding: Tensor | None, heads: slice
    ) -> Tensor:
        """Return K^n; the iterations run on logarithms, where nothing underflows."""
        absent = None
        if query_padding is not None:
            absent = mask_to_bias(query_padding[:, None, :, None], scores.dtype)
        scores = add_bias(scores, bias)
        again = None if bias is None else bias.detach()  # the gradient counts once
        for _ in range(self.iterations // 2):
            rows = scores.log_softmax(-1)
            if bias is not None and bias.size(-2) == 1:  # a key that is masked for all queries
                rows = torch.where(bias < 0, 0, rows)
            scores = add_bias(self._normalise_columns(rows, absent), again)
        return scores.softmax(-1)

    def fused(self, call: HeadCall, mask: Mask) -> Tensor | None:
        """Return the output of a map that is computed again for its gradient."""
        padding, heads = call.context.query_padding, call.heads

        def normalise(scores: Tensor, bias: Tensor | None) -> Tensor:
            exact = scores.to(torch.promote_types(scores.dtype, torch.float32))
            return self.weights(exact, bias, padding, heads)

        return recomputed.attend(call, mask, normalise)

    def _normalise_columns(self, scores: Tensor, absent: Tensor | None) -> Tensor:
        """Return the scores less the logarithms of the sums of columns; padded queries differ."""
        summed = add_bias(scores, absent)
        if self.detach:
            return scores - summed.logsumexp(-2, keepdim=True).detach()
        return summed.log_softmax(-2)

    def extra_repr(self) -> str:
        """Return the options for the printed module."""
        return f"iterations={self.iterations}, detach={self.detach}"


preset("sinkformer", "transformer roberta", 3, encoder_normaliser="sinkformer")
