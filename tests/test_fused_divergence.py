"""Divergences with their gradients: autograd's of the definition, in float64, are the twin."""

import pytest
import torch

from fairseq_ext.criterions import fused_divergence
from fairseq_ext.criterions.adversarial.embedding_noise import sum_of_kls
from fairseq_ext.criterions.divergence import kl, symmetric_kl
from fairseq_ext.criterions.fused_divergence import measure_divergence

WEIGHTS = {kl: (1, 0), symmetric_kl: (0.5, 0.5), sum_of_kls: (1, 1)}
DISTANCES = pytest.mark.parametrize("distance", WEIGHTS)
ROWS = torch.tensor([3, 0, -2, 1.5, 7])  # the slopes of a loss in the distances


def twin(distance, clean, other):
    a, b = WEIGHTS[distance]
    p, q = (x.double().softmax(-1) for x in (clean, other))
    return a * (p * (p / q).log()).sum(-1) + b * (q * (q / p).log()).sum(-1)


def draw(dtype=torch.float32, scale=3):
    generator = torch.Generator().manual_seed(1)
    return [(scale * torch.randn(5, 17, generator=generator)).to(dtype) for _ in "pq"]


def slopes(distance, scores, needed=(True, True)):
    leaves = [x.clone().requires_grad_(need) for x, need in zip(scores, needed, strict=True)]
    distances = distance(*leaves)
    (distances * ROWS.to(distances)).sum().backward()
    return distances.detach(), *(x.grad for x in leaves)


@DISTANCES
@pytest.mark.parametrize("part", [1, 40, 10**6])
def test_distances_and_gradients(distance, part, monkeypatch):
    """Parts have one row, two, or all."""
    monkeypatch.setattr(fused_divergence, "ELEMENTS", {"cpu": part})
    for dtype, tolerance in ((torch.float32, 2e-5), (torch.float64, 1e-12)):
        found = slopes(distance, draw(dtype))
        expected = slopes(lambda *x: twin(distance, *x), [x.double() for x in draw(dtype)])
        assert all(x.dtype == dtype for x in found)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance)


@DISTANCES
@pytest.mark.parametrize("needed", [(True, False), (False, True)])
def test_one_side_may_be_fixed(distance, needed):
    alone, both = slopes(distance, draw(), needed), slopes(distance, draw())
    for found, expected, need in zip(alone, both, (True, *needed), strict=True):
        assert torch.equal(found, expected) if need else found is None


@DISTANCES
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_scores_of_16_bits(distance, dtype):
    """Distances are exact, and gradients are rounded twice, when kept and at the end."""
    scores = draw(dtype)
    exact, found = slopes(distance, [x.float() for x in scores]), slopes(distance, scores)
    assert found[0].dtype == torch.float32 and torch.equal(found[0], exact[0])
    tolerance = {"rtol": 1.01 * torch.finfo(dtype).eps, "atol": 1e-7}
    for one, other in zip(found[1:], exact[1:], strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(one.float(), other, **tolerance)


@pytest.mark.parametrize(
    ("dtype", "bits"), [(torch.bfloat16, 16), (torch.float16, 32), (torch.float32, 32)]
)
def test_two_tensors_are_kept(dtype, bits):
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        symmetric_kl(*(x.requires_grad_() for x in draw(dtype)))
    assert [(x.shape, torch.finfo(x.dtype).bits) for x in kept] == [((5, 17), bits)] * 2


@DISTANCES
def test_there_may_be_no_rows(distance):
    none = torch.zeros(0, 17, requires_grad=True)
    found = distance(none, none)
    assert found.shape == (0,)
    found.sum().backward()
    assert none.grad.shape == (0, 17)


@pytest.mark.parametrize("words", [3, 40, 1000])
@pytest.mark.parametrize("near", [1e-1, 1e-4, 1e-6])
def test_nearly_equal_scores_have_exact_gradients_in_float32(words, near):
    """Small noise moves scores by little; its ascent follows their gradient."""
    torch.manual_seed(0)
    clean = 3 * torch.randn(4, words)
    other = clean + near * torch.randn(4, words)
    found, exact = (
        torch.autograd.grad(measure_divergence(x, y, 1.0, 1.0).sum(), (x, y))
        for x, y in (
            (clean.to(t).requires_grad_(), other.to(t).requires_grad_())
            for t in (torch.float32, torch.float64)
        )
    )
    for one, other in zip(found, exact, strict=True):
        assert (one - other).norm() < 2e-6 * other.norm()


def test_far_scores_stay_finite():
    clean, other = torch.tensor([[200.0, 0.0, -200.0]]), torch.tensor([[-200.0, 0.0, 200.0]])
    leaves = clean.requires_grad_(), other.requires_grad_()
    loss = measure_divergence(*leaves, 1.0, 1.0).sum()
    torch.testing.assert_close(loss, torch.tensor(800.0))
    assert all(x.isfinite().all() for x in torch.autograd.grad(loss, leaves))
