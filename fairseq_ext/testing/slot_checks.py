"""Checks of parts in slots: normalisers, scorers, masks and gates of heads."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import gradcheck

from fairseq_ext.attention import MASKS, NORMALISERS, SCORERS, AttentionContext, Inputs
from fairseq_ext.attention.context import HeadCall
from fairseq_ext.attention.gates import GATES
from fairseq_ext.attention.masks import Mask, mask_to_bias
from fairseq_ext.attention.normalisers import Normaliser
from fairseq_ext.errors import UsageError
from fairseq_ext.testing.mechanisms import check_model

ALL = slice(None)
HEADS, WIDTH = 3, 4
EXACT: dict[str, Any] = {"atol": 1e-9, "rtol": 1e-7}
SINGLE: dict[str, Any] = {"atol": 2e-5, "rtol": 2e-5}

NormaliserTwin = Callable[[Tensor, Tensor, Tensor, Any, int], Tensor]
"""(scores [T, S], masked [T, S] bool, absent [T] bool, normaliser, head) -> weights [T, S].

Absent queries are padding; of a normaliser, a twin may read parameters and options."""

ScorerTwin = Callable[[Tensor, Tensor, Any, int], Tensor]
"""(q [T, D], k [S, D], scorer, head) -> scores [T, S] of self-attention without padding."""

GateTwin = Callable[[Tensor, Tensor, Any], Tensor]
"""(out [B, H, T, D], x [T, B, C], gate) -> gated output [B, H, T, D]."""


def check_normaliser(name: str, twin: NormaliserTwin | None = None, **options: Any) -> None:
    """Check a registered normaliser: alone, and in models at every site where it can stand.

    Args:
        name: as given to `register_normaliser`.
        twin: a naive form of it in plain torch, to compare outputs and every gradient with.
        options: its options, where they are not to be the default ones.
    """
    values = read_defaults(NORMALISERS, name) | options

    def make(heads: int = HEADS) -> Normaliser:
        torch.manual_seed(3)
        module = NORMALISERS.build(name, heads, **values)
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.3)
        return module

    for dtype in (torch.float64, torch.float32):
        _check_weights(make().to(dtype), dtype)
        for queries, keys in ((5, 5), (3, 7), (6, 2), (1, 4)) if twin else ():
            assert twin
            _compare(make().to(dtype), make().double(), twin, (queries, keys), dtype)
    _check_gradient(make().double())
    _check_fused(make())
    check_model(encoder_normaliser=name, **options)
    check_model("roberta_una_tiny", encoder_normaliser=name, **options)
    for site in ("decoder", "cross"):
        if make().across_queries:
            _check_refused(f"{site}_normaliser", name, options)
        else:
            check_model(**{f"{site}_normaliser": name}, **options)


def read_defaults(table: Any, name: str) -> dict[str, Any]:
    """Return the default values of the options of a registered part."""
    part = table.parts().get(name)
    assert part is not None, f"no {table.noun} {name!r} is registered"
    return {option: each.default for option, each in part.options.items()}


def _check_refused(option: str, name: str, options: dict[str, Any]) -> None:
    try:
        check_model(**{option: name}, **options)
    except UsageError:
        return
    raise AssertionError(f"{option} accepts {name}, which has no meaning there")


def _problem(queries: int, keys: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return scores [2, H, T, S], masked [2, 1, T, S] and absent queries [2, T]."""
    generator = torch.Generator().manual_seed(queries * keys)
    scores = torch.randn(2, HEADS, queries, keys, generator=generator, dtype=torch.float64)
    masked = torch.zeros(2, 1, queries, keys, dtype=torch.bool)
    masked[1, :, :, -1] = keys > 1
    absent = torch.zeros(2, queries, dtype=torch.bool)
    absent[1, -1] = queries > 1
    return scores.to(dtype), masked, absent


