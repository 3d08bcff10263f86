"""Differential attention: the naive twin, worked numbers, seeds, the fused form."""

import math

import pytest
import torch
from mechanism_cases import Case, load
from mixed_layer import D, H, T, attention
from naive import softmax_rows
from torch import Tensor, nn

from fairseq_ext.attention import Attention, HeadGroup, Inputs
from fairseq_ext.attention import normalisers as softmax
from fairseq_ext.attention.normalisers import build_normaliser
from fairseq_ext.mechanisms.differential import Differential
from fairseq_ext.mechanisms.gaussian import build_gaussian_heads


def differential(q: Tensor, k: Tensor, v: Tensor, masked: Tensor, mixer) -> tuple[Tensor, Tensor]:
    """Output [H, T, D] and weights [H, T, S] of one sentence (Ye et al. 2025), in layer 2."""
    half = q.size(-1) // 2
    first = 0.8 - 0.6 * math.exp(-0.3 * (2 - 1))
    (q1, k1), (q2, k2) = mixer.vectors
    subtracted = (q1 @ k1).exp() - (q2 @ k2).exp() + first
    outputs, weights = [], []
    for h in range(len(q)):
        one, other = (
            softmax_rows(q[h, :, part] @ k[h, :, part].T / half**0.5, masked)
            for part in (slice(0, half), slice(half, None))
        )
        weights.append(one - subtracted * other)
        mixed = weights[-1] @ v[h]
        normed = [x / ((x * x).mean() + 1e-5).sqrt() * (1 + mixer.gain_offset) for x in mixed]
        outputs.append((1 - first) * torch.stack(normed))
    return torch.stack(outputs), torch.stack(weights)


CASES = [
    Case(
        "differential",
        "head_mixer",
        twin=differential,
        flags="--encoder-head-mixer differential",
        neutral={"encoder_head_mixer": "none"},
        own="mixer.vectors",
        apart=("scorer",),  # which compares no halves of queries and keys
    )
]


def test_worked_differential_attention():
    """In layer 1 lambda begins near 0.2; a row of 3 and 4 has the root mean square 12.5 ** 0.5."""
    mixer = Differential(1, 2, 0).double()
    nn.init.zeros_(mixer.vectors)
    assert mixer.subtracted().item() == pytest.approx(0.2)
    assert Differential(1, 2, 11).first == pytest.approx(0.8 - 0.6 * math.exp(-3.3))
    mixer.vectors.data = torch.tensor([[[2.0], [0.5]], [[0], [1]]]).double()
    assert mixer.subtracted().item() == pytest.approx(math.e - 1 + 0.2)
    assert mixer.statistics()["lambda"]() == 1.9183
    maps = [torch.tensor([0.75, 0.25]).double(), torch.tensor([0.5, 0.5]).double()]
    nn.init.zeros_(mixer.vectors)
    torch.testing.assert_close(mixer.join(maps), torch.tensor([0.65, 0.15]).double())
    out = mixer.finish(torch.tensor([3.0, 4.0]).double())
    expected = 0.8 * torch.tensor([3.0, 4.0]).double() / 12.5**0.5
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=0)


def test_a_mixer_draws_nothing_from_the_seed_of_the_others():
    drawn = []
    for mixed in (False, True):
        torch.manual_seed(5)
        mixer = Differential(H, D, 0) if mixed else None
        drawn.append(Attention(H * D, H, site="encoder", mixer=mixer).q_proj.weight)
    assert torch.equal(*drawn)
    same, other = (Differential(2, 4, layer).vectors for layer in (0, 1))
    assert torch.equal(same, Differential(2, 4, 0).vectors) and not torch.equal(same, other)
    torch.manual_seed(6)  # of another training
    assert not any(torch.equal(Differential(2, 4, 0).vectors, first) for first in (same, other))


def test_differential_attention_is_fused_where_nothing_asks_for_maps(monkeypatch):
    monkeypatch.setattr(softmax, "MIN_SCORES", 0)
    module, x = attention("differential"), torch.randn(T, 2, H * D).double()
    monkeypatch.setattr(module.groups[0].normaliser, "weights", None)
    assert module(x, x, x, Inputs(causal=True), need_weights=False)[0].isfinite().all()


@pytest.mark.parametrize("site", ["encoder", "cross"])
@pytest.mark.parametrize("normaliser", ["softmax", "sink"])
@pytest.mark.parametrize("padded", [False, True])
def test_both_maps_by_one_kernel(site, normaliser, padded, monkeypatch):
    """Outputs and all gradients are those of a kernel for each map."""
    monkeypatch.setattr(softmax, "MIN_SCORES", 0)
    group = HeadGroup(H, normaliser=build_normaliser(normaliser, H), query_factor=0.5)
    module = attention("differential", group, site=site)
    x, keys = (torch.randn(n, 3, H * D).double().requires_grad_() for n in (T, 5))
    keys = keys if site == "cross" else x
    padding = torch.arange(len(keys)) >= torch.tensor([[4], [3], [len(keys)]])
    leaves, found, calls = [x, keys, *module.parameters()], [], []
    kernel = group.normaliser.fused
    monkeypatch.setattr(group.normaliser, "fused", lambda *a: calls.append(1) or kernel(*a))
    for together in (True, False):
        if not together:
            monkeypatch.setattr(group, "_attend_parts", lambda *a: None)
        out = module(x, keys, keys, Inputs(padding if padded else None), need_weights=False)[0]
        found.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    assert len(calls) == 1 + 2
    torch.testing.assert_close(*found)


def test_hard_coded_heads_have_one_map():
    learned = HeadGroup(2, normaliser=build_normaliser("softmax", 2))
    module = attention("differential", build_gaussian_heads([-1, 1], [1, 1]), learned)
    x = torch.randn(T, 1, H * D).double()
    maps = module(x, x, x, Inputs(), need_head_weights=True)[1][:, 0]
    for found, offset in zip(maps, (-1, 1), strict=False):
        torch.testing.assert_close(found, load("gaussian").gaussian(T, T, offset).to(found.dtype))
    rows = torch.full((2, T), 1 - module.mixer.subtracted().item(), dtype=maps.dtype)
    torch.testing.assert_close(maps[2:].sum(-1), rows, atol=1e-6, rtol=0)


def test_half_precision_keeps_small_steps():
    mixer = Differential(2, 4, 0).half()
    nn.init.constant_(mixer.gain_offset, 1e-4)
    assert mixer.subtracted().dtype == torch.float32
    wide = mixer.finish(torch.ones(1, 2, 3, 4))
    torch.testing.assert_close(wide, torch.full_like(wide, 0.8 * 1.0001), atol=1e-5, rtol=0)
