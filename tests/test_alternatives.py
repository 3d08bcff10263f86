"""Normalisers that people use instead of the papers': twins, worked numbers, what is refused."""

import naive
import pytest
import torch
from cases import slow_but_first
from torch.autograd import gradcheck

from fairseq_ext.attention import AttentionContext, HeadGroup, Inputs, build_normaliser
from fairseq_ext.attention import normalisers as softmax
from fairseq_ext.attention.context import HeadCall
from fairseq_ext.attention.masks import Mask
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.entmax import Entmax, entmax
from fairseq_ext.mechanisms.kernels import sink_sdpa
from fairseq_ext.testing import check_mechanism, check_normaliser

ALL = slice(None)
LEARNED = {"entmax_learned": True}
KINDS = [
    ("sinkformer", naive.sinkformer, {}),
    ("entmax", naive.entmax, {}),
    ("sink", naive.sink, {}),
    ("sinkformer", naive.sinkformer, {"sinkformer_iterations": 5}),
    ("entmax", naive.entmax, {"entmax_alpha": 2.0}),
    ("entmax", naive.entmax, {"entmax_alpha": 1.2}),
    ("entmax", naive.entmax, LEARNED),
    ("sink", naive.sink, {"sink": "off-by-one"}),
]


@pytest.fixture(params=["as chosen", "fused"])
def form(request, monkeypatch):
    if request.param == "fused":
        monkeypatch.setattr(softmax, "MIN_SCORES", 0)


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize(
    ("name", "twin", "options"),
    [*KINDS[:3], *(pytest.param(*kind, marks=pytest.mark.slow) for kind in KINDS[3:])],
)
def test_twin_gradients_and_invariants(name, twin, options):
    if name == "sink" or softmax.MIN_SCORES:  # others have no kernel
        check_normaliser(name, twin, **options)


@pytest.mark.parametrize("mechanism", slow_but_first(["sink", "sinkformer", "entmax"]))
def test_mechanisms(mechanism):
    check_mechanism(mechanism)


def weights(name, scores, **options):
    """[T, S] weights of one head."""
    scores = torch.as_tensor(scores, dtype=torch.float64)[None, None]
    return build_normaliser(name, 1, **options).double().weights(scores, None, None, ALL)[0, 0]


def close(a, b, tol=1e-9):
    torch.testing.assert_close(a, torch.as_tensor(b, dtype=a.dtype), atol=tol, rtol=0)


def test_worked_sinkformer():
    """exp(s) = [[1, 2], [3, 4]]: rows [1/3, 2/3], [3/7, 4/7]; columns by 16/21 and 26/21; rows."""
    scores = torch.tensor([[1.0, 2], [3, 4]]).log()
    first, second = [7 / 16, 14 / 26], [9 / 16, 12 / 26]
    rows = [[x / sum(row) for x in row] for row in (first, second)]
    close(weights("sinkformer", scores), rows, 1e-7)
    close(weights("sinkformer", scores, sinkformer_iterations=1), scores.double().softmax(-1), 1e-7)
    many = weights("sinkformer", scores, sinkformer_iterations=61)
    close(many.sum(0), [1.0, 1.0], 1e-7)
    # it is where Sinkhorn's sweeps, which begin with columns, end too
    close(many, weights("sinkhorn", scores, sinkhorn_sweeps=40), 1e-7)


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


def test_entmax_is_in_float32_under_autocast():
    """Products of vectors would be in 16 bits, and the rows' thresholds inexact."""
    scores = torch.randn(4, 16)
    with torch.autocast("cpu", torch.bfloat16):
        found = entmax(scores, 1.3)
    assert torch.equal(found, entmax(scores, 1.3))


def test_worked_entmax():
    close(weights("entmax", [[0.5, 0.0, -2.0]], entmax_alpha=2.0), [[0.75, 0.25, 0.0]])
    close(weights("entmax", [[3.0, 1.0, 0.0]], entmax_alpha=2.0), [[1.0, 0.0, 0.0]])
    # two equal scores; 1.5-entmax of (a, 0): x = (a/2, 0), (x - tau)^2 sums to one
    close(weights("entmax", [[1.0, 1.0, -5.0]]), [[0.5, 0.5, 0.0]])
    a = 1.0
    tau = a / 4 - ((2 - a * a / 4) ** 0.5) / 2
    close(weights("entmax", [[a, 0.0]]), [[(a / 2 - tau) ** 2, tau**2]])
    near = torch.randn(3, 5, dtype=torch.float64)
    close(weights("entmax", near, entmax_alpha=1.001), near.softmax(-1), 1e-2)


