"""Guided attention without maps against recorded maps: outputs, all gradients, and memory."""

import pytest
import torch
from guided_cases import (
    PAD,
    SITES,
    SIZE,
    layer,
    recorder_of,
    results,
    view_of,
    written_out,
)
from torch.autograd.graph import saved_tensors_hooks

from fairseq_ext.attention import Attention, AttentionRecorder, HeadGroup, Inputs, build_normaliser
from fairseq_ext.attention.masks import Mask, mask_to_bias
from fairseq_ext.mechanisms.guidance.loss import EDGES, sentence_losses
from fairseq_ext.mechanisms.guidance.patterns import View
from fairseq_ext.mechanisms.kernels import guided as kernel


@pytest.fixture(params=[1 << 20, 600], ids=["one block", "blocks"])
def on_small_inputs(request, monkeypatch):
    """The kernel, which takes everything at once, or two rows of a sentence at a time."""
    monkeypatch.setattr(kernel, "MIN_SCORES", 0)
    monkeypatch.setattr(kernel, "MIN_ROWS", 2)
    monkeypatch.setitem(kernel.BLOCK_BYTES, "cpu", request.param // torch.get_num_threads())


def compare(module, recorder, site, view, edges, monkeypatch, **options):
    """Compare the kernel with maps, given the same random numbers."""
    ours = results(module, recorder, site, view, edges, True, **options)
    monkeypatch.setattr(kernel, "MIN_SCORES", 1 << 40)
    theirs = results(module, recorder, site, view, edges, False, **options)
    torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)
    assert all(x.abs().max() > 0 for x in ours[:3])


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("edges", EDGES)
def test_it_equals_maps(site, side, edges, on_small_inputs, monkeypatch):
    """At two patterns a layer, with padding on either side, and under the mask of a decoder."""
    view = view_of(site, side)
    recorder = recorder_of(view, SITES[site], edges, site=site)
    compare(layer(site), recorder, site, view, edges, monkeypatch)


def test_a_decoder_without_padding(on_small_inputs, monkeypatch):
    tokens = torch.arange(5, 5 + SIZE).expand(3, -1)
    view = View(tokens, tokens.ne(PAD), tokens.ne(PAD), causal=True)
    recorder = recorder_of(view, SITES["decoder"], site="decoder")
    compare(layer("decoder"), recorder, "decoder", view, "uniform", monkeypatch, reduction="sum")


@pytest.mark.parametrize("text", ["next:1,prev:2", "next:1,prev:3"])
def test_heads_that_share_keys(text, on_small_inputs, monkeypatch):
    """Some of them guided, and all of them."""
    view = view_of("encoder", "left")
    recorder = recorder_of(view, text, first=4 - int(text[-1]) - 1)
    compare(layer(kv_heads=2), recorder, "encoder", view, "uniform", monkeypatch)


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("edges", EDGES)
def test_dropout_of_one_block_is_that_of_maps(dropped, edges, monkeypatch):
    """All heads of the layer are guided, so that random numbers come in the same order."""
    monkeypatch.setattr(kernel, "MIN_SCORES", 0)
    view = view_of("encoder", "left")
    recorder = recorder_of(view, "next:1,prev:2", edges, dropped)
    groups = [HeadGroup(n, normaliser=build_normaliser("softmax", n)) for n in (1, 3)]
    compare(layer(dropout=0.3, groups=groups), recorder, "encoder", view, edges, monkeypatch)


@pytest.mark.parametrize("dropped", [False, True])
def test_dropout_in_blocks(dropped, on_small_inputs, monkeypatch):
    """The gradient is that of the weights that were dropped; later random numbers are not."""
    factors, draw = [], kernel.draw_factors
    monkeypatch.setattr(kernel, "draw_factors", lambda *x: factors.append(draw(*x)) or factors[-1])
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, 4, dtype=torch.float64) for n in (9, 6, 6))
    index = torch.randint(-1, 6, (2, 3, 9))
    share = torch.full((2, 1, 9), 0.3, dtype=torch.float64)
    targets = kernel.Targets(index.clamp(min=0)[..., None], index >= 0, share)
    masked = torch.zeros(2, 1, 1, 6, dtype=torch.bool)
    masked[1, ..., 4:] = True
    leaves = [x.requires_grad_() for x in (q, k, v)]
    ours = kernel.attend(*leaves, Mask(masked), targets, 0.4, dropped)
    kept = torch.empty(2, 3, 9, 6, dtype=torch.float64)
    for at, part in zip(kernel._blocks(q, k), [*factors], strict=True):
        kept[at] = part
    weights = (q @ k.mT / 2 + mask_to_bias(masked, q.dtype)).softmax(-1)
    maps = weights * kept if dropped else weights
    theirs = (weights * kept) @ v, kernel.measure(maps.clone(), targets)
    probes = [torch.randn_like(x) for x in theirs]
    state = torch.get_rng_state()
    found = torch.autograd.grad(ours, leaves, probes)
    assert torch.equal(state, torch.get_rng_state())
    torch.testing.assert_close([*ours], [*theirs], atol=1e-12, rtol=1e-12)
    written = (weights * kept) @ v, written_out(maps, targets)
    torch.testing.assert_close(found, torch.autograd.grad(written, leaves, probes))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits(dtype, on_small_inputs, monkeypatch):
    """Distances are in float32, and close to those of maps."""
    view = view_of("encoder", "right")
    recorder, module = recorder_of(view, "next:1,prev:2"), layer().to(dtype)
    x = torch.randn(SIZE, 3, 24, dtype=dtype)
    found = []
    for least in (0, 1 << 40):
        monkeypatch.setattr(kernel, "MIN_SCORES", least)
        recorder.begin({})
        out, _ = module(x, x, x, Inputs(~view.keys, recorder=recorder), need_weights=False)
        guided = recorder._guided["encoder"]
        found.append((out, sentence_losses(recorder.maps, "encoder", guided, view, "sum")))
    assert found[0][1].dtype == torch.float32
    torch.testing.assert_close(*found, atol=2e-2, rtol=2e-2)


