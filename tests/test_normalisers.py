"""Normalisers against each other: where they are fused, and names of their parameters."""

from collections import Counter

import torch
from mechanism_cases import list_cases

from fairseq_ext.attention import AttentionContext, Inputs
from fairseq_ext.attention import normalisers as softmax
from fairseq_ext.attention.context import HeadCall

ALL = slice(None)


def test_a_call_on_a_gpu_is_always_fused():
    """On a CPU only a long one without dropout is."""
    context = AttentionContext(Inputs(), 2, 2, 0, torch.device("cpu"))
    gpu, cpu = (torch.empty(1, 1, 2, 4, device=device) for device in ("meta", "cpu"))
    assert softmax.is_fused(HeadCall(gpu, gpu, gpu, context, ALL, 0.1))
    assert not softmax.is_fused(HeadCall(cpu, cpu, cpu, context, ALL))
    long = torch.empty(1, 1, 33, 4)
    assert softmax.is_fused(HeadCall(long, long, long, context, ALL))
    assert not softmax.is_fused(HeadCall(long, long, long, context, ALL, 0.1))


def test_no_parameter_is_named_like_that_of_another_normaliser():
    """Otherwise --reset-optimizer would begin one with the other's values."""
    cases = [case for case in list_cases() if case.slot == "normaliser"]
    built = [case.build(2, **options) for case in cases for options in case.options]
    owners = {(name, type(part)) for part in built for name, _ in part.named_parameters()}
    counts = Counter(name for name, _ in owners)
    assert counts and set(counts.values()) == {1}
