"""Attention whose map is computed again for its gradient: the path that keeps maps is the twin."""

import pytest
import torch

from fairseq_ext.attention import AttentionContext, HeadGroup, Inputs, build_normaliser
from fairseq_ext.attention.context import HeadCall
from fairseq_ext.attention.masks import Mask
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.kernels import recomputed

KINDS = {
    "entmax": {},
    "entmax, alpha 2": {"entmax_alpha": 2.0},
    "entmax, learned": {"entmax_alpha": 1.3, "entmax_learned": True},
    "sinkformer": {},
    "sinkformer, 5": {"sinkformer_iterations": 5},
    "sinkformer, detached": {"sinkformer_detach": True},
}
PADDING = torch.tensor([[0] * 7, [0] * 5 + [1] * 2, [1] * 3 + [0] * 4]).bool()


@pytest.fixture(params=KINDS)
def group(request):
    name, _, _ = request.param.partition(",")
    return HeadGroup(2, normaliser=build_normaliser(name, 2, **KINDS[request.param])).double()


def draw(dtype=torch.float64):
    torch.manual_seed(1)
    return [torch.randn(3, 2, 7, 4, dtype=torch.float64).to(dtype) for _ in "qkvg"]


def attend(group, monkeypatch, least, inputs, dtype=torch.float64, dropout=0.0):
    """Output and gradients of q, k, v and parameters; of padded queries, zeros."""
    monkeypatch.setitem(recomputed.MIN_SCORES, "cpu", least)
    *leaves, probe = draw(dtype)
    leaves = [x.requires_grad_() for x in leaves]
    context = AttentionContext(inputs, 7, 7, 0, probe.device, inputs.padding, inputs.padding)
    torch.manual_seed(2)
    call = HeadCall(*leaves, context, slice(0, 2), dropout)
    out, _ = group.attend(call, observed=False)
    assert ("_Recomputed" in type(out.grad_fn).__name__) == (least == 0)
    if inputs.padding is not None:
        out = out * ~inputs.padding[:, None, :, None]
    return out, *torch.autograd.grad((out * probe).sum(), [*leaves, *group.parameters()])


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("padding", [None, PADDING], ids=["whole", "padded"])
def test_output_and_all_gradients(group, dropout, padding, monkeypatch):
    """The same weights are dropped, forward and backward."""
    results = [
        attend(group, monkeypatch, least, Inputs(padding), dropout=dropout) for least in (10**6, 0)
    ]
    torch.testing.assert_close(results[1], results[0], rtol=1e-10, atol=1e-10)


def test_keys_after_a_query_are_masked(monkeypatch):
    group = HeadGroup(2, normaliser=build_normaliser("entmax", 2)).double()
    inputs = Inputs(causal=True)
    results = [attend(group, monkeypatch, least, inputs) for least in (10**6, 0)]
    torch.testing.assert_close(results[1], results[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits(group, dtype, monkeypatch):
    """Weights and slopes of scores are rounded, as they are where maps are kept."""
    group = group.to(dtype)
    results = [attend(group, monkeypatch, least, Inputs(), dtype) for least in (10**6, 0)]
    for found, expected in zip(results[1], results[0], strict=True):
        assert found.dtype == dtype
        apart = (found.float() - expected.float()).norm() / expected.float().norm()
        assert apart < 2 * torch.finfo(dtype).eps


def test_the_gradient_of_a_bias(monkeypatch):
    monkeypatch.setitem(recomputed.MIN_SCORES, "cpu", 0)
    q, k, v, probe = (x.requires_grad_() for x in draw())
    bias = torch.randn(1, 2, 7, 7, dtype=torch.float64, requires_grad=True)
    call = HeadCall(q, k, v, AttentionContext(Inputs(), 7, 7, 0, q.device), slice(0, 2))
    group = HeadGroup(2, normaliser=build_normaliser("entmax", 2)).double()
    ours = group.normaliser.fused(call, Mask(bias=bias))
    scores = q @ k.mT / 2
    twin = group.normaliser.weights(scores, bias, None, slice(0, 2)) @ v
    slopes = [torch.autograd.grad((out * probe).sum(), (q, k, v, bias)) for out in (ours, twin)]
    torch.testing.assert_close(*slopes, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_no_map_is_kept(group, dropout, monkeypatch):
    """But for a byte of each weight that may be dropped."""
    monkeypatch.setitem(recomputed.MIN_SCORES, "cpu", 0)
    q, k, v, _ = (x.requires_grad_() for x in draw())
    context, kept = AttentionContext(Inputs(), 7, 7, 0, q.device), []
    call = HeadCall(q, k, v, context, slice(0, 2), dropout)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        group.normaliser.fused(call, Mask())
    assert [x.dtype for x in kept if x.shape == (3, 2, 7, 7)] == [torch.bool] * (dropout > 0)


def test_maps_are_kept_without_gradients_and_where_they_are_small(group, monkeypatch):
    call = HeadCall(*draw()[:3], AttentionContext(Inputs(), 7, 7, 0, torch.device("cpu")), slice(2))
    assert group.normaliser.fused(call, Mask()) is None
    monkeypatch.setitem(recomputed.MIN_SCORES, "cpu", 0)
    with torch.no_grad():
        assert group.normaliser.fused(call, Mask()) is None


def test_second_derivatives_are_refused(group, monkeypatch):
    monkeypatch.setitem(recomputed.MIN_SCORES, "cpu", 0)
    q, k, v, _ = (x.requires_grad_() for x in draw())
    call = HeadCall(q, k, v, AttentionContext(Inputs(), 7, 7, 0, q.device), slice(0, 2))
    with pytest.raises(UsageError, match="^attention whose map is computed again has no second"):
        torch.autograd.grad(group.normaliser.fused(call, Mask()).sum(), q, create_graph=True)
