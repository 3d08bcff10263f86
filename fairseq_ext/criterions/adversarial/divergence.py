"""How far the predictions of one pass are from those of another."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Compared(NamedTuple):
    """What is compared in a batch.

    Attributes:
        scores: [N, K] of each of N predictions, before softmax; or [N, 1] numbers.
        weights: [N] of the distances in the sum over the batch; None: 1 each.
        numbers: they are those of a regression.
    """

    scores: Tensor
    weights: Tensor | None = None
    numbers: bool = False


Distance = Callable[[Tensor, Tensor], Tensor]
"""(clean [N, K], other [N, K]) -> [N]"""


def kl(clean: Tensor, other: Tensor) -> Tensor:
    """KL(softmax(clean) || softmax(other)), in nats, float32 or wider."""
    clean, other = (_log_probabilities(scores) for scores in (clean, other))
    return (clean.exp() * (clean - other)).sum(-1)


def symmetric_kl(clean: Tensor, other: Tensor) -> Tensor:
    """The mean of both directions (released code of Wu et al. 2023)."""
    clean, other = (_log_probabilities(scores) for scores in (clean, other))
    return 0.5 * ((clean.exp() - other.exp()) * (clean - other)).sum(-1)


def squared(clean: Tensor, other: Tensor) -> Tensor:
    """(clean - other)^2 of numbers [N, 1]."""
    return (wide(clean) - wide(other)).square().sum(-1)


def across_batch(distance: Distance) -> Distance:
    """Numbers [N, 1] as one distribution over the batch (released code of Wu et al. 2023): a
    common shift changes nothing, and of a single example the distance is 0."""

    def of_one(clean: Tensor, other: Tensor) -> Tensor:
        whole = distance(clean.view(1, -1), other.view(1, -1))
        return whole.expand(len(clean)) / len(clean)

    return of_one


DIVERGENCES: dict[str, Distance] = {"kl": kl, "symmetric": symmetric_kl}
REGRESSIONS = ("squared", "batch")


class Divergence(NamedTuple):
    """Distances of scores, and of numbers."""

    of_scores: Distance
    of_numbers: Distance = squared

    def total(self, clean: list[Compared], other: list[Compared]) -> Tensor:
        """The weighted sum over all that is compared."""
        sums = []
        for one, two in zip(clean, other, strict=True):
            distance = self.of_numbers if one.numbers else self.of_scores
            each = distance(one.scores, two.scores)
            sums.append((each if one.weights is None else each * one.weights).sum())
        return torch.stack(sums).sum()


def wide(x: Tensor) -> Tensor:
    """In 32 bits at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _log_probabilities(scores: Tensor) -> Tensor:
    return F.log_softmax(wide(scores), -1)