def _check_weights(module: Normaliser, dtype: torch.dtype) -> None:
    """Check shape, masks, slices of heads, padded queries, other queries and large scores."""
    scores, masked, absent = _problem(5, 6, dtype)
    bias = mask_to_bias(masked, dtype)
    weights = module.weights(scores, bias, absent, ALL)
    assert weights.shape == scores.shape and weights.dtype == dtype, "another shape or dtype"
    assert weights.isfinite().all(), "weights are not finite"
    masked_weights = weights.masked_select(masked.expand_as(weights))
    assert not masked_weights.any(), "masked keys have weights"
    for head in range(HEADS):
        own = module.weights(scores[:, head : head + 1], bias, absent, slice(head, head + 1))
        torch.testing.assert_close(own, weights[:, head : head + 1], **_close(dtype))
    alone = module.weights(scores[1:, :, :-1, :-1], None, None, ALL)
    torch.testing.assert_close(weights[1:, :, :-1, :-1], alone, **_close(dtype))
    if not module.across_queries:
        row = module.weights(scores[:1, :, 2:3], None, None, ALL)
        torch.testing.assert_close(row, weights[:1, :, 2:3], **_close(dtype))
    large = (1e4 * scores).requires_grad_()
    extreme = module.weights(large, bias, absent, ALL)
    extreme.square().sum().backward()
    assert extreme.isfinite().all(), "weights of large scores are not finite"
    assert large.grad is not None and large.grad.isfinite().all(), "gradients are not finite"


def _close(dtype: torch.dtype) -> dict[str, Any]:
    return EXACT if dtype == torch.float64 else SINGLE


def _compare(
    module: Normaliser,
    double: Normaliser,
    twin: NormaliserTwin,
    size: tuple[int, int],
    dtype: torch.dtype,
) -> None:
    """Compare outputs and the gradients of scores and parameters with the twin's."""
    scores, masked, absent = _problem(*size, torch.float64)
    real = ~absent[:, None, :, None]  # nothing reads what a padded query got
    probe = torch.randn(scores.shape, dtype=torch.float64) * real
    ours, theirs = scores.to(dtype).requires_grad_(), scores.requires_grad_()
    weights = module.weights(ours, mask_to_bias(masked, dtype), absent, ALL)
    expected = torch.stack(
        [
            torch.stack(
                [twin(theirs[b, h], masked[b, 0], absent[b], double, h) for h in range(HEADS)]
            )
            for b in range(2)
        ]
    )
    (weights * probe.to(dtype)).sum().backward()
    (expected * probe).sum().backward()
    close = _close(dtype)
    torch.testing.assert_close(weights.double() * real, expected * real, **close)
    assert ours.grad is not None
    torch.testing.assert_close(ours.grad.double(), theirs.grad, **close)
    for (name, one), other in zip(module.named_parameters(), double.parameters(), strict=True):
        assert one.grad is not None, f"{name} has no gradient"
        torch.testing.assert_close(one.grad.double(), other.grad, **close)


def _check_gradient(module: Normaliser) -> None:
    scores, masked, absent = _problem(3, 4, torch.float64)
    for bias in (None, mask_to_bias(masked, scores.dtype)):

        def real_queries(scores: Tensor, *_: Tensor, bias: Tensor | None = bias) -> Tensor:
            return module.weights(scores, bias, absent, ALL)[:, :, :2]

        assert gradcheck(real_queries, (scores.requires_grad_(), *module.parameters()))


def _check_fused(module: Normaliser) -> None:
    """Compare a kernel, if there is one, with the weights; forward and every gradient."""
    for length in (5, 64):
        for masked in (None, torch.rand(2, 1, 1, length) < 0.3):
            _compare_fused(module, length, masked)


