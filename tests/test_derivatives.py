"""Second derivatives of what has a backward pass written by hand: right, or refused."""

import ast
from importlib import import_module

import pytest
import torch
from conftest import PLUGIN
from torch.autograd import gradgradcheck

from fairseq_ext.attention.masks import Mask
from fairseq_ext.criterions.smoothed_loss import SmoothedLoss
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.guidance.loss import _TargetDistance
from fairseq_ext.mechanisms.kernels import distances, doubly_cpu, guided, toeplitz
from fairseq_ext.mechanisms.kernels.toeplitz import _Convolution
from fairseq_ext.mechanisms.second_pass.adversary import Ascent, _Step


def find_functions():
    """Return the subclasses of torch's Function in the package."""
    found = []
    for file in sorted(PLUGIN.rglob("*.py")):
        text = file.read_text("utf-8")
        if "Function)" in text:
            module = ".".join(file.relative_to(PLUGIN.parent).with_suffix("").parts)
            for node in ast.walk(ast.parse(text)):
                bases = getattr(node, "bases", []) if isinstance(node, ast.ClassDef) else []
                if any(ast.unparse(base).split(".")[-1] == "Function" for base in bases):
                    found.append(getattr(import_module(module), node.name))
    return found


FUNCTIONS = find_functions()


def draw(*shape):
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def convolve(v):
    at = toeplitz.distances(5, -1, 1, v.device)
    near, reversed_ = (((x.abs() <= 1) * (x + 2.0)).double()[None] for x in (at, -at))
    return toeplitz.attend(v, near, reversed_, -1, 1)


def measure(*maps):
    keys = torch.tensor([1, 0, 2]).view(1, 1, 3, 1)
    exist, share = keys[..., 0] > 0, torch.full((1, 1, 3), 0.4, dtype=torch.float64)
    return _TargetDistance.apply(keys, exist, share, *maps)


TWICE = {
    _Convolution: (convolve, [(1, 2, 5, 3)]),
    _TargetDistance: (measure, [(1, 1, 3, 3)]),
    _Step: (_Step.apply, [(4,)]),
    Ascent: (Ascent.apply, [(4,)]),
}
"""Functions with second derivatives: what to differentiate, and shapes of its inputs."""


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda x: x.__name__)
def test_second_derivatives_are_right_or_refused(function):
    """A backward pass that refuses does so before it reads anything."""
    if function in TWICE:
        differentiate, shapes = TWICE[function]
        assert gradgradcheck(differentiate, [draw(*shape) for shape in shapes])
        return
    with pytest.raises(UsageError, match="has no second derivative, and create_graph=True asks"):
        function.backward(None)


def guide(q):
    exist = torch.ones(1, 1, 4, dtype=torch.bool)
    targets = guided.Targets(torch.zeros(1, 1, 4, 1, dtype=torch.long), exist, None)
    return sum(x.sum() for x in guided.attend(q, q, q, Mask(), targets))


LINEAR = {
    "guided attention": guide,
    "doubly-normalised": lambda q: doubly_cpu.attend(q, q, q, None, None).sum(),
    "relative embeddings": lambda q: distances.add_distances(
        q @ q.mT, q, q.new_ones(1, 3, 7)
    ).sum(),
    "label-smoothed": lambda q: SmoothedLoss.apply(
        q[0, 0].float(), torch.tensor([1, 2, 0, 1]), 0.1, 9, 4
    )[0],
}


@pytest.mark.parametrize("what", LINEAR)
def test_a_linear_loss_is_refused_too(what):
    """torch's `once_differentiable` would give a second derivative without what it cannot see."""
    q = draw(1, 1, 4, 3)
    loss = LINEAR[what](q)
    assert torch.autograd.grad(loss, q, retain_graph=True)[0].isfinite().all()
    with pytest.raises(UsageError, match=f"{what}.* has no second derivative"):
        torch.autograd.grad(loss, q, create_graph=True)
