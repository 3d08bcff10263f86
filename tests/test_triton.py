"""DNA's and HNA's GPU kernels against the naive twin: on a GPU, or as far as a CPU can show."""

import pytest
import torch
from cases import slow_but_first
from naive import normalise
from triton_cases import BFLOAT16, MEMORY, USUAL, dropped, here_only, run_interpreted

from fairseq_ext.attention import (
    AttentionContext,
    HeadGroup,
    Inputs,
    build_normaliser,
    head_groups,
)
from fairseq_ext.attention.context import HeadCall
from fairseq_ext.attention.masks import Mask
from fairseq_ext.mechanisms.kernels import doubly_triton, triton_launch

OPTIONS = {"hna_init": 0.3, "hna_weight": "sigmoid", "doubly_kernel": "triton"}
# numpy's, of the branch that is not taken
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")


@here_only
@pytest.mark.parametrize("chosen", slow_but_first(["test_outputs_and", "not test_outputs_and"]))
def test_in_the_interpreter(chosen):
    run_interpreted(__file__, chosen)


def shares(hybrid, heads):
    return torch.linspace(0.3, 0.8, heads) if hybrid else None


def share_of(u):
    return None if u is None else doubly_triton.Share(u)


def naive(q, k, v, keys, queries, u, factors):
    """Return the twin's output in float64, zero for padded queries; factors multiply weights."""
    out = torch.zeros_like(q)
    for b, h in ((b, h) for b in range(q.size(0)) for h in range(q.size(1))):
        if not queries[b].all():
            scores = q[b, h] @ k[b, h].T / q.size(-1) ** 0.5
            kind, share = ("doubly", 1) if u is None else ("hybrid", u[h])
            w = normalise(kind, scores, keys[b].expand_as(scores), queries[b], u=share)
            w = w if factors is None else w * factors[b, h]
            out[b, h] = (w @ v[b, h]).masked_fill(queries[b, :, None], 0)
    return out


def both(device, q, k, v, u=None, keys=None, queries=None, dropout=0.0, factors=None):
    """Output and gradients of q, k, v and u, of the kernels and, of the same numbers, of the twin.

    The loss sees padded queries as well: their output is a constant.
    """
    masks = [x if x is None else x.to(device) for x in (keys, queries)]
    masked = None if keys is None else masks[0][:, None, None]
    nothing = [torch.zeros(x.size(0), x.size(2), dtype=torch.bool) for x in (k, q)]
    known = [none if x is None else x for x, none in zip((keys, queries), nothing, strict=True)]
    leaves = [x for x in (q, k, v, u) if x is not None]
    probe = torch.randn(q.shape).to(q.dtype)

    def run(function, leaves, probe):
        out = function(*leaves)
        return out, *torch.autograd.grad((out * probe).sum(), leaves)

    def kernels(q, k, v, u=None):
        assert doubly_triton.supports(q, k, Mask(masked))
        return doubly_triton.attend(q, k, v, masked, masks[1], share_of(u), dropout)

    ours = run(kernels, [x.to(device).requires_grad_() for x in leaves], probe.to(device))
    twins = run(
        lambda q, k, v, u=None: naive(q, k, v, *known, u, factors and factors()),
        [x.double().requires_grad_() for x in leaves],
        probe.double(),
    )
    assert all(x.dtype == y.dtype for x, y in zip(ours, (q, *leaves), strict=True))
    return [x.detach().cpu().double() for x in ours], [x.detach() for x in twins]


def draw(batch, heads, t, s, d, dtype=torch.float32):
    torch.manual_seed(t + s)
    return [torch.randn(batch, heads, n, d).to(dtype) for n in (t, s, s)]


def padded(lengths, size, side):
    at, lengths = torch.arange(size), torch.tensor(lengths)[:, None]
    masks = {"right": at >= lengths, "left": at < size - lengths}
    return masks["left"] ^ (at % 5 == 3) if side == "holes" else masks[side]


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize(("t", "s", "d"), [(37, 37, 24), (5, 50, 64), (40, 18, 16), (1, 9, 5)])
def test_outputs_and_gradients(hybrid, t, s, d, device):
    found, expected = both(device, *draw(2, 2, t, s, d), shares(hybrid, 2))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("hybrid", [False, True])
def test_with_the_usual_blocks(hybrid, device, monkeypatch):
    """And the kernels of long sequences."""
    monkeypatch.setattr(triton_launch, "BLOCKS", USUAL)
    monkeypatch.setattr(triton_launch, "FEW_SCORES", 0)
    found, expected = both(device, *draw(1, 1, 70, 90, 64), shares(hybrid, 1))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("side", slow_but_first(["holes", "left", "right"]))
