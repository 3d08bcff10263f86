"""Guided attention's GPU kernels against the naive twin and maps: see test_triton.py."""

from functools import partial

import pytest
import torch
from cases import slow_but_first
from guided_cases import SITES, layer, recorder_of, results, view_of, written_out
from triton_cases import BFLOAT16, GPU, MEMORY, USUAL, dropped, here_only, run_interpreted

from fairseq_ext.attention.masks import Mask
from fairseq_ext.mechanisms.kernels import guided, guided_triton, triton_launch

HEADS, GUIDED, WIDTH = 3, slice(1, 3), 16
# numpy's, of rows that are in no sentence
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")


@here_only
@pytest.mark.parametrize("chosen", slow_but_first(["test_outputs_and and queries", "not queries"]))
def test_in_the_interpreter(chosen):
    run_interpreted(__file__, chosen)


def draw(length, dtype=torch.float32, edges=True):
    """Draw q, k, v as projections leave them, [T, B, H D], and targets of the guided heads."""
    torch.manual_seed(length)
    inputs = [torch.randn(length, 2, HEADS * WIDTH).to(dtype).requires_grad_() for _ in "qkv"]
    at = torch.arange(length)
    index = torch.randint(-1, length, (2, HEADS, length)).minimum(at)
    share = torch.rand(2, 1, length) if edges else None
    targets = index.clamp(min=0)[..., None][:, GUIDED], (index >= 0)[:, GUIDED], share
    return inputs, guided.Targets(*targets)


def mask_of(kind, length):
    """Return a mask, and what is masked."""
    at = torch.arange(length)
    if kind == "causal":
        return Mask(causal=True), at > at[:, None]
    masked = torch.zeros(2, 1, 1, length, dtype=torch.bool)
    masked[0, ..., :3] = masked[1, ..., length - 5 :] = True
    if kind == "queries":
        masked = masked | (torch.rand(2, 1, length, length) < 0.3)
        masked[..., 3] = False
    return Mask(masked), masked


def heads_of(x, some=slice(None)):
    return x.unflatten(-1, (HEADS, WIDTH)).permute(1, 2, 0, 3)[:, some]


def naive(q, k, v, masked, targets, factors, after):
    """Return the twin's output and d of the guided heads, in float64."""
    scores = (heads_of(q) @ heads_of(k).mT / WIDTH**0.5).masked_fill(masked, -torch.inf)
    weights = scores.softmax(-1)
    maps = weights * factors if after else weights
    return (weights * factors) @ heads_of(v), written_out(maps[:, GUIDED], targets)


def both(device, inputs, targets, kind, all_heads, rate=0.0, after=False, seeds=None):
    """Output, d and gradients, of the kernels and of the twin."""
    length = len(inputs[0])
    mask, masked = mask_of(kind, length)
    some, first = (slice(None), GUIDED.start) if all_heads else (GUIDED, 0)
    q, k, v = (x.detach().to(device).requires_grad_() for x in inputs)
    there = guided.Targets(*(x if x is None else x.to(device) for x in targets))
    mask = mask._replace(masked=None if mask.masked is None else mask.masked.to(device))
    heads = (heads_of(x, some) for x in (q, k, v))
    ours = guided_triton.attend(*heads, mask, first, *there, rate, after)
    probes = [torch.randn(x.shape) for x in ours]
    found = torch.autograd.grad(
        ours, (q, k, v), [p.to(x) for p, x in zip(probes, ours, strict=True)]
    )
    factors = 1.0
    if rate:
        shape = 2, ours[0].size(1), length, length
        factors = ~dropped(*seeds[-1], length, length, rate, shape[0] * shape[1]).view(shape)
        factors = factors / (1 - rate)
        if not all_heads:
            factors = torch.ones(2, HEADS, length, length).index_copy(
                1, torch.arange(HEADS)[GUIDED], factors.float()
            )
    leaves = [x.detach().double().requires_grad_() for x in inputs]
    out, distances = naive(*leaves, masked, targets, factors, after)
    theirs = out[:, some], distances
    expected = torch.autograd.grad(theirs, leaves, [p.double() for p in probes])
    return [x.detach().cpu().double() for x in (*ours, *found)], [
        x.detach() for x in (*theirs, *expected)
    ]


