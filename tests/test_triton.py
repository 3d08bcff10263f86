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

from fairseq_ext.attention import build_normaliser
from fairseq_ext.attention.kernels import doubly_triton
from fairseq_ext.attention.masks import Mask

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
GPU = torch.cuda.is_available()
BFLOAT16 = pytest.param(
    torch.bfloat16,
    marks=pytest.mark.skipif(
        INTERPRETED and not GPU, reason="Triton's interpreter multiplies bfloat16 wrongly"
    ),
)
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


def naive(q, k, v, keys, queries, u):
    """The twin, in float64; zero for padded queries."""
    out = torch.zeros_like(q)
    for b, h in ((b, h) for b in range(q.size(0)) for h in range(q.size(1))):
        if not queries[b].all():
            scores = q[b, h] @ k[b, h].T / q.size(-1) ** 0.5
            kind, share = ("doubly", 1) if u is None else ("hybrid", u[h])
            w = normalise(kind, scores, keys[b].expand_as(scores), queries[b], u=share)
            out[b, h] = (w @ v[b, h]).masked_fill(queries[b, :, None], 0)
    return out


def both(device, q, k, v, u=None, keys=None, queries=None):
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
        return doubly_triton.attend(q, k, v, masked, masks[1], u)

    ours = run(kernels, [x.to(device).requires_grad_() for x in leaves], probe.to(device))
    twins = run(
        lambda q, k, v, u=None: naive(q, k, v, *known, u),
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
@pytest.mark.parametrize("hybrid", slow_but_first([True, False]))
@pytest.mark.parametrize(
    ("capability", "dtype", "d"),
    slow_but_first([(90, torch.bfloat16, 64), (80, torch.float32, 64), (80, torch.float16, 128)]),
)
def test_they_compile_without_a_gpu(hybrid, capability, dtype, d, monkeypatch, tmp_path):
    """And leave enough shared memory on the smallest GPUs, which have 99 KiB for a program."""
    driver = pytest.importorskip("triton", reason="Triton is not installed").runtime.driver
    from triton.backends.compiler import GPUTarget

    from fairseq_ext.attention.kernels import doubly_triton_jit

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
    out = doubly_triton.attend(q.requires_grad_(), k, v, padding[:, None, None], padding, u)
    out.sum().backward()
    assert len(used) == 4 and max(used) <= 99 * 1024
