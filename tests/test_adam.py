"""Adam in one kernel beside fairseq's own, whose steps and state it has."""

import copy
import inspect

import pytest
import torch
from fairseq.optim.adam import Adam
from torch.nn import Parameter

import fairseq_ext.registry  # noqa: F401 - the patches
from fairseq_ext.patches import adam

fairseq_step = inspect.unwrap(Adam.step)
SHAPES = (30, 4), (7,), ()


def build(groups=({},), **options):
    """Return an optimiser of parameters of each of SHAPES for each group."""
    torch.manual_seed(1)
    params = [
        {"params": [Parameter(torch.randn(shape)) for shape in SHAPES], **own} for own in groups
    ]
    options = {"lr": 0.01, "betas": (0.9, 0.98), "eps": 1e-3, "weight_decay": 0.1} | options
    return Adam(params, **options)


def parameters(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def draw_gradients(*optimizers, without=()):
    for at, same in enumerate(zip(*map(parameters, optimizers), strict=True)):
        gradient = torch.randn_like(same[0])
        for parameter in same:
            parameter.grad = None if at in without else gradient.clone()


def assert_same(one, other, **tolerance):
    for a, b in zip(parameters(one), parameters(other), strict=True):
        torch.testing.assert_close(a, b, **tolerance)
        torch.testing.assert_close(one.state[a], other.state[b], **tolerance)


def forbid(*_):
    raise AssertionError("fairseq's own step was taken")


@pytest.mark.parametrize("decay", [0, 0.1])
@pytest.mark.parametrize("eps", [1e-8, 0.1])
def test_it_does_what_fairseq_does(decay, eps):
    groups = {}, {"lr": 0.1, "betas": (0.5, 0.9)}
    ours, theirs = (build(groups, weight_decay=decay, eps=eps) for _ in range(2))
    for turn in range(8):
        # the step of a parameter without a gradient is not counted
        draw_gradients(ours, theirs, without=[1] if turn % 2 else [])
        adam.step(forbid, ours)
        fairseq_step(theirs)
        assert_same(ours, theirs, rtol=2e-5, atol=1e-6)
    assert ours.state[parameters(ours)[1]]["step"] == 4


def test_a_step_worked_by_hand():
    optimizer = build(weight_decay=0.0, eps=1.0, betas=(0.9, 0.99), lr=0.5)
    weight = parameters(optimizer)[2]
    weight.data.fill_(2.0)
    draw_gradients(optimizer)
    weight.grad.fill_(3.0)
    optimizer.step()
    # m = 0.3, v = 0.09, lr' = 0.5 sqrt(0.01) / 0.1 = 0.5: 2 - 0.5 * 0.3 / (0.3 + 1)
    assert weight.item() == pytest.approx(2 - 0.15 / 1.3, abs=1e-6)


@pytest.mark.parametrize("first", [fairseq_step, Adam.step])
def test_training_goes_on_from_the_state_of_either(first):
    whole, begun = build(), build()
    for _ in range(3):
        draw_gradients(whole, begun)
        fairseq_step(whole)
        first(begun)
    goes_on = build()
    goes_on.load_state_dict(copy.deepcopy(begun.state_dict()))
    for a, b in zip(parameters(goes_on), parameters(begun), strict=True):
        a.data.copy_(b)
    draw_gradients(whole, goes_on)
    fairseq_step(whole)
    adam.step(forbid, goes_on)
    assert_same(whole, goes_on, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("case", ["bf16", "amsgrad", "closure", "sparse", "transposed"])
def test_the_unusual_is_left_to_fairseq(case):
    optimizer, called = build(amsgrad=case == "amsgrad"), []
    draw_gradients(optimizer)
    for parameter in parameters(optimizer):
        if case == "bf16":
            parameter.data = parameter.data.bfloat16()
            parameter.grad = torch.zeros_like(parameter)
        if case == "sparse" and parameter.dim() == 2:
            parameter.grad = parameter.grad.to_sparse()
        if case == "transposed" and parameter.dim() == 2:
            parameter.grad = parameter.grad.T.contiguous().T
    closure = (lambda: 0,) if case == "closure" else ()
    asked = lambda *given: called.append(given) or torch.is_grad_enabled()  # noqa: E731
    assert adam.step(asked, optimizer, *closure), "a closure may need gradients"
    assert called == [(optimizer, *closure)]
    assert not optimizer.state


def test_the_optimizer_of_fairseq_takes_it(monkeypatch):
    taken = []
    monkeypatch.setattr(torch, "_fused_adamw_", lambda *_, **named: taken.append(named["eps"]))
    optimizer = build(eps=0.5)
    draw_gradients(optimizer)
    optimizer.step()
    assert taken == [pytest.approx(0.5 / 0.02**0.5)]
