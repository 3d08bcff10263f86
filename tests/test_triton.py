"""The GPU kernels against the naive twin: on a GPU, or as far as a CPU can show.

Without a GPU Triton's kernels run in its interpreter. It has to be switched on before anything
imports Triton, so it gets a process of its own, in which this file runs again.
"""

import os
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from cases import slow_but_first
from naive import normalise

from fairseq_ext.attention import (
    AttentionContext,
    HeadGroup,
    Inputs,
    build_normaliser,
    head_groups,
)
from fairseq_ext.attention.context import HeadCall
from fairseq_ext.attention.masks import Mask
from fairseq_ext.mechanisms import entmax
from fairseq_ext.mechanisms.kernels import doubly_triton, entmax_triton

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
GPU = torch.cuda.is_available()
BFLOAT16 = pytest.param(
    torch.bfloat16,
    marks=pytest.mark.skipif(
        INTERPRETED and not GPU, reason="Triton's interpreter multiplies bfloat16 wrongly"
    ),
)
OPTIONS = {"hna_init": 0.3, "hna_weight": "sigmoid", "doubly_kernel": "triton"}
DEFAULT_MASKS, SMALL = doubly_triton.BLOCKS, {512: (16, 16, 4)}
# numpy's, of the branch that is not taken
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")


@pytest.mark.skipif(GPU or INTERPRETED, reason="the tests below run in this process")
@pytest.mark.parametrize("chosen", slow_but_first(["test_outputs_and", "not test_outputs_and"]))
def test_in_the_interpreter(chosen):
    pytest.importorskip("triton", reason="Triton is not installed")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        chosen,
        __file__,
    ]
    env = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def device(monkeypatch):
    """Where Triton's kernels run, with small blocks."""
    if not (GPU or INTERPRETED):
        pytest.skip("no GPU; test_in_the_interpreter runs these")
    monkeypatch.setattr(doubly_triton, "BLOCKS", SMALL)
    return "cuda" if GPU else "cpu"


def shares(hybrid, heads):
    return torch.linspace(0.3, 0.8, heads) if hybrid else None


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
        return doubly_triton.attend(q, k, v, masked, masks[1], u, dropout)

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


ALPHAS = [1.5, 2.0, 1.05, torch.tensor([1.2, 1.9])[:, None, None]]


