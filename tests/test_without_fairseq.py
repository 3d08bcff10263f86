"""Attention and mechanisms work where fairseq cannot be imported, and compute the same there."""

import subprocess
import sys

import pytest
import torch
from conftest import ROOT

from fairseq_ext.attention import Inputs
from fairseq_ext.attention.building import HEAD_KINDS
from fairseq_ext.attention.slots import SLOTS
from fairseq_ext.testing.mechanisms import build_tiny_model

KINDS = {"gaussian_heads": "all", "roles": "relative,none"}

BLOCKED = """
import sys
import torch

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("fairseq", "fairseq_cli", "hydra", "omegaconf"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
from fairseq_ext.attention import NORMALISERS, Attention, Inputs
assert list(NORMALISERS) == ["softmax"]
assert Attention(8, 2, site="encoder")(*[torch.randn(3, 1, 8)] * 3)[0].shape == (3, 1, 8)
import fairseq_ext.mechanisms
from fairseq_ext.attention.building import build_attention

cases = torch.load(sys.argv[1])
for case in cases.values():
    attention = build_attention(32, 4, case["options"], layers=2).double().eval()
    attention.load_state_dict(case["state"])
    x = case["x"].requires_grad_()
    inputs = Inputs(case["padding"], relative=case["relative"])
    inputs.token_features = case["features"]
    out, _ = attention(x, x, x, inputs, need_weights=False)
    out.square().sum().backward()
    case["out"], case["gradients"] = out.detach(), {
        "x": x.grad, **{n: p.grad for n, p in attention.named_parameters()}
    }
torch.save(cases, sys.argv[1])
"""


def list_cases():
    """Options of an encoder with each part of each slot, and with each kind of heads."""
    for slot in SLOTS.values():
        for name in slot.parts.parts():
            option = slot.name_option("encoder")
            yield {option: name}
    yield from ({f"encoder_{name}": KINDS[name]} for name in HEAD_KINDS)


def prepare(options):
    """The first layer's attention of a model of fairseq's, with what it is asked and answers."""
    model = build_tiny_model("transformer_una_tiny", **options).double()
    attention = model.encoder.layers[0].self_attn
    padding = torch.tensor([[False] * 5, [True] + [False] * 4])
    x = torch.randn(5, 2, 32, dtype=torch.float64, requires_grad=True)
    relative = None if model.encoder.relative is None else model.encoder.relative().detach()
    features = None
    if model.encoder.symbols is not None:
        tokens = torch.randint(4, 20, (2, 5)).masked_fill(padding, model.encoder.padding_idx)
        features = model.encoder.symbols(tokens)
    inputs = Inputs(padding, relative=relative, token_features=features)
    out, _ = attention(x, x, x, inputs, need_weights=False)
    out.square().sum().backward()
    gradients = {"x": x.grad, **{n: p.grad for n, p in attention.named_parameters()}}
    asked = {"options": options, "state": attention.state_dict(), "x": x.detach()}
    asked |= {"padding": padding, "relative": relative, "features": features}
    return asked, out.detach(), gradients


def test_a_layer_of_every_mechanism(tmp_path):
    """Outputs and all gradients are those of the same layer in a model of fairseq's."""
    prepared = {str(options): prepare(options) for options in list_cases()}
    file = tmp_path / "cases.pt"
    torch.save({name: asked for name, (asked, *_) in prepared.items()}, file)
    code = BLOCKED.replace("torch.load(sys.argv[1])", "torch.load(sys.argv[1], weights_only=False)")
    done = subprocess.run(
        [sys.executable, "-c", code, file], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for name, case in torch.load(file, weights_only=False).items():
        _, out, gradients = prepared[name]
        torch.testing.assert_close(case["out"], out, msg=name)
        assert case["gradients"].keys() == gradients.keys()
        for parameter, gradient in gradients.items():
            other = case["gradients"][parameter]
            assert (other is None) == (gradient is None), (name, parameter)
            if gradient is not None:
                torch.testing.assert_close(other, gradient, msg=f"{name}: {parameter}")


def test_every_kind_of_heads_is_tried():
    assert KINDS.keys() == HEAD_KINDS.keys()


def test_a_mechanism_that_fails_names_its_file(tmp_path, monkeypatch):
    """A file that cannot be imported says which it is."""
    from fairseq_ext import mechanisms

    (tmp_path / "broken.py").write_text("1 / 0")
    monkeypatch.setattr(mechanisms, "__path__", [str(tmp_path)])
    with pytest.raises(ZeroDivisionError) as error:
        mechanisms._import_all()
    assert error.value.__notes__ == [
        "fairseq_ext.mechanisms.broken cannot be imported, and has to register its mechanism"
    ]