def test_padding(hybrid, side, device):
    """Of both, of queries alone and of keys alone; one sentence is all padding."""
    q, k, v = draw(3, 2, 20, 20, 16)
    padding = padded([20, 9, 0], 20, side)
    padding[2] = True
    some = padding & ~padding.all(1, keepdim=True)
    for keys, queries in [(some, padding), (None, padding), (some, None)]:
        found, expected = both(device, q, k, v, shares(hybrid, 2), keys, queries)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("all_of", ["keys", "queries", "both"])
def test_a_sentence_of_padding_gives_zeros(all_of, device):
    padding = torch.ones(1, 20, dtype=torch.bool, device=device)
    keys, queries = (padding if all_of in (x, "both") else None for x in ("keys", "queries"))
    x = torch.randn(1, 2, 20, 16, device=device, requires_grad=True)
    u = torch.full((2,), 0.5, device=device, requires_grad=True)
    masked = keys if keys is None else keys[:, None, None]
    out = doubly_triton.attend(x, x, x, masked, queries, share_of(u))
    grads = torch.autograd.grad(out.sum(), (x, u))
    assert not any(y.any() for y in (out, *grads))


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("side", slow_but_first(["left", "right"]))
def test_dropout(hybrid, side, device, drawn_seeds):
    """Final weights are dropped; those that remain grow, and padding is in no sum."""

    def factors():
        return (1 / 0.7 * ~dropped(*drawn_seeds[-1], 37, 37, 0.3, groups=6)).unflatten(0, (3, 2))

    q, k, v = draw(3, 2, 37, 37, 16)
    padding = padded([37, 9, 20], 37, side)
    both_ways = both(
        device, q, k, v, shares(hybrid, 2), padding, padding, dropout=0.3, factors=factors
    )
    torch.testing.assert_close(*both_ways, atol=1e-5, rtol=1e-5)


def test_hashes_drop_weights_as_if_by_independent_draws():
    """The share is right, for each query and key too, and neighbours say nothing of each other."""
    torch.manual_seed(0)
    n, rate = 1500, 0.1
    drawn = torch.randint(2**31, (2,)).tolist()
    away = (dropped(*drawn, n, n, rate)[0].double() - rate) / (rate * (1 - rate)) ** 0.5
    assert abs(away.mean()) < 4 / n
    for axis in (0, 1):
        sums = away.sum(axis) / n**0.5
        assert abs(sums.square().mean() - 1) < 4 * (2 / n) ** 0.5 and sums.abs().max() < 5.5
    products = away[:, 1:] * away[:, :-1]
    assert abs(products.mean()) < 4 / n and abs((products[1:] * products[:-1]).mean()) < 4 / n


@pytest.mark.parametrize("name", ["doubly", "hybrid"])
def test_heads_with_dropout_stay_on_the_kernel(name, device, monkeypatch):
    monkeypatch.setattr(head_groups, "drop_weights", None)
    q, k, v = (x.to(device) for x in draw(1, 2, 20, 20, 16))
    group = HeadGroup(2, normaliser=build_normaliser(name, 2, **OPTIONS)).to(device)
    context = AttentionContext(Inputs(), 20, 20, 0, q.device)
    call = HeadCall(q, k, v, context, slice(0, 2), 0.5)
    out, again = (group.attend(call, observed=False)[0] for _ in range(2))
    assert out.isfinite().all() and not torch.equal(out, again)


def test_all_weights_can_be_dropped(device):
    x = torch.randn(1, 2, 20, 16, device=device, requires_grad=True)
    out = doubly_triton.attend(x, x, x, None, None, None, 1.0)
    assert not any(y.any() for y in (out, *torch.autograd.grad(out.sum(), x)))


@pytest.mark.parametrize("weight", ["sigmoid", "clamp", "raw"])
def test_the_share_of_a_hybrid(weight, device):
    """Its parameter is read, and its gradient written, as `Hybrid.u` has it, in 16 bits."""
    options = OPTIONS | {"hna_weight": weight}
    group = HeadGroup(2, normaliser=build_normaliser("hybrid", 2, **options))
    group.to(device, torch.bfloat16).normaliser.offset.data = torch.tensor([0.5, -0.7]).bfloat16()
    q, k, v = (x.to(device) for x in draw(1, 2, 20, 20, 16))
    context = AttentionContext(Inputs(), 20, 20, 0, q.device)
    call, found = HeadCall(q, k, v, context, slice(0, 2)), []
    for observed in (False, True):
        out, _ = group.attend(call, observed)
        (grad,) = torch.autograd.grad(out.square().sum(), group.parameters())
        assert grad.dtype == torch.bfloat16
        found.append((out, grad.float()))
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-2)