def _compare_fused(module: Normaliser, length: int, masked: Tensor | None) -> None:
    torch.manual_seed(4)
    q, k, v = (torch.randn(2, HEADS, length, WIDTH).requires_grad_() for _ in range(3))
    context = AttentionContext(Inputs(), length, length, 0, q.device)
    out = module.fused(HeadCall(q, k, v, context, ALL), Mask(masked))
    if out is None:
        return
    bias = None if masked is None else mask_to_bias(masked, q.dtype)
    scores = (q * WIDTH**-0.5) @ k.transpose(-1, -2)
    expected = module.weights(scores, bias, None, ALL) @ v
    torch.testing.assert_close(out, expected, **SINGLE)
    inputs, probe = (q, k, v, *module.parameters()), torch.randn_like(out)
    grads = [torch.autograd.grad(each, inputs, probe) for each in (out, expected)]
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, atol=2e-4, rtol=2e-4)


def check_scorer(name: str, twin: ScorerTwin | None = None, **options: Any) -> None:
    """Check a registered scorer: against its twin, and in models at every site.

    Args:
        name: as given to `register_scorer`.
        twin: a naive form of it.
        options: its options, where they are not to be the default ones.
    """
    options = read_defaults(SCORERS, name) | options
    module: Any = SCORERS.build(name, HEADS, width=WIDTH, **options)
    if twin is not None:
        torch.manual_seed(5)
        if isinstance(module, nn.Module):
            module = module.double()
        q, k = (torch.randn(1, HEADS, 5, WIDTH).double().requires_grad_() for _ in range(2))
        context = AttentionContext(Inputs(), 5, 5, 0, q.device)
        scores = module(HeadCall(q, k, k, context, ALL)).expand(1, HEADS, 5, 5)
        expected = torch.stack([twin(q[0, h], k[0, h], module, h) for h in range(HEADS)])[None]
        torch.testing.assert_close(scores, expected, **EXACT)
        inputs = [q, k, *getattr(module, "parameters", tuple)()]
        probe = torch.randn_like(expected)
        grads = [
            torch.autograd.grad(each, inputs, probe, allow_unused=True)
            for each in (scores, expected)
        ]
        for one, other in zip(*grads, strict=True):
            assert (one is None) == (other is None), "a gradient is missing"
            if one is not None:
                torch.testing.assert_close(one, other, **EXACT)
    for site in ("encoder", "decoder", "cross"):
        one_sequence = site == "cross" and getattr(module, "in_sequence", False)
        if one_sequence or site != "encoder" and getattr(module, "encoder_only", False):
            _check_refused(f"{site}_scorer", name, options)
        else:
            check_model(**{f"{site}_scorer": name}, **options)


def check_mask(name: str, sites: tuple[str, ...] = ("encoder", "decoder"), **options: Any) -> None:
    """Check a registered mask in models: see `check_model`.

    Args:
        name: as given to `register_mask`.
        sites: where it has a meaning.
        options: its options, where they are not to be the default ones.
    """
    read_defaults(MASKS, name)
    for site in sites:
        check_model(**{f"{site}_masks": name}, **options)


def check_head_gate(name: str, twin: GateTwin | None = None, **options: Any) -> None:
    """Check a registered gate of heads: against its twin, and in models at every site.

    Args:
        name: as given to `register_head_gate`.
        twin: a naive form of it, in evaluation.
        options: its options, where they are not to be the default ones.
    """
    values = read_defaults(GATES, name) | options
    width = HEADS * WIDTH
    gate: Any = GATES.build(name, HEADS, width=width, **values)
    if twin is not None:
        gate = gate.double().eval()
        for parameter in gate.parameters():
            nn.init.normal_(parameter)
        out, x = torch.randn(2, HEADS, 5, WIDTH).double(), torch.randn(5, 2, width).double()
        inputs = (out.requires_grad_(), *gate.parameters())
        pair = gate(out, x), twin(out, x, gate)
        torch.testing.assert_close(*pair, **EXACT)
        probe = torch.randn_like(out)
        grads = [torch.autograd.grad(each, inputs, probe, allow_unused=True) for each in pair]
        for one, other in zip(*grads, strict=True):
            torch.testing.assert_close(one, other, **EXACT)
    for site in ("encoder", "decoder", "cross"):
        check_model(head_gate=name, head_gate_sites=site, **options)
