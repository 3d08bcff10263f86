"""Fused kernels against the plain form of their normaliser: outputs, all gradients, refusals."""

import pytest
import torch
from torch.autograd import gradcheck

from fairseq_ext.attention import Attention, AttentionRecorder, HeadGroup, Inputs, build_normaliser
from fairseq_ext.attention.context import AttentionContext, HeadCall
from fairseq_ext.attention.masks import Mask, mask_to_bias
from fairseq_ext.mechanisms.kernels import doubly_cpu

OPTIONS = {"hna_init": 0.3, "hna_weight": "sigmoid", "sinkhorn_sweeps": 1}
KINDS = ("doubly", "hybrid", "sinkhorn")


@pytest.fixture(autouse=True)
def use_it_on_small_inputs(monkeypatch):
    monkeypatch.setattr(doubly_cpu, "MIN_SCORES", 0)


def padded(lengths, size, side):
    at, lengths = torch.arange(size), torch.tensor(lengths)[:, None]
    return at >= lengths if side == "right" else at < size - lengths


def call_of(q, k, v, query_padding=None):
    context = AttentionContext(
        Inputs(), q.size(2), k.size(2), 0, q.device, query_padding=query_padding
    )
    return HeadCall(q, k, v, context, slice(None))


def both(kind, q, k, v, keys=None, queries=None):
    """Fused and plain output, and the gradients of q, k, v and u, at real queries."""
    normaliser = build_normaliser(kind, q.size(1), **OPTIONS).to(q.dtype)
    real = torch.ones(q.shape[0], q.shape[2], dtype=torch.bool) if queries is None else ~queries
    probe = torch.randn_like(q) * real[:, None, :, None]
    masked = None if keys is None else keys[:, None, None]

    def plain(q, k, v):
        scores = q @ k.mT * q.size(-1) ** -0.5
        bias = None if masked is None else mask_to_bias(masked, scores.dtype)
        return normaliser.weights(scores, bias, queries, slice(None)) @ v

    def fused(q, k, v):
        mask = Mask(masked)
        if normaliser.fuses_bias and masked is not None:
            mask = Mask(bias=mask_to_bias(masked, q.dtype))
        out = normaliser.fused(call_of(q, k, v, queries), mask)
        assert out is not None
        return out

    results = []
    for function in (fused, plain):
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        out = function(*leaves)
        grads = torch.autograd.grad((out * probe).sum(), [*leaves, *normaliser.parameters()])
        results.append((out.transpose(1, 2)[real], *grads))
    return results


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("t", "s"), [(37, 37), (5, 70), (70, 5), (1, 9)])
@pytest.mark.parametrize("budget", [1 << 20, 3000])
@pytest.mark.parametrize(("dtype", "tol"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_outputs_and_gradients(kind, t, s, budget, dtype, tol, monkeypatch):
    monkeypatch.setattr(doubly_cpu, "BLOCK_BYTES", budget)
    torch.manual_seed(t + s)
    q, k, v = (torch.randn(2, 3, n, 8, dtype=dtype) for n in (t, s, s))
    torch.testing.assert_close(*both(kind, q, k, v), atol=tol, rtol=tol)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("budget", [1 << 20, 3000])
def test_padding(kind, side, budget, monkeypatch):
    monkeypatch.setattr(doubly_cpu, "BLOCK_BYTES", budget)
    torch.manual_seed(0)
    q, k, v = (torch.randn(3, 2, 40, 8) for _ in range(3))
    padding = padded([40, 17, 1], 40, side)
    torch.testing.assert_close(*both(kind, q, k, v, padding, padding), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(*both(kind, q, k, v, padding), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("budget", [1 << 20, 3 * 5 * 8])
def test_gradcheck(hybrid, budget, monkeypatch):
    monkeypatch.setattr(doubly_cpu, "BLOCK_BYTES", budget)
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 1, 5, 3, dtype=torch.float64, requires_grad=True) for _ in range(3))
    u = torch.tensor([0.3], dtype=torch.float64, requires_grad=True)
    padding = padded([5, 3], 5, "left")

    def attend(*x):
        return doubly_cpu.attend(*x[:3], padding[:, None, None], padding, *x[3:])[:, :, 3:]

    assert gradcheck(attend, (q, k, v, u) if hybrid else (q, k, v))


def exact_or_declined(kind, scores, fused):
    """The kernel's weights for these [T, S] scores, if it takes them, are those of the twin."""
    t, s = scores.shape
    expected = build_normaliser(kind, 1, **OPTIONS).weights(
        scores.double()[None, None], None, None, slice(None)
    )
    q, k, v = scores * s**0.5, torch.eye(s), torch.eye(s)  # q k^T / sqrt(S)
    call = call_of(q[None, None], k[None, None], v[None, None])
    out = build_normaliser(kind, 1, **OPTIONS).fused(call, Mask())
    assert (out is not None) == fused
    if fused:
        torch.testing.assert_close(out, expected.float(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("gap", "fused"), [(20.0, True), (100.0, False)])
def test_a_query_that_lost_every_key(kind, gap, fused):
    """20 nats below the winner are exact in the kernel; 100 are left to the plain form."""
    scores = torch.tensor([[0.0, 1, 2], [gap, gap + 2, gap + 1], [0, 0, 0]])
    exact_or_declined(kind, scores, fused)


@pytest.mark.parametrize(
    ("gap", "fused"), [(40.0, True), (-40.0, True), (100.0, False), (-100.0, False)]
)
@pytest.mark.parametrize("budget", [1 << 20, 1])
def test_keys_far_apart_in_hybrid_attention(gap, fused, budget, monkeypatch):
    """A query wins half of the keys and loses the other half: its r is large, its l is not."""
    monkeypatch.setattr(doubly_cpu, "BLOCK_BYTES", budget)
    scores = torch.zeros(2, 70)
    scores[1, :35], scores[1, 35:] = gap, -gap
    exact_or_declined("hybrid", scores, fused)
    exact_or_declined("doubly", scores, True)


def attention(kind, **stock):
    torch.manual_seed(0)
    groups = [HeadGroup(2, normaliser=build_normaliser(kind, 2, **OPTIONS))]
    return Attention(8, 2, site="encoder", groups=groups, **stock)


@pytest.mark.parametrize("kind", KINDS)
def test_the_module_takes_the_kernel_when_nobody_listens(kind, monkeypatch):
    calls = []
    monkeypatch.setattr(
        doubly_cpu, "attend", lambda *x, run=doubly_cpu.attend: calls.append(1) or run(*x)
    )
    module, x = attention(kind), torch.randn(12, 3, 8)
    padding = padded([12, 7, 0], 12, "left")
    fused, _ = module(x, x, x, Inputs(padding), need_weights=False)
    assert len(calls) == 1 and fused.isfinite().all()
    heard = Inputs(padding, recorder=AttentionRecorder(lambda *_: [0, 1]))
    plain, _ = module(x, x, x, heard, need_weights=False)
    assert len(calls) == 1
    torch.testing.assert_close(fused.transpose(0, 1)[~padding], plain.transpose(0, 1)[~padding])


@pytest.mark.parametrize(
    "inputs",
    [
        {"inputs": Inputs(masked=torch.ones(12, 12, dtype=torch.bool).triu(3))},
        {"dropout": 0.5},
        {"dtype": torch.bfloat16},
        {"kind": "sinkhorn", "sinkhorn_sweeps": 2},
    ],
)
def test_it_declines_what_it_cannot_do(inputs, monkeypatch):
    monkeypatch.setattr(doubly_cpu, "attend", None)
    monkeypatch.setitem(OPTIONS, "sinkhorn_sweeps", inputs.get("sinkhorn_sweeps", 1))
    module = attention(inputs.get("kind", "doubly"), dropout=inputs.get("dropout", 0.0))
    dtype = inputs.get("dtype", torch.float32)
    x = torch.randn(12, 1, 8, dtype=dtype)
    out, _ = module.to(dtype)(x, x, x, inputs.get("inputs"), need_weights=False)
    assert out.isfinite().all()