@pytest.mark.parametrize("alpha", ALPHAS, ids=["1.5", "2", "1.05", "learned"])
@pytest.mark.parametrize("keys", [1, 37])
def test_outputs_and_gradients_of_entmax(alpha, keys, device):
    """And of rows whose thresholds are known. Some keys are masked."""
    torch.manual_seed(keys)
    scores, probe = (3 * torch.randn(2, 2, 5, keys) for _ in range(2))
    scores[0, ..., keys // 2 + 1 :] = torch.finfo(torch.float32).min / 8
    results = []
    for weigh in (entmax._Entmax.apply, entmax_triton.weigh):
        leaves = [scores.to(device).requires_grad_()]
        if isinstance(alpha, torch.Tensor):
            leaves.append(alpha.to(device).requires_grad_())
        assert entmax_triton.supports(leaves[0], leaves[-1] if len(leaves) > 1 else alpha)
        chosen = leaves[1] if len(leaves) > 1 else alpha
        weights, tau = weigh(leaves[0], chosen, None)
        assert torch.equal(weigh(leaves[0], chosen, tau)[0], weights)
        slopes = torch.autograd.grad((weights * probe.to(device)).sum(), leaves)
        results.append([x.detach().cpu() for x in (weights, tau, *slopes)])
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_outputs_and_gradients_of_entmax_in_16_bits(dtype, device):
    """Weights and slopes are rounded once."""
    torch.manual_seed(0)
    scores, probe = ((3 * torch.randn(2, 2, 5, 37)).to(device, dtype) for _ in range(2))
    results = []
    for narrow in (True, False):
        x = (scores if narrow else scores.float()).requires_grad_()
        weights, _ = entmax_triton.weigh(x, 1.5, None)
        (slope,) = torch.autograd.grad(weights, x, probe.to(x.dtype))
        assert weights.dtype == slope.dtype == x.dtype
        results.append([weights.float(), slope.float()])
    for found, exact in zip(*results, strict=True):
        assert (found - exact).norm() < torch.finfo(dtype).eps / 2 * exact.norm()


def test_wide_rows_have_no_kernel_and_the_log_says_so(device, caplog):
    entmax_triton._warn_of_width.cache_clear()
    wide = torch.zeros(1, 1, 1, entmax_triton.MOST + 1, device=device)
    assert not any(entmax_triton.supports(wide, 1.5) for _ in range(2))
    assert caplog.text.count("its kernel takes rows of 16,384 keys at most") == 1
    alphas = torch.tensor([1.5, 1.5])
    assert not entmax_triton.supports(wide[..., :4], alphas)
    assert not entmax_triton.supports(wide[..., :4].double(), 1.5)


@pytest.mark.parametrize("hybrid", [False, True])
def test_with_the_usual_blocks(hybrid, device, monkeypatch):
    monkeypatch.setattr(doubly_triton, "BLOCKS", DEFAULT_MASKS)
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
    out = doubly_triton.attend(x, x, x, keys if keys is None else keys[:, None, None], queries, u)
    grads = torch.autograd.grad(out.sum(), (x, u))
    assert not any(y.any() for y in (out, *grads))


def murmur(x):
    """Return the finaliser of MurmurHash3 of 32-bit numbers in int64."""
    x = (x ^ (x >> 16)) * 0x85EBCA6B % 2**32
    x = (x ^ (x >> 13)) * 0xC2B2AE35 % 2**32
    return x ^ (x >> 16)


def dropped(queries, keys, rate):
    """Return which weights are dropped, [.., T, S], by random numbers of queries and keys."""
    return murmur(queries.long()[..., None] ^ keys.long()[..., None, :]) // 2 < rate * 2**31


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("side", slow_but_first(["left", "right"]))
def test_dropout(hybrid, side, device, monkeypatch):
    """Final weights are dropped; those that remain grow, and padding is in no sum."""
    seeds, draw_seeds = [], doubly_triton._draw_seeds

    def draw_and_keep(*inputs):
        seeds.extend(draw_seeds(*inputs))
        return seeds[-2:]

    def factors():
        of_queries, of_keys = (x.cpu().view(3, 2, -1) for x in seeds)
        return 1 / 0.7 * ~dropped(of_queries, of_keys, 0.3)

    monkeypatch.setattr(doubly_triton, "_draw_seeds", draw_and_keep)
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
    seeds = (torch.empty(n, dtype=torch.int32).random_() for _ in range(2))
    away = (dropped(*seeds, rate).double() - rate) / (rate * (1 - rate)) ** 0.5
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


@pytest.mark.parametrize("side", ["left", "right"])
def test_blocks_of_padding_are_not_read(side, device):
    padding = padded([32], 64, side)
    x = torch.randn(1, 1, 64, 16).masked_fill(padding[:, None, :, None], torch.nan)
    x = x.to(device).requires_grad_()
    masks = padding[:, None, None].to(device), padding.to(device)
    out = doubly_triton.attend(x, x, x, *masks, torch.tensor([0.5], device=device))
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
        out = doubly_triton.attend(leaf, leaf, leaf, None, None, u)
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


def test_it_declines_without_triton_or_gpu(monkeypatch):
    x = torch.zeros(1, 1, 4, 16)
    doubly_triton._runs_on.cache_clear()
    with monkeypatch.context() as patch:
        patch.delenv("TRITON_INTERPRET", raising=False)
        assert not doubly_triton.supports(x, x, Mask())
    doubly_triton._runs_on.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(doubly_triton, "find_spec", lambda name: None)
        assert not doubly_triton.supports(x, x, Mask())
    doubly_triton._runs_on.cache_clear()


@pytest.mark.parametrize("problem", ["", "Triton is not installed"])
def test_entmax_says_why_it_has_no_kernel(problem, monkeypatch, caplog):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(entmax_triton, "find_problem", lambda device: problem)
    entmax_triton._runs_on.cache_clear()
    found = [entmax_triton._runs_on(torch.device("cuda")) for _ in range(2)]
    entmax_triton._runs_on.cache_clear()
    assert found == [not problem] * 2 and caplog.text.count("in place of 12") == bool(problem)


class Driver:
    """Triton's driver, which compiles C when it is asked for its target."""

    def __init__(self, error=None):
        self.active, self.error = self, error

    def get_current_target(self):
        if self.error:
            raise self.error


@pytest.mark.parametrize(
    ("capability", "version", "trusted", "error", "said"),
    [
        ((9, 0), "3.5.1", False, None, "install torch with Triton 3.6"),
        ((9, 0), "3.5.1", True, None, ""),
        ((9, 0), "3.6.0", False, None, ""),
        ((8, 0), "3.4.0", False, None, ""),
        ((7, 5), "3.7.1", False, None, "compute capability 7.5 is below 8.0"),
        ((8, 0), "3.7.1", False, RuntimeError("no cc"), "needs a C compiler and Python's headers"),
    ],
)
def test_it_says_why_it_does_not_run(
    capability, version, trusted, error, said, monkeypatch, caplog
):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(doubly_triton, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    runtime = ModuleType("triton.runtime")
    runtime.driver = Driver(error)
    triton = ModuleType("triton")
    triton.__version__ = version
    monkeypatch.setitem(sys.modules, "triton", triton)
    monkeypatch.setitem(sys.modules, "triton.runtime", runtime)
    monkeypatch.delenv("FAIRSEQ_EXT_TRUST_TRITON", raising=False)  # which benchmarks/gpu.sh sets
    if trusted:
        monkeypatch.setenv("FAIRSEQ_EXT_TRUST_TRITON", "1")
    doubly_triton._runs_on.cache_clear()
    assert doubly_triton._runs_on(torch.device("cuda")) == (not said)
    doubly_triton._runs_on.cache_clear()
    assert said in caplog.text and bool(said) == bool(caplog.text)


def test_products_of_float32_are_rounded_only_if_the_user_says_so():
    x = torch.zeros(4, 1, 16)
    assert doubly_triton._options(x, x, 1)["PRECISION"] == "ieee"
    torch.set_float32_matmul_precision("high")
    try:
        assert doubly_triton._options(x, x, 1)["PRECISION"] == "tf32"
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.skipif(GPU or INTERPRETED, reason="the tests above compile, or cannot")
@pytest.mark.parametrize(
    ("hybrid", "dropout"), slow_but_first([(True, 0.1), (False, 0.1), (True, 0.0)])
)
@pytest.mark.parametrize(
    ("capability", "dtype", "d"),
    slow_but_first([(90, torch.bfloat16, 64), (80, torch.float32, 64), (80, torch.float16, 128)]),
)
def test_they_compile_without_a_gpu(hybrid, dropout, capability, dtype, d, monkeypatch, tmp_path):
    """And leave enough shared memory on the smallest GPUs, which have 99 KiB for a program."""
    driver = pytest.importorskip("triton", reason="Triton is not installed").runtime.driver
    from triton.backends.compiler import GPUTarget

    from fairseq_ext.mechanisms.kernels import doubly_triton_jit

    target, used = GPUTarget("cuda", capability, 32), []

    def compile_it(kernel, rows, *tensors, **options):
        done = getattr(doubly_triton_jit, kernel).warmup(*tensors, grid=(1,), **options)
        used.append(done.metadata.shared)

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(doubly_triton, "_run", compile_it)
    q, k, v = draw(2, 2, 8, 8, d, dtype)
    padding = padded([8, 3], 8, "right")
    u = shares(hybrid, 2)
    driver.set_active(  # for good: without a GPU there is none to go back to
        SimpleNamespace(
            get_current_target=lambda: target,
            get_current_device=lambda: 0,
            get_current_stream=lambda device=None: 0,
        )
    )
    masked = padding[:, None, None]
    out = doubly_triton.attend(q.requires_grad_(), k, v, masked, padding, u, dropout)
    out.sum().backward()
    assert len(used) == 5 and max(used) <= 99 * 1024


@pytest.mark.skipif(GPU or INTERPRETED, reason="the tests above compile, or cannot")
@pytest.mark.parametrize("learned", slow_but_first([False, True]))
@pytest.mark.parametrize(
    ("capability", "dtype", "keys"),
    slow_but_first([(90, torch.bfloat16, 512), (80, torch.float32, 2**14)]),
)
def test_entmax_compiles_without_a_gpu(learned, capability, dtype, keys, monkeypatch, tmp_path):
    """And needs little shared memory: a row is in registers."""
    driver = pytest.importorskip("triton", reason="Triton is not installed").runtime.driver
    from triton.backends.compiler import GPUTarget

    from fairseq_ext.mechanisms.kernels import entmax_triton_jit

    target, compiled = GPUTarget("cuda", capability, 32), []

    def compile_it(kernel, *tensors, **options):
        compiled.append(getattr(entmax_triton_jit, kernel).warmup(*tensors, grid=(1,), **options))

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(entmax_triton, "_run", compile_it)
    driver.set_active(  # for good: without a GPU there is none to go back to
        SimpleNamespace(
            get_current_target=lambda: target,
            get_current_device=lambda: 0,
            get_current_stream=lambda device=None: 0,
        )
    )
    scores = torch.randn(1, 2, 1, keys, dtype=dtype, requires_grad=True)
    alpha = torch.tensor([1.2, 1.8])[:, None, None] if learned else 1.5
    weights, _ = entmax_triton.weigh(scores, alpha, None)
    weights.sum().backward()
    assert len(compiled) == 2 and all(x.metadata.shared <= 2**12 for x in compiled)
