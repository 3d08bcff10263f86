"""Heads of fine-tuning: what is read off an encoder's output, [B, S, C] with padding [B, S]."""

import math
from collections.abc import Callable

from torch import Tensor, nn

Pooling = Callable[[Tensor, Tensor], Tensor]


def first(features: Tensor, padding: Tensor) -> Tensor:
    """[B, C] of the first token."""
    return features[:, 0]


def mean(features: Tensor, padding: Tensor) -> Tensor:
    """[B, C], the mean over tokens that are no padding."""
    real = (~padding).unsqueeze(-1).to(features.dtype)
    return (features * real).sum(1) / real.sum(1)


def highest(features: Tensor, padding: Tensor) -> Tensor:
    """[B, C], the maximum over tokens that are no padding."""
    return features.masked_fill(padding.unsqueeze(-1), -math.inf).amax(1)


class Mlp(nn.Module):
    """RoBERTa's: dropout, linear, tanh, dropout, linear."""

    def __init__(self, width: int, classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.dense, self.out_proj = nn.Linear(width, width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.out_proj(self.dropout(self.dense(self.dropout(x)).tanh()))


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
