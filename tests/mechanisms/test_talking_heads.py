"""Talking heads: the naive twin, worked numbers, how they begin, half precision."""

import math

import torch
from mechanism_cases import Case
from mixed_layer import D, H, T, attention
from naive import softmax_rows
from torch import Tensor, nn

from fairseq_ext.attention import Attention, Inputs
from fairseq_ext.mechanisms.talking_heads import TalkingHeads


def talking(q: Tensor, k: Tensor, v: Tensor, masked: Tensor, mixer) -> tuple[Tensor, Tensor]:
    """Output [H, T, D] and weights [H, T, S] of one sentence (Shazeer et al. 2020)."""
    heads = range(len(q))
    logits = [q[h] @ k[h].T / q.size(-1) ** 0.5 for h in heads]

    def mix(offset: Tensor, maps: list[Tensor]) -> list[Tensor]:
        return [sum((offset[g, h] + (1 if g == h else 0)) * maps[h] for h in heads) for g in heads]

    weights = [softmax_rows(each, masked) for each in mix(mixer.score_offset, logits)]
    weights = mix(mixer.weight_offset, weights)
    return torch.stack([weights[h] @ v[h] for h in heads]), torch.stack(weights)


CASES = [
    Case(
        "talking",
        "head_mixer",
        twin=talking,
        flags="--encoder-head-mixer talking",
        neutral={},
        own="mixer.score_offset",
        apart=("roles", "gaussian"),  # whose maps are of another kind
    )
]


def test_talking_heads_begin_as_ordinary_ones():
    module, x = attention("talking"), torch.randn(T, 2, H * D).double()
    for parameter in module.mixer.parameters():
        nn.init.zeros_(parameter)
    plain = Attention(H * D, H, site="encoder").double()
    plain.load_state_dict(module.state_dict(), strict=False)
    pair = [each(x, x, x, Inputs(), need_head_weights=True) for each in (module, plain)]
    torch.testing.assert_close(*pair, atol=1e-12, rtol=1e-12)


def test_worked_talking_heads():
    """Two heads that exchange scores, and whose weights the second one gets in equal parts."""
    mixer = TalkingHeads(2).double()
    mixer.score_offset.data = torch.tensor([[-1.0, 1], [1, -1]]).double()
    mixer.weight_offset.data = torch.tensor([[0, 0], [0.5, -0.5]]).double()
    scores = torch.tensor([[[0, math.log(3)]], [[0, 0]]]).double()[None]
    weights = mixer.mix_weights(mixer.mix_scores(scores).softmax(-1))
    expected = [[[0.5, 0.5]], [[0.375, 0.625]]]
    torch.testing.assert_close(weights[0], torch.tensor(expected).double(), atol=1e-7, rtol=0)


def test_half_precision_keeps_small_steps():
    talking = TalkingHeads(2).half()
    nn.init.constant_(talking.score_offset, 1e-4)
    scores = talking.mix_scores(torch.ones(1, 2, 1, 1)).flatten()
    torch.testing.assert_close(scores, torch.full((2,), 1.0002), atol=1e-6, rtol=0)
    with torch.autocast("cpu", torch.bfloat16):  # --amp
        mixed = talking.mix_scores(torch.ones(1, 2, 1, 1))
    assert torch.equal(mixed.flatten(), scores)