@pytest.mark.parametrize("side", ["left", "right"])
def test_blocks_of_padding_are_not_read(side, device):
    padding = padded([32], 64, side)
    x = torch.randn(1, 1, 64, 16).masked_fill(padding[:, None, :, None], torch.nan)
    x = x.to(device).requires_grad_()
    masks = padding[:, None, None].to(device), padding.to(device)
    out = doubly_triton.attend(x, x, x, *masks, share_of(torch.tensor([0.5], device=device)))
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert out.isfinite().all() and grad.isfinite().all()


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, BFLOAT16])
@pytest.mark.parametrize("shift", slow_but_first([256, 0]))
def test_16_bits(hybrid, dtype, shift, device):
    """Weights, slopes and results are rounded by eps / 2 at most, independently; nothing else is.

    Scores 256 nats above zero do no harm: only differences are exponentiated, made in float32.
    """
    q, k, v = draw(2, 2, 37, 45, 16, dtype)
    q[..., 0] = k[..., 0] = (shift * 4) ** 0.5  # q k / 4 is the shift
    found, expected = both(device, q, k, v, shares(hybrid, 2))
    for ours, twin in zip(found, expected, strict=True):
        if shift and ours.dim() == 4:  # in this column the sums cancel
            ours, twin = ours[..., 1:], twin[..., 1:]
        assert (ours - twin).norm() < torch.finfo(dtype).eps * twin.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, BFLOAT16])
@pytest.mark.parametrize("gap", slow_but_first([100, 20, 300]))
def test_a_query_that_lost_every_key(gap, dtype, device):
    """Its weights are softmax(0, 1, 2, 3), as exact as the scores; so are the slopes."""
    scores = torch.tensor([[0.0, 1, 2, 3], [gap] * 4], requires_grad=True)
    eye = torch.eye(4, dtype=dtype, device=device)[None, None]
    q = (2 * scores).to(device, dtype)[None, None]  # 2 = sqrt(D)
    w = doubly_triton.attend(q, eye, eye, None, None).float().cpu()
    expected = build_normaliser("doubly", 1).weights(scores[None, None], None, None, slice(None))
    tol = {"atol": 2 * torch.finfo(dtype).eps, "rtol": 2e-7 * gap}
    torch.testing.assert_close(w[0, 0, 0], torch.tensor([0, 1, 2, 3.0]).softmax(0), **tol)
    torch.testing.assert_close(w, expected, **tol)
    grads = [torch.autograd.grad(x[..., 0, 0].sum(), scores)[0] for x in (w, expected)]
    torch.testing.assert_close(*grads, **tol)


@pytest.mark.parametrize("view", ["time first", "some heads", "sliced"])
def test_strides(view, device):
    """Views of projections, and a gradient that was expanded: the same bits."""
    whole = {"time first": (9, 2, 3, 16), "some heads": (9, 2, 5, 16), "sliced": (9, 2, 3, 48)}
    x = torch.randn(whole[view]).permute(1, 2, 0, 3)[:, -3:, :, -16:].to(device)
    results = []
    for leaf in (x.requires_grad_(), x.detach().contiguous().requires_grad_()):
        u = torch.full((3,), 0.4, device=device, requires_grad=True)
        out = doubly_triton.attend(leaf, leaf, leaf, None, None, share_of(u))
        results.append((out, *torch.autograd.grad(out.sum(), (leaf, u))))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))
    assert out.permute(2, 0, 1, 3).is_contiguous()  # no copy before the output projection


def test_it_declines_what_it_cannot_do(device):
    x = torch.zeros(1, 1, 4, 16, device=device)
    per_query = torch.zeros(1, 1, 4, 4, dtype=torch.bool, device=device)
    assert doubly_triton.supports(x, x, Mask(per_query[..., :1, :]))
    assert not doubly_triton.supports(x, x, Mask(causal=True))
    assert not doubly_triton.supports(x, x, Mask(per_query))
    for other in (x.double(), x[:, :, :0], x.new_zeros(1, 1, 4, 264)):
        assert not doubly_triton.supports(other, other, Mask())


@here_only
@pytest.mark.parametrize("programs", slow_but_first([4, 5]))
@pytest.mark.parametrize(
    ("hybrid", "dropout"), slow_but_first([(True, 0.1), (False, 0.1), (True, 0.0)])
)
@pytest.mark.parametrize(
    ("capability", "dtype", "d"),
    slow_but_first([(90, torch.bfloat16, 64), (80, torch.float32, 64), (80, torch.float16, 128)]),
)
def test_they_compile_without_a_gpu(
    programs, hybrid, dropout, capability, dtype, d, compile_for, monkeypatch
):
    """And leave enough shared memory on the smallest GPUs; long sequences have a program more."""
    compiled = compile_for(capability)
    monkeypatch.setattr(triton_launch, "FEW_SCORES", 0 if programs > 4 else 64)
    q, k, v = draw(2, 2, 8, 8, d, dtype)
    padding = padded([8, 3], 8, "right")
    share = doubly_triton.Share(shares(True, 2), 0.5, "sigmoid") if hybrid else None
    masked = padding[:, None, None]
    out = doubly_triton.attend(q.requires_grad_(), k, v, masked, padding, share, dropout)
    out.sum().backward()
    assert len(compiled) == programs
    assert max(kernel.metadata.shared for kernel in compiled) <= MEMORY
