"""Parts of DeBERTa (He et al. 2021) around its attention, which stands in `attention/disentangled`.

Relative positions are in attention, so that embeddings have none. Version 2 adds a convolution of
the embeddings to the first layer. Absolute positions come in where masked tokens are predicted.
"""

from typing import Any

import torch
import torch.nn.functional as F
from fairseq import utils
from fairseq.modules import FairseqDropout, LayerNorm
from torch import Tensor, nn

from fairseq_ext.errors import UsageError

DECODING_STEPS = 2
"""How often the last layer decodes masked tokens, as in the released code."""


class Convolution(nn.Module):
    """The convolution of DeBERTa v2: y = LayerNorm(h + activation(dropout(conv(x)))).

    x are the embeddings, 0 at padding, and h is the output of the first layer.

    Raises:
        UsageError: the kernel is even, so that it has no middle.
    """

    def __init__(self, width: int, kernel: int, activation: str, dropout: float) -> None:
        super().__init__()
        if kernel % 2 == 0:
            raise UsageError(f"--encoder-conv-kernel is {kernel}; give an odd number, such as 3")
        self.conv = nn.Conv1d(width, width, kernel, padding=kernel // 2)
        self.activation = utils.get_activation_fn(activation)
        self.dropout = FairseqDropout(dropout, "TransformerEncoderLayerBase")  # as in the layer
        self.layer_norm = LayerNorm(width)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        """Return [S, B, C] of embeddings and hidden states [S, B, C]."""
        convolved = self.conv(x.permute(1, 2, 0)).permute(2, 0, 1)
        return self.layer_norm(hidden + self.activation(self.dropout(convolved)))


def build_convolution(layer: int, cfg: Any) -> Convolution | None:
    """Build the convolution that follows a layer, or return None: only the first one has any."""
    kernel = getattr(cfg, "encoder_conv_kernel", 0)
    if layer or not kernel:
        return None
    activation = str(cfg.encoder_conv_activation_fn)
    return Convolution(cfg.encoder.embed_dim, kernel, activation, cfg.dropout)


class MaskPositions(nn.Embedding):
    """Embeddings of absolute positions for the queries that decode masked tokens."""

    def forward(self, real: Tensor) -> Tensor:
        """Return [S, B, C] for tokens that are real [B, S] bool, counted from the first of them."""
        return super().forward((real.long().cumsum(1) - 1).clamp(min=0)).transpose(0, 1)


def build_mask_positions(args: Any) -> MaskPositions | None:
    """Build the positions of the enhanced mask decoder, or return None without one."""
    if not args.enhanced_mask_decoder:
        return None
    return MaskPositions(args.max_positions, args.encoder_embed_dim)


class NarrowLMHead(nn.Module):
    """A head for masked language modelling on embeddings of another width E than the features C.

    Args:
        width: C.
        inner: E.
        weight: [V, E], the embeddings; None: weights of its own.
    """

    def __init__(
        self, width: int, inner: int, symbols: int, activation: str, weight: Any = None
    ) -> None:
        super().__init__()
        self.dense, self.layer_norm = nn.Linear(width, inner), LayerNorm(inner)
        self.activation = utils.get_activation_fn(activation)
        self.weight = nn.Linear(inner, symbols, bias=False).weight if weight is None else weight
        self.bias = nn.Parameter(torch.zeros(symbols))

    def forward(self, features: Tensor, masked_tokens: Tensor | None = None, **_: Any) -> Tensor:
        """Return scores [..., V] of features [B, S, C], or of the masked tokens [B, S] alone."""
        if masked_tokens is not None:
            features = features[masked_tokens]
        x = self.layer_norm(self.activation(self.dense(features)))
        return F.linear(x, self.weight, self.bias)
