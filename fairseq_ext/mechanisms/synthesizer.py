"""Scorers without content: learned scores of positions, not of pairs (Tay et al. 2020)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fairseq_ext.attention.context import AttentionContext, HeadCall, count_leading
from fairseq_ext.attention.options import check_range, option, whole
from fairseq_ext.attention.scorers import SCORERS, Scorer
from fairseq_ext.errors import UsageError


@dataclass
class SynthesizerOptions:
    """Options of scorers without content.

    Attributes:
        synthesizer_length: number of positions that scores are learned for; longer sentences are
            refused
    """

    synthesizer_length: int = option(256, whole("[1, 100000]", "a number of positions"))


@dataclass
class RandomOptions(SynthesizerOptions):
    """Options of the random scorer.

    Attributes:
        synthesizer_fixed: leave random scores as they are drawn
    """

    synthesizer_fixed: bool = False


class Synthesizer(Scorer):
    """Base of the scorers that know a key by its position among the real tokens alone.

    Attributes:
        length: L, how many positions there are.

    Raises:
        UsageError: L is below 1.
    """

    in_sequence = True
    uses_queries = uses_keys = False

    def __init__(self, length: int) -> None:
        super().__init__()
        check_range(SynthesizerOptions, "synthesizer_length", length)
        self.length = length

    def extra_repr(self) -> str:
        """Return the number of positions for the printed module."""
        return f"length={self.length}"

    def find_positions(self, context: AttentionContext) -> Tensor | None:
        """Return the position of each key among the real tokens, [B, S]; None if it is the place.

        Padding has a position of some real token: it is masked.

        Raises:
            UsageError: a sentence is longer than L.
        """
        padding, keys = context.key_padding, context.keys

        def places(padding: Tensor) -> Tensor:
            places = torch.arange(keys, device=padding.device) - count_leading(padding)
            return places.clamp(0, self.length - 1)

        def compute() -> Tensor | None:
            if torch.compiler.is_compiling() and padding is not None:
                fits = (~padding).sum(1).max() <= self.length
                torch._assert_async(fits, f"longer than --synthesizer-length {self.length}")
                return places(padding)
            most = keys if padding is None else int((~padding).sum(1).max())
            if most > self.length:
                raise UsageError(
                    f"a sentence has {most} tokens, and --synthesizer-length is {self.length}; "
                    "give at least that, or shorter sentences"
                )
            if padding is None or keys <= self.length and not padding[:, 0].any():
                return None
            return places(padding)

        return context.inputs.cached(("synthesizer", self.length, keys), compute)


@SCORERS.register("dense", options=SynthesizerOptions)
class Dense(Synthesizer):
    """s_ij = (ReLU(q_i) W_2 + b_2)_j: an MLP of each token x_i gives L scores (Tay et al. 2020).

    q_i = W_Q x_i is the query of the head, the first layer of the MLP; there are no keys.

    Args:
        heads: h.
        width: D, the width of a head.
        synthesizer_length: L.
    """

    uses_queries = True

    def __init__(self, heads: int, width: int, synthesizer_length: int = 256) -> None:
        super().__init__(synthesizer_length)
        bound = math.sqrt(6 / (width + synthesizer_length))  # Glorot's
        self.weight = nn.Parameter(torch.empty(heads, width, self.length).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(heads, self.length))

    def forward(self, call: HeadCall) -> Tensor:
        """Return scores [B, h, T, S]."""
        places = self.find_positions(call.context)
        count = call.context.keys if places is None else self.length
        weight, bias = self.weight[call.heads, :, :count], self.bias[call.heads, None, :count]
        scores = call.q.relu() @ weight.to(call.q.dtype) + bias.to(call.q.dtype)
        if places is None:
            return scores
        return scores.gather(-1, places[:, None, None].expand(*scores.shape[:3], -1))


@SCORERS.register("random", options=RandomOptions)
class Random(Synthesizer):
    """s_ij = R_ij, a matrix [L, L] for each head, which is learned or fixed (Tay et al. 2020).

    R begins as N(0, 1), which is our choice.

    Args:
        heads: h.
        synthesizer_length: L.
        synthesizer_fixed: R is not trained.
    """

    def __init__(
        self, heads: int, synthesizer_length: int = 256, synthesizer_fixed: bool = False
    ) -> None:
        super().__init__(synthesizer_length)
        scores = torch.randn(heads, self.length, self.length)
        self.scores = nn.Parameter(scores, requires_grad=not synthesizer_fixed)

    def forward(self, call: HeadCall) -> Tensor:
        """Return scores [1 or B, h, T, S]; they differ by sentence if padding is on the left."""
        context, scores = call.context, self.scores[call.heads]
        first, places = context.first_query, self.find_positions(context)
        stop = first + context.queries
        if places is None:
            return scores[None, :, first:stop, : context.keys]
        rows = places[:, first:stop]
        return scores[:, rows[:, :, None], places[:, None]].transpose(0, 1)
