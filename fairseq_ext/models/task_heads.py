"""Heads of fine-tuning, on an encoder's output [B, S, C] with its padding [B, S]."""

import math
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from fairseq.models.roberta.model import RobertaClassificationHead
from torch import Tensor, nn

Pooling = Callable[[Tensor, Tensor], Tensor]
POOLER = {"pooler_activation_fn": "tanh", "spectral_norm_classification_head": False}
"""Options of `Mlp` alone, with their defaults."""


def pool_first(features: Tensor, padding: Tensor) -> Tensor:
    """Return the features of the first token, [B, C]."""
    return features[:, 0]


def pool_mean(features: Tensor, padding: Tensor) -> Tensor:
    """Return the mean over tokens that are no padding, [B, C]."""
    real = (~padding).unsqueeze(-1).to(features.dtype)
    return (features * real).sum(1) / real.sum(1)


def pool_max(features: Tensor, padding: Tensor) -> Tensor:
    """Return the maximum over tokens that are no padding, [B, C]."""
    return features.masked_fill(padding.unsqueeze(-1), -math.inf).amax(1)


class Mlp(RobertaClassificationHead):
    """RoBERTa's classification head: dropout, linear, activation, dropout, linear."""

    def forward(self, x: Tensor, **unused: Any) -> Tensor:
        """Return [..., classes] of x [..., C]; fairseq's own reads the first token alone."""
        return self.out_proj(self.dropout(self.activation_fn(self.dense(self.dropout(x)))))


def build_mlp(args: Namespace, classes: int, activation: str | None = None) -> Mlp:
    """Build the head from the options of an encoder, perhaps with another activation function."""
    options, width = {**POOLER, **vars(args)}, args.encoder_embed_dim
    return Mlp(
        *(width, width, classes),
        activation or options["pooler_activation_fn"],
        args.pooler_dropout,
        options.get("quant_noise_pq", 0),
        options.get("quant_noise_pq_block_size", 8),
        options["spectral_norm_classification_head"],
    )


class Linear(nn.Module):
    """Jia's (2024) head of one sentence: a linear map without bias."""

    def __init__(self, width: int, classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.out_proj = nn.Linear(width, classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, classes] of x [B, C]."""
        return self.out_proj(self.dropout(x))


class Product(nn.Module):
    """Jia's (2024) head of two sentences: the dot product of both after one linear map."""

    def __init__(self, width: int, inner: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.shared = nn.Linear(width, inner, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, 1] of x [2 B, C], in which the sentences of a pair follow each other."""
        one, other = self.shared(self.dropout(x)).unflatten(0, (-1, 2)).unbind(1)
        return (one * other).sum(-1, keepdim=True)


class SentenceHead(nn.Module):
    """A head that pools each sentence to one vector and scores it."""

    def __init__(self, pooling: Pooling, output: nn.Module) -> None:
        super().__init__()
        self.pooling, self.output = pooling, output

    def forward(self, features: Tensor, padding: Tensor) -> Tensor:
        """Return [B, classes] of features [B, S, C] and padding [B, S]."""
        return self.output(self.pooling(features, padding))


class PerToken(nn.Module):
    """A head that scores each token by a linear map."""

    def __init__(self, width: int, classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout, self.out_proj = nn.Dropout(dropout), nn.Linear(width, classes)

    def forward(self, features: Tensor, padding: Tensor) -> Tensor:
        """Return [B, S, classes] of features [B, S, C]."""
        return self.out_proj(self.dropout(features))
