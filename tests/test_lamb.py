"""LAMB against its formula, and as `--optimizer lamb`."""

import math

import pytest
import torch
from conftest import PLUGIN, TASK, fairseq, train

from fairseq_ext.errors import UsageError
from fairseq_ext.patches.lamb import Lamb, _parse_betas

OPTIONS = {"lr": 0.1, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.02}


def naive(weight, grads, lr, betas, eps, weight_decay):
    """One tensor after as many steps as there are gradients, number by number."""
    w = weight.flatten().tolist()
    m, v = [0.0] * len(w), [0.0] * len(w)
    for t, grad in enumerate(grads, 1):
        g = grad.flatten().tolist()
        m = [betas[0] * a + (1 - betas[0]) * b for a, b in zip(m, g, strict=True)]
        v = [betas[1] * a + (1 - betas[1]) * b * b for a, b in zip(v, g, strict=True)]
        r = [
            a / (1 - betas[0] ** t) / (math.sqrt(b / (1 - betas[1] ** t)) + eps) + weight_decay * c
            for a, b, c in zip(m, v, w, strict=True)
        ]
        lengths = [math.sqrt(sum(x * x for x in vector)) for vector in (w, r)]
        trust = lengths[0] / lengths[1] if min(lengths) > 0 else 1.0
        w = [a - lr * trust * b for a, b in zip(w, r, strict=True)]
    return torch.tensor(w, dtype=torch.float64).view_as(weight)


@pytest.mark.parametrize("start", [1.0, 0.0])
@pytest.mark.parametrize("decay", [0.0, 0.02])
def test_steps_follow_the_formula(start, decay):
    """Tensor by tensor; a tensor of zeros, as a bias at first, moves like Adam's."""
    torch.manual_seed(0)
    options = OPTIONS | {"weight_decay": decay}
    first = [start * torch.randn(3, 4, dtype=torch.float64), torch.randn(5, dtype=torch.float64)]
    grads = [[torch.randn_like(tensor) for tensor in first] for _ in range(4)]
    parameters = [torch.nn.Parameter(tensor.clone()) for tensor in first]
    optimiser = Lamb(parameters, **options)
    for step in grads:
        for parameter, grad in zip(parameters, step, strict=True):
            parameter.grad = grad.clone()
        optimiser.step()
    for n, parameter in enumerate(parameters):
        expected = naive(first[n], [step[n] for step in grads], **options)
        torch.testing.assert_close(parameter.data, expected, atol=1e-12, rtol=1e-12)


def test_16_bit_parameters_are_stepped_in_32():
    torch.manual_seed(0)
    first, grad = torch.randn(64), torch.randn(64)
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        parameter = torch.nn.Parameter(first.bfloat16().to(dtype))
        optimiser = Lamb([parameter], **OPTIONS)
        parameter.grad = grad.bfloat16().to(dtype)
        optimiser.step()
        assert optimiser.state[parameter]["exp_avg"].dtype == torch.float32
        results.append(parameter.detach())
    torch.testing.assert_close(results[1], results[0].bfloat16(), atol=0, rtol=0)


@pytest.mark.parametrize(
    "text", ["0.9", "(0.9, 1.0)", "(0.9, -0.1)", "(0.9, 0.99, 0.999)", "betas"]
)
def test_betas_that_cannot_be(text):
    with pytest.raises(UsageError, match="--lamb-betas is .*; give two numbers in"):
        _parse_betas(text)


def test_training_and_resuming(data_bin, tmp_path):
    flags = ["--optimizer", "lamb", "--lamb-betas", "(0.9, 0.98)", "--weight-decay", 0.01]
    whole = train(data_bin, "transformer_una_tiny", tmp_path / "a", 6, *flags)
    train(data_bin, "transformer_una_tiny", tmp_path / "b", 3, *flags)
    resumed = train(data_bin, "transformer_una_tiny", tmp_path / "b", 6, *flags)
    ours, theirs = (torch.load(path, weights_only=False)["model"] for path in (resumed, whole))
    torch.testing.assert_close(ours, theirs, atol=0, rtol=0)


def test_a_refusal_on_the_command_line(data_bin, tmp_path):
    refused = fairseq(
        "train", data_bin, "--user-dir", PLUGIN, *TASK, "--arch", "transformer_una_tiny",
        *"--max-tokens 600 --optimizer lamb --lamb-betas 2,3 --save-dir".split(), tmp_path,
        check=False,
    )  # fmt: skip
    assert refused.returncode == 1
    assert refused.stderr.strip().split("\n")[-1].startswith("error: --lamb-betas is '2,3'")