@pytest.mark.parametrize("alpha", [1.05, 1.3, 1.5, 1.8, 2.0])
def test_gradients_of_entmax(alpha):
    torch.manual_seed(0)
    scores = 3 * torch.randn(2, 3, 7, dtype=torch.float64)
    heads = torch.tensor([min(alpha, 1.9), min(alpha + 0.1, 1.97)], dtype=torch.float64)[
        :, None, None
    ]
    scores.requires_grad_()
    assert gradcheck(entmax, (scores, alpha))
    assert gradcheck(entmax, (scores, heads.requires_grad_()))


@pytest.mark.parametrize("keys", [1, 2, 500])
@pytest.mark.parametrize("alpha", [1.01, 1.5, 2.0])
def test_entmax_of_hard_rows(keys, alpha):
    """Equal scores, far scores; and rows do not depend on what else is in the batch."""
    scores = torch.stack([torch.zeros(keys), 1e4 * torch.randn(keys), torch.randn(keys)])
    found = entmax(scores, alpha)
    torch.testing.assert_close(found.sum(-1), torch.ones(3))
    torch.testing.assert_close(found[0], torch.full((keys,), 1 / keys))
    for row, alone in zip(found, scores, strict=True):
        assert torch.equal(row, entmax(alone[None], alpha)[0])


def test_a_learned_alpha_moves_and_is_logged():
    module = Entmax(2, 1.3, True).half()
    torch.nn.init.constant_(module.alpha_offset, 1e-3)
    assert (module.alpha() - 1.3).abs().min() > 1e-4
    assert module.statistics()["alpha"]() == pytest.approx(1.3, abs=1e-3)
    torch.nn.init.constant_(module.alpha_offset, -30)
    assert module.alpha().tolist() == pytest.approx([1.01, 1.01])


def test_worked_sink():
    close(weights("sink", [[0.0, 0.0]], sink="off-by-one"), [[1 / 3, 1 / 3]])
    close(weights("sink", [[-50.0, -60.0]], sink="off-by-one"), [[0.0, 0.0]])
    scores = torch.tensor([[1.0, 2.0, 3.0]])
    close(weights("sink", scores), (scores.exp() / (1 + scores.exp().sum())).double(), 1e-7)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_kernels_of_the_sink(causal, dtype):
    """The one for CPUs and the one for other devices, forward and every gradient."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 40, 8, dtype=dtype, requires_grad=True) for _ in range(3))
    sink = torch.randn(3, dtype=dtype, requires_grad=True)
    context = AttentionContext(Inputs(), 40, 40, 0, q.device)
    mask = Mask(None, True) if causal else Mask(torch.rand(2, 1, 1, 40) < 0.3)
    hidden = torch.ones(40, 40).triu(1).bool() if causal else mask.masked
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


def test_a_call_on_a_gpu_is_always_fused():
    """On a CPU only a long one without dropout is."""
    context = AttentionContext(Inputs(), 2, 2, 0, torch.device("cpu"))
    gpu, cpu = (torch.empty(1, 1, 2, 4, device=device) for device in ("meta", "cpu"))
    assert softmax.is_fused(HeadCall(gpu, gpu, gpu, context, ALL, 0.1))
    assert not softmax.is_fused(HeadCall(cpu, cpu, cpu, context, ALL))
    long = torch.empty(1, 1, 33, 4)
    assert softmax.is_fused(HeadCall(long, long, long, context, ALL))
    assert not softmax.is_fused(HeadCall(long, long, long, context, ALL, 0.1))


def test_a_learned_alpha_comes_back_from_its_bounds():
    part = build_normaliser("entmax", 2, entmax_learned=True)
    torch.nn.init.constant_(part.alpha_offset, 9.0)
    torch.testing.assert_close(part.alpha(), torch.full((2,), 1.99))
    part.alpha().sum().backward()
    assert part.alpha_offset.grad.gt(0).all()


def test_no_parameter_is_named_like_that_of_another_normaliser():
    """Otherwise --reset-optimizer would begin one with the other's values."""
    options = {"hybrid": {"hna_init": 0.5, "hna_weight": "raw"}, "sink": {}}
    options["entmax"] = {"entmax_learned": True}
    built = [build_normaliser(name, 2, **given) for name, given in options.items()]
    names = [name for part in built for name, _ in part.named_parameters()]
    assert len({*names}) == len(names) == 3


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


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("sinkformer", {"sinkformer_iterations": 2}, "iterations is 2.*give an odd number"),
        ("sinkformer", {"sinkformer_iterations": -1}, "iterations is -1"),
        ("entmax", {"entmax_alpha": 1.0}, "alpha is 1; give a number above 1"),
        ("entmax", {"entmax_alpha": 2.5}, "alpha is 2.5"),
        ("entmax", {"entmax_alpha": float("nan")}, "alpha is nan"),
        ("entmax", {"entmax_alpha": 2.0, **LEARNED}, "at the edge"),
    ],
)
def test_bad_options_are_refused_in_a_sentence(name, options, said):
    with pytest.raises(UsageError, match=said):
        build_normaliser(name, 1, **options)
