"""Softmax with a sink: its naive twin, worked numbers, its kernels, what a log shows."""

import pytest
import torch
from mechanism_cases import Case
from torch import Tensor

from fairseq_ext.attention import AttentionContext, HeadGroup, Inputs
from fairseq_ext.attention import normalisers as softmax
from fairseq_ext.attention.context import HeadCall
from fairseq_ext.attention.masks import Mask, mask_to_bias
from fairseq_ext.attention.normalisers import build_normaliser
from fairseq_ext.mechanisms.kernels import sink_sdpa


def sink(scores: Tensor, masked: Tensor, absent: Tensor, normaliser, head: int) -> Tensor:
    """Weights [T, S], with exp(b) among what a row is divided by."""
    e = torch.where(masked, 0, scores.exp())
    b = scores.new_zeros(()) if normaliser.sink_logit is None else normaliser.sink_logit[head]
    return torch.stack([row / (b.exp() + row.sum()) for row in e])


CASES = [
    Case(
        "sink",
        "normaliser",
        twin=sink,
        options=({}, {"sink": "off-by-one"}),
        sums_to_one=False,
        flags="--encoder-normaliser sink",
        own="normaliser.sink_logit",
        ignores=None,
    )
]
ALL = slice(None)


def weights(scores, **options):
    """[T, S] weights of one head."""
    scores = torch.as_tensor(scores, dtype=torch.float64)[None, None]
    return build_normaliser("sink", 1, **options).double().weights(scores, None, None, ALL)[0, 0]


def close(a, b, tol=1e-9):
    torch.testing.assert_close(a, torch.as_tensor(b, dtype=a.dtype), atol=tol, rtol=0)


def test_worked_sink():
    close(weights([[0.0, 0.0]], sink="off-by-one"), [[1 / 3, 1 / 3]])
    close(weights([[-50.0, -60.0]], sink="off-by-one"), [[0.0, 0.0]])
    scores = torch.tensor([[1.0, 2.0, 3.0]])
    close(weights(scores), (scores.exp() / (1 + scores.exp().sum())).double(), 1e-7)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_kernels_of_the_sink(causal, dtype):
    """The one for CPUs and the one for other devices, forward and every gradient."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 40, 8, dtype=dtype, requires_grad=True) for _ in range(3))
    sink = torch.randn(3, dtype=dtype, requires_grad=True)
    context = AttentionContext(Inputs(), 40, 40, 0, q.device)
    hidden = torch.ones(40, 40).triu(1).bool() if causal else torch.rand(2, 1, 1, 40) < 0.3
    mask = Mask(causal=True) if causal else Mask(bias=mask_to_bias(hidden, dtype))
    scores = (q @ k.mT * 8**-0.5).masked_fill(hidden, float("-inf"))
    total = scores.logsumexp(-1, keepdim=True).logaddexp(sink[:, None, None])
    found = [
        sink_sdpa.attend(HeadCall(q, k, v, context, ALL), mask, sink),
        sink_sdpa.attend_with_key(q, k, v, sink, mask),
        (scores - total).exp() @ v,
    ]
    tol = {"atol": 1e-9, "rtol": 1e-9} if dtype == torch.float64 else {"atol": 1e-4, "rtol": 1e-4}
    probe = torch.randn_like(q)
    grads = [torch.autograd.grad(out, (q, k, v, sink), probe) for out in found]
    for out, grad in zip(found[:2], grads[:2], strict=True):
        torch.testing.assert_close(out, found[2], **tol)
        torch.testing.assert_close(grad, grads[2], **tol)


def test_the_sink_s_kernel_of_other_devices_takes_a_bias_and_dropout():
    """The sink has no bias. With the identity as values, the output is the weights."""
    torch.manual_seed(0)
    q, k = torch.randn(2, 2, 3, 16, 16, dtype=torch.float64)
    v = torch.eye(16, dtype=torch.float64).expand_as(q)
    sink, bias = torch.randn(3, dtype=torch.float64), torch.randn_like(q)
    scores = q @ k.mT / 4 + bias
    weights = (scores - scores.logsumexp(-1, keepdim=True).logaddexp(sink[:, None, None])).exp()
    mask, context = Mask(bias=bias), AttentionContext(Inputs(), 16, 16, 0, q.device)
    torch.testing.assert_close(sink_sdpa.attend_with_key(q, k, v, sink, mask), weights)
    dropped = sink_sdpa.attend(HeadCall(q, k, v, context, ALL, dropout=0.25), mask, sink)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], weights[kept] / 0.75)
    assert kept.double().mean().item() == pytest.approx(0.75, abs=0.05)


def test_a_log_shows_the_mean_of_learned_sinks_alone():
    module = build_normaliser("sink", 2)
    module.sink_logit.data = torch.tensor([0.25, -1.25])
    assert {name: read() for name, read in module.statistics().items()} == {"sink": -0.5}
    assert build_normaliser("sink", 2, sink="off-by-one").statistics() == {}


def test_heads_with_a_sink_are_fused_where_nothing_asks_for_maps(monkeypatch):
    monkeypatch.setattr(softmax, "MIN_SCORES", 0)
    group = HeadGroup(2, normaliser=build_normaliser("sink", 2))
    monkeypatch.setattr(group.normaliser, "weights", None)
    q = torch.randn(1, 2, 5, 4)
    context = AttentionContext(Inputs(), 5, 5, 0, q.device)
    out, maps = group.attend(HeadCall(q, q, q, context, ALL), observed=False)
    assert out.shape == q.shape and maps is None
