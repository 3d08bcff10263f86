"""Checks of mixers of heads."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_ext.attention import MIXERS, AttentionContext, HeadGroup, HeadMixer, Inputs
from fairseq_ext.attention.context import HeadCall
from fairseq_ext.attention.normalisers import Softmax
from fairseq_ext.testing.mechanisms import check_model
from fairseq_ext.testing.slot_checks import ALL, EXACT, HEADS, WIDTH, read_defaults

MixerTwin = Callable[[Tensor, Tensor, Tensor, Tensor, Any], tuple[Tensor, Tensor]]
"""(q [H, T, D], k [H, S, D], v [H, S, D], masked [T, S] bool, mixer) -> output [H, T, D] and
weights [H, T, S] of one sentence."""


def check_head_mixer(name: str, twin: MixerTwin | None = None, **options: Any) -> None:
    """Check a registered mixer: against its twin, with and without maps, and in models.

    Args:
        name: as given to `register_head_mixer`.
        twin: a naive form of it, with softmax.
        options: its options, where they are not to be the default ones.
    """
    values = read_defaults(MIXERS, name) | options
    torch.manual_seed(6)
    mixer: Any = MIXERS.build(name, HEADS, width=WIDTH, layer=1, **values)
    for parameter in mixer.double().parameters():
        nn.init.normal_(parameter, std=0.3)
    for length in (5, 40):  # the latter is long enough for torch's fused attention
        _check_maps(mixer, length, twin)
    for site in ("encoder", "decoder", "cross"):
        check_model(**{f"{site}_head_mixer": name}, **options)


def _check_maps(mixer: HeadMixer, length: int, twin: MixerTwin | None) -> None:
    """Check maps and masks, and compare outputs and gradients with and without maps."""
    q, k, v = (torch.randn(2, HEADS, length, WIDTH).double().requires_grad_() for _ in range(3))
    padding = torch.zeros(2, length, dtype=torch.bool)
    padding[1, -2:] = True
    context = AttentionContext(Inputs(padding), length, length, 0, q.device, padding)
    group, call = HeadGroup(HEADS, normaliser=Softmax()), HeadCall(q, k, v, context, ALL)
    out, maps = group.attend(call, True, mixer)
    assert maps is not None and maps.shape == (2, HEADS, length, length), "maps of another shape"
    assert not maps[1, ..., -2:].any(), "masked keys have weights"
    inputs = (q, k, v, *mixer.parameters())
    _compare([out], [group.attend(call, False, mixer)[0]], inputs)
    if twin is not None:
        masked = padding[:, None].expand(-1, length, -1)
        pairs = [twin(q[b], k[b], v[b], masked[b], mixer) for b in range(2)]
        _compare([out, maps], [torch.stack(each) for each in zip(*pairs, strict=True)], inputs)


def _compare(ours: list[Tensor], others: list[Tensor], inputs: Sequence[Tensor]) -> None:
    """Compare tensors and the gradients of the inputs; a parameter may matter to no output."""
    torch.testing.assert_close(ours, others, **EXACT)
    probes = [torch.randn_like(each) for each in ours]
    options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
    grads = [torch.autograd.grad(each, inputs, probes, **options) for each in (ours, others)]
    torch.testing.assert_close(*grads, **EXACT)
