"""Heads of fine-tuning: what is read off an encoder's output, [B, S, C] with padding [B, S]."""

import math
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from fairseq.models.roberta.model import RobertaClassificationHead
from torch import Tensor, nn

Pooling = Callable[[Tensor, Tensor], Tensor]
POOLER = {"pooler_activation_fn": "tanh", "spectral_norm_classification_head": False}
"""Options of `Mlp` alone, as they are unless told otherwise."""


def pool_first(features: Tensor, padding: Tensor) -> Tensor:
    """[B, C] of the first token."""
    return features[:, 0]


def pool_mean(features: Tensor, padding: Tensor) -> Tensor:
    """[B, C], the mean over tokens that are no padding."""
    real = (~padding).unsqueeze(-1).to(features.dtype)
    return (features * real).sum(1) / real.sum(1)


def pool_max(features: Tensor, padding: Tensor) -> Tensor:
    """[B, C], the maximum over tokens that are no padding."""
    return features.masked_fill(padding.unsqueeze(-1), -math.inf).amax(1)


class Mlp(RobertaClassificationHead):
    """RoBERTa's, over whatever it is given: dropout, linear, activation, dropout, linear."""

    def forward(self, x: Tensor, **unused: Any) -> Tensor:
        return self.out_proj(self.dropout(self.activation_fn(self.dense(self.dropout(x)))))


def build_mlp(args: Namespace, classes: int, activation: str | None = None) -> Mlp:
    """As the options of an encoder say; with another activation, if one is given."""
    given, width = {**POOLER, **vars(args)}, args.encoder_embed_dim
    return Mlp(
        *(width, width, classes, activation or given["pooler_activation_fn"], args.pooler_dropout),
        given.get("quant_noise_pq", 0),
        given.get("quant_noise_pq_block_size", 8),
        given["spectral_norm_classification_head"],
    )


class Linear(nn.Module):
    """Jia's for one sentence: a linear map without bias."""

    def __init__(self, width: int, classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.out_proj = nn.Linear(width, classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out_proj(self.dropout(x))


class Product(nn.Module):
    """Jia's for two sentences: the dot product of both after one linear map, of pairs one after
    the other: [2 B, C] -> [B, 1]."""

    def __init__(self, width: int, inner: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.shared = nn.Linear(width, inner, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        one, other = self.shared(self.dropout(x)).unflatten(0, (-1, 2)).unbind(1)
        return (one * other).sum(-1, keepdim=True)


class SentenceHead(nn.Module):
    """One vector of each sentence, then scores: [B, S, C] -> [B, classes]."""

    def __init__(self, pooling: Pooling, output: nn.Module) -> None:
        super().__init__()
        self.pooling, self.output = pooling, output

    def forward(self, features: Tensor, padding: Tensor) -> Tensor:
        return self.output(self.pooling(features, padding))


class PerToken(nn.Module):
    """Scores of each token: [B, S, C] -> [B, S, classes]."""

    def __init__(self, width: int, classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout, self.out_proj = nn.Dropout(dropout), nn.Linear(width, classes)

    def forward(self, features: Tensor, padding: Tensor) -> Tensor:
        return self.out_proj(self.dropout(features))
