"""Softmax with a sink: weight that goes to no key."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from fairseq_ext.attention import normalisers
from fairseq_ext.attention.context import HeadCall
from fairseq_ext.attention.masks import Mask, add_bias
from fairseq_ext.attention.normalisers import NORMALISERS, Normaliser, select_heads
from fairseq_ext.attention.presets import preset
from fairseq_ext.mechanisms.kernels import sink_sdpa

LEARNED, FIXED = "learned", "off-by-one"


@dataclass
class SinkOptions:
    """Options of softmax with a sink.

    Attributes:
        sink: logit of the sink: learned for each head, 0 at first, or fixed at 0 (off-by-one)
    """

    sink: Literal["learned", "off-by-one"] = "learned"


@NORMALISERS.register("sink", options=SinkOptions)
class Sink(Normaliser):
    """W_ij = exp(s_ij) / (exp(b) + sum_j' exp(s_ij')), with a logit b for each head.

    b is learned, as in gpt-oss (2025), or 0, "attention is off by one" (Miller 2023). A row whose
    scores are all far below b attends to nothing.

    Args:
        heads: h.
        sink: "learned" or "off-by-one".
    """

    fuses_bias = True

    def __init__(self, heads: int, sink: str = LEARNED) -> None:
        super().__init__(heads)
        self.sink_logit = nn.Parameter(torch.zeros(heads)) if sink == LEARNED else None

    def logit(self, heads: slice, like: Tensor) -> Tensor:
        """Return b of these heads, [h, 1, 1], or 0; in the dtype of a tensor."""
        if self.sink_logit is None:
            return like.new_zeros(())
        return select_heads(self.sink_logit, heads)[:, None, None].to(like.dtype)

    def weights(
        self, scores: Tensor, bias: Tensor | None, query_padding: Tensor | None, heads: slice
    ) -> Tensor:
        """Return the softmax with a sink of each row."""
        scores = add_bias(scores, bias)
        total = scores.logsumexp(-1, keepdim=True).logaddexp(self.logit(heads, scores))
        return (scores - total).exp()

    def fused(self, call: HeadCall, mask: Mask) -> Tensor | None:
        """Return the output of torch's fused attention, or None where that is slower."""
        if not normalisers.is_fused(call):
            return None
        logit = self.logit(call.heads, call.q).view(-1).expand(call.q.size(1))
        return sink_sdpa.attend(call, mask, logit)

    def statistics(self) -> dict[str, Callable[[], float]]:
        """Return the mean of the learned logits over the heads."""
        if (logit := self.sink_logit) is None:
            return {}
        return {"sink": lambda: round(logit.mean().item(), 4)}

    def extra_repr(self) -> str:
        """Return the options for the printed module."""
        return f"sink={FIXED if self.sink_logit is None else LEARNED}"


preset("sink", "transformer roberta", 5, encoder_normaliser="sink")
preset("sink", "transformer_lm", 5, decoder_normaliser="sink")