close = partial(torch.testing.assert_close, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "all_heads"), [("causal", True), ("keys", False), ("queries", True)]
)
def test_outputs_and_gradients(kind, all_heads, device):
    close(*both(device, *draw(21, edges=all_heads), kind, all_heads))


def test_with_the_usual_blocks(device, monkeypatch):
    monkeypatch.setattr(triton_launch, "BLOCKS", USUAL)
    close(*both(device, *draw(70), "causal", True))


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("edges", [False, True])
@pytest.mark.parametrize("all_heads", [False, True])
def test_dropout(after, edges, all_heads, device, drawn_seeds):
    """The same weights are dropped forward and backward; d is that of maps before it, or after."""
    close(*both(device, *draw(21, edges=edges), "keys", all_heads, 0.3, after, drawn_seeds))


@pytest.mark.parametrize("dtype", [torch.float16, BFLOAT16])
def test_16_bits(dtype, device):
    """Weights, slopes and results are rounded, and d is not."""
    found, expected = both(device, *draw(37, dtype), "keys", True)
    for ours, twin in zip(found, expected, strict=True):
        assert (ours - twin).norm() < torch.finfo(dtype).eps * twin.norm()
    assert (found[1] - expected[1]).norm() < 1e-5 * expected[1].norm()


@pytest.mark.parametrize("edges", ["uniform", "zero"])
@pytest.mark.parametrize("all_heads", [0, 1 << 20])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("site", SITES)
@pytest.mark.skipif(GPU, reason="layers of the test are on a CPU")
def test_layers(site, side, all_heads, edges, device, monkeypatch):
    """A layer with two patterns and its loss are those of recorded maps, as are all gradients."""
    monkeypatch.setattr(triton_launch, "FEW_SCORES", all_heads)
    view = view_of(site, side)
    recorder = recorder_of(view, SITES[site], edges, site=site)
    module = layer(site).float()
    ours = results(module, recorder, site, view, edges, True)
    monkeypatch.setattr(triton_launch, "runs", lambda *_: False)
    monkeypatch.setattr(guided, "MIN_SCORES", 1 << 40)
    close(ours, results(module, recorder, site, view, edges, False))


@pytest.mark.parametrize("edges", [True, False])
def test_memory_is_read_as_it_is(edges, device):
    """Heads in other memory, and gradients that were expanded: the same bits."""
    inputs, targets = draw(9, edges=edges)
    found = []
    for copy in (False, True):
        heads = [heads_of(x.detach().to(device), GUIDED) for x in inputs]
        heads = [(x.contiguous() if copy else x).requires_grad_() for x in heads]
        there = (x if x is None else x.to(device) for x in targets)
        out, distances = guided_triton.attend(*heads, Mask(), 0, *there, 0.0, False)
        found.append([out, distances, *torch.autograd.grad(out.sum() + distances.sum(), heads)])
        assert out.permute(2, 0, 1, 3).is_contiguous()
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


@here_only
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "rate", "after"),
    [("keys", 0.1, True), ("queries", 0.0, False), ("causal", 0.1, False)],
)
@pytest.mark.parametrize(
    ("capability", "dtype", "d"),
    [(90, torch.bfloat16, 64), (80, torch.float32, 64), (80, torch.float16, 128)],
)
def test_they_compile_without_a_gpu(kind, rate, after, capability, dtype, d, compile_for):
    """And leave enough shared memory on the smallest GPUs."""
    compiled = compile_for(capability)
    q, k, v = (torch.randn(2, 4, 8, d, dtype=dtype) for _ in "qkv")
    exist, share = torch.ones(2, 2, 8, dtype=torch.bool), torch.ones(2, 1, 8)
    targets = torch.zeros(2, 2, 8, 1, dtype=torch.long), exist, share
    mask, _ = mask_of(kind, 8)
    out, distances = guided_triton.attend(q.requires_grad_(), k, v, mask, 1, *targets, rate, after)
    (out.sum() + distances.sum()).backward()
    assert len(compiled) == 3
    assert max(kernel.metadata.shared for kernel in compiled) <= MEMORY
