"""Sinkformer's attention: its naive twin, worked numbers, gradients, what is refused."""

import pytest
import torch
from mechanism_cases import Case
from naive import rows
from torch import Tensor

from fairseq_ext.attention.normalisers import build_normaliser
from fairseq_ext.errors import UsageError


def sinkformer(scores: Tensor, masked: Tensor, absent: Tensor, normaliser, head: int) -> Tensor:
    """Weights [T, S] of one sentence and head: rows, columns, rows, ... in turn."""
    k = torch.where(masked, 0, scores.exp())
    for step in range(normaliser.iterations):
        if step % 2 == 0:
            k = rows(k)
            continue
        columns = []
        for j in range(k.size(1)):
            total = sum(k[i, j] for i in range(k.size(0)) if not absent[i])
            total = total.detach() if normaliser.detach else total
            columns.append(k[:, j] / total if total > 0 else k[:, j])
        k = torch.stack(columns, 1)
    return k


CASES = [
    Case(
        "sinkformer",
        "normaliser",
        twin=sinkformer,
        options=({}, {"sinkformer_iterations": 5}),
        flags="--encoder-normaliser sinkformer",
        encoder_only=True,
    )
]
ALL = slice(None)


def weights(scores, **options):
    """[T, S] weights of one head."""
    scores = torch.as_tensor(scores, dtype=torch.float64)[None, None]
    return (
        build_normaliser("sinkformer", 1, **options).double().weights(scores, None, None, ALL)[0, 0]
    )


def close(a, b, tol=1e-9):
    torch.testing.assert_close(a, torch.as_tensor(b, dtype=a.dtype), atol=tol, rtol=0)


def test_worked_sinkformer():
    """exp(s) = [[1, 2], [3, 4]]: rows [1/3, 2/3], [3/7, 4/7]; columns by 16/21 and 26/21; rows."""
    scores = torch.tensor([[1.0, 2], [3, 4]]).log()
    first, second = [7 / 16, 14 / 26], [9 / 16, 12 / 26]
    rows = [[x / sum(row) for x in row] for row in (first, second)]
    close(weights(scores), rows, 1e-7)
    close(weights(scores, sinkformer_iterations=1), scores.double().softmax(-1), 1e-7)
    many = weights(scores, sinkformer_iterations=61)
    close(many.sum(0), [1.0, 1.0], 1e-7)
    # it is where Sinkhorn's sweeps, which begin with columns, end too
    sweeps = build_normaliser("sinkhorn", 1, sinkhorn_sweeps=40)
    close(many, sweeps.weights(scores[None, None].double(), None, None, ALL)[0, 0], 1e-7)


def test_the_gradient_without_columns():
    """With detached sums it is softmax's gradient of scores less constants of their keys."""
    scores = torch.randn(1, 1, 3, 4, dtype=torch.float64, requires_grad=True)
    probe = torch.randn(1, 1, 3, 4, dtype=torch.float64)
    detached = build_normaliser("sinkformer", 1, sinkformer_detach=True)
    sums = scores.log_softmax(-1).logsumexp(-2, keepdim=True).detach()
    both = detached.weights(scores, None, None, ALL), (scores - sums).softmax(-1)
    torch.testing.assert_close(*both)
    torch.testing.assert_close(*(torch.autograd.grad(w, scores, probe) for w in both))
    whole = build_normaliser("sinkformer", 1).weights(scores, None, None, ALL)
    torch.testing.assert_close(whole, both[0])
    other, own = (
        torch.autograd.grad(w, scores, probe)[0]
        for w in (whole, detached.weights(scores, None, None, ALL))
    )
    assert (other - own).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sinkformer_iterations": 2}, "iterations is 2.*give an odd number"),
        ({"sinkformer_iterations": -1}, "iterations is -1"),
    ],
)
def test_bad_options_are_refused_in_a_sentence(options, said):
    with pytest.raises(UsageError, match=said):
        build_normaliser("sinkformer", 1, **options)