def test_autocast(on_small_inputs, monkeypatch):
    view = view_of("encoder", "right")
    recorder, module = recorder_of(view, "next:1,prev:2"), layer().float()
    x = torch.randn(SIZE, 3, 24)
    found = []
    for least in (0, 1 << 40):
        monkeypatch.setattr(kernel, "MIN_SCORES", least)
        recorder.begin({})
        with torch.autocast("cpu", torch.bfloat16):
            out, _ = module(x, x, x, Inputs(~view.keys, recorder=recorder), need_weights=False)
        grads = torch.autograd.grad(out.float().square().sum(), module.parameters())
        found.append((out, *grads))
    torch.testing.assert_close(*found, atol=5e-2, rtol=5e-2)


def groups_of(name, **options):
    return [HeadGroup(4, normaliser=build_normaliser(name, 4, **options))]


@pytest.mark.parametrize(
    ("text", "options", "keywords"),
    [
        ("next:1,period:2", {}, {}),  # several targets a row
        ("next:1,prev:2", {"groups": groups_of("sink", sink_init=0.0)}, {}),
        ("next:1,prev:2", {}, {"need_weights": True}),
    ],
)
def test_maps_are_kept_where_it_cannot_be_used(text, options, keywords, monkeypatch):
    """Patterns of several targets, other normalisers, and maps that somebody else asks for."""
    monkeypatch.setattr(kernel, "MIN_SCORES", 0)
    view, module = view_of("encoder", "right"), layer(**options)
    recorder = recorder_of(view, text)
    recorder.begin({})
    x = torch.randn(SIZE, 3, 24, dtype=torch.float64)
    inputs = Inputs(~view.keys, recorder=recorder)
    _, weights = module(x, x, x, inputs, **{"need_weights": False} | keywords)
    assert recorder.maps["encoder", 0].shape == (3, 3, SIZE, SIZE)
    assert (weights is not None) == bool(keywords)


def test_others_record_maps(monkeypatch):
    monkeypatch.setattr(kernel, "MIN_SCORES", 0)
    recorder, x = AttentionRecorder(lambda *_: [0, 2]), torch.randn(5, 2, 24).double()
    layer()(x, x, x, Inputs(recorder=recorder), need_weights=False)
    assert recorder.maps["encoder", 0].shape == (2, 2, 5, 5)


def test_layers_with_and_without_maps(monkeypatch):
    """The loss is the sum over both."""
    view, totals = view_of("encoder", "left"), []
    x = torch.randn(SIZE, 3, 24, dtype=torch.float64)
    for least in ((0, 1 << 40), (1 << 40, 1 << 40)):
        recorder = recorder_of(view, "next:1,prev:2", layers=2)
        recorder.begin({})
        for number in range(2):
            monkeypatch.setattr(kernel, "MIN_SCORES", least[number])
            inputs = Inputs(~view.keys, recorder=recorder)
            layer(number=number)(x, x, x, inputs, need_weights=False)
        guided = recorder._guided["encoder"]
        totals.append(sentence_losses(recorder.maps, "encoder", guided, view, "mean"))
    torch.testing.assert_close(*totals, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("site", ["encoder", "decoder"])
def test_no_map_is_saved(site):
    """The backward pass at 2,048 tokens needs about as much as that of fused attention alone."""
    torch.manual_seed(0)
    length, x = 2048, torch.randn(2048, 1, 128)
    tokens = torch.full((1, length), 5)
    view = View(tokens, tokens.ne(PAD), tokens.ne(PAD), causal=site == "decoder")
    recorder = recorder_of(view, SITES[site], site=site)
    recorder.begin({})
    module = Attention(128, 4, site=site)

    def count_saved(recorder):
        kept = {}

        def pack(x):
            kept[x.untyped_storage()._cdata] = x.untyped_storage()
            return x

        with saved_tensors_hooks(pack, lambda x: x):
            inputs = Inputs(causal=site == "decoder", recorder=recorder)
            out, _ = module(x, x, x, inputs, need_weights=False)
        assert out.requires_grad
        return sum(storage.nbytes() for storage in kept.values())

    assert count_saved(recorder) <= 1.1 * count_saved(None)
    assert recorder.maps[site, 0].shape == (1, 3, length)
