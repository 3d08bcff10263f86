"""Divergences between the predictions of two forward passes."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_ext.criterions.fused_divergence import measure_divergence


class Predictions(NamedTuple):
    """N predictions of one kind, made for a batch.

    Attributes:
        scores: [N, K] scores of K classes before softmax, or [N, 1] predicted numbers.
        weights: [N] weights of the distances in the sum over the batch; None: 1 each.
        are_numbers: whether the scores are numbers, as in regression.
    """

    scores: Tensor
    weights: Tensor | None = None
    are_numbers: bool = False


Distance = Callable[[Tensor, Tensor], Tensor]
"""(clean [N, K], other [N, K]) -> distances [N]."""


def kl(clean: Tensor, other: Tensor) -> Tensor:
    """Return KL(softmax(clean) || softmax(other)), [N], in nats, in float32 or wider."""
    return measure_divergence(clean, other, 1.0, 0.0)


def symmetric_kl(clean: Tensor, other: Tensor) -> Tensor:
    """Return the mean of both KL divergences, [N] (released code of Wu et al. 2023)."""
    return measure_divergence(clean, other, 0.5, 0.5)


def squared_difference(clean: Tensor, other: Tensor) -> Tensor:
    """Return (clean - other)^2, [N], for numbers [N, 1]."""
    return (widen(clean) - widen(other)).square().sum(-1)


def compare_across_batch(distance: Distance) -> Distance:
    """Return a distance that takes numbers [N, 1] as the scores of one distribution over the batch.

    Released code of Wu et al. 2023. A shift of all numbers changes nothing, and the distance of a
    single example is 0.
    """

    def divide_among_examples(clean: Tensor, other: Tensor) -> Tensor:
        whole = distance(clean.view(1, -1), other.view(1, -1))
        return whole.expand(len(clean)) / len(clean)

    return divide_among_examples


DIVERGENCES: dict[str, Distance] = {"kl": kl, "symmetric": symmetric_kl}
REGRESSIONS = ("squared", "batch")


class Divergence(NamedTuple):
    """The distances of a training: one for scores of classes, one for numbers."""

    score_distance: Distance
    number_distance: Distance = squared_difference

    @classmethod
    def build(cls, scores: str, numbers: str) -> "Divergence":
        """Return the distances of these names, one of DIVERGENCES and one of REGRESSIONS."""
        distance = DIVERGENCES[scores]
        batch = numbers == "batch"
        return cls(distance, compare_across_batch(distance) if batch else squared_difference)

    def total(self, clean: list[Predictions], other: list[Predictions]) -> Tensor:
        """Return the weighted sum over all predictions of both passes."""
        sums = []
        for one, two in zip(clean, other, strict=True):
            distance = self.number_distance if one.are_numbers else self.score_distance
            distances = distance(one.scores, two.scores)
            sums.append((distances if one.weights is None else distances * one.weights).sum())
        return torch.stack(sums).sum()


def widen(x: Tensor) -> Tensor:
    """Return a tensor in float32, or unchanged if it is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
