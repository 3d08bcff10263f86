"""fairseq's optimiser for 16 bits with lists of tensors, beside its own loops: equal to the bit."""

import inspect

import pytest
import torch
from fairseq import options, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.modules import gelu
from fairseq.optim.fp16_optimizer import FP16Optimizer
from torch.nn import Parameter

import fairseq_ext.registry  # noqa: F401 - the patches

METHODS = ("_sync_fp16_grads_to_fp32", "_sync_fp32_params_to_fp16", "zero_grad")
SHAPES = (8, 4), (5,), (), (3, 2, 2)
FLAGS = {
    "bf16": ["--bf16"],
    "fp16": ["--fp16", "--fp16-no-flatten-grads"],
    "lamb": ["--bf16", "--optimizer", "lamb", "--lamb-eps", "1e-6"],
}


def build(flags, frozen=()):
    """Return the optimiser of a training and its parameters in 16 bits."""
    words = ["DATA", "--arch", "transformer", "--optimizer", "adam", "--lr", "0.1", *flags]
    parsed = options.parse_args_and_arch(options.get_training_parser(), words)
    torch.manual_seed(1)
    dtype = torch.bfloat16 if "--bf16" in flags else torch.float16
    parameters = [Parameter(torch.randn(shape).to(dtype)) for shape in SHAPES]
    for place in frozen:
        parameters[place].requires_grad_(False)
    cfg = convert_namespace_to_omegaconf(parsed)
    cfg.common.cpu = True
    return FP16Optimizer.build_optimizer(cfg, parameters), parameters


def train(flags, clip, updates=4, frozen=(), without=(), batches=1):
    """Return the parameters, and the norms, of a training with made-up gradients."""
    optimizer, parameters = build(flags, frozen)
    norms = []
    for _ in range(updates):
        optimizer.zero_grad()
        for _ in range(batches):
            used = [x for n, x in enumerate(parameters) if n not in without and x.requires_grad]
            optimizer.backward(sum((x.float() * torch.randn(x.shape)).sum() for x in used))
        optimizer.multiply_grads(1 / 3)
        norms.append(optimizer.clip_grad_norm(clip))
        optimizer.step()
    return [*parameters, *norms]


@pytest.mark.parametrize("kind", FLAGS)
@pytest.mark.parametrize(
    "how",
    [
        {"clip": 0.0},
        {"clip": 0.5},
        {"clip": 0.5, "frozen": [1]},
        {"clip": 0.5, "without": [0]},
        {"clip": 0.0, "batches": 3},
    ],
    ids=str,
)
def test_updates_are_those_of_fairseq(monkeypatch, kind, how):
    """With frozen parameters, ones without a gradient, and gradients of several batches."""
    ours = train(FLAGS[kind], **how)
    for name in METHODS:
        monkeypatch.setattr(FP16Optimizer, name, inspect.unwrap(getattr(FP16Optimizer, name)))
    monkeypatch.setattr(utils, "clip_grad_norm_", inspect.unwrap(utils.clip_grad_norm_))
    theirs = train(FLAGS[kind], **how)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_norm_worked_by_hand():
    """Gradients (3, 4) and 12 have the norm 13; a function adds what other ranks have."""
    parameters = [Parameter(torch.zeros(2)), Parameter(torch.zeros(1)), Parameter(torch.zeros(1))]
    parameters[0].grad = torch.tensor([3.0, 4.0])
    parameters[1].grad = torch.tensor([12.0])
    assert utils.clip_grad_norm_(parameters, 0.0).item() == 13
    assert utils.clip_grad_norm_(parameters, 0.0, lambda norm: norm * 2).item() == 26
    assert utils.clip_grad_norm_(iter(parameters), 6.5).item() == 13
    torch.testing.assert_close(parameters[0].grad, torch.tensor([1.5, 2.0]))
    assert utils.clip_grad_norm_(parameters[2:], 1.0).item() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gelu_has_the_numbers_of_fairseq(dtype):
    """To the bit; with float16, which no CPU trains with, to rounding."""
    torch.manual_seed(1)
    results = []
    for function in (gelu, inspect.unwrap(gelu)):
        x = (3 * torch.randn(2000, generator=torch.Generator().manual_seed(2))).to(dtype)
        y = function(x.requires_grad_())
        results.append((y, *torch.autograd.grad(y, x, torch.ones_like(y))))
    rounding = {"rtol": 1e-3, "atol": 1e-4} if dtype == torch.float16 else {"rtol": 0, "atol": 0}
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, **rounding)
