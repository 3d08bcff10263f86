"""The checks that other packages run on their parts: what is right passes, faults are noticed."""

import pytest
import torch
from torch import nn

from fairseq_ext import registry, testing
from fairseq_ext.attention import GATES, MASKS, NORMALISERS, SCORERS
from fairseq_ext.attention.gates import HeadGate
from fairseq_ext.attention.masks import add_bias
from fairseq_ext.attention.normalisers import Normaliser, Softmax
from fairseq_ext.attention.scorers import Scorer, dot_product
from fairseq_ext.criterions import composite
from fairseq_ext.criterions.terms import Term
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.guidance import patterns


def naive_softmax(scores, masked, absent, part, head):
    e = torch.where(masked, 0, scores.exp())
    return e / e.sum(-1, keepdim=True)


class Parametric(Normaliser):
    """Softmax with a temperature for each head."""

    def __init__(self, heads):
        super().__init__(heads)
        self.offset = nn.Parameter(torch.zeros(heads))

    def weights(self, scores, bias, query_padding, heads):
        return add_bias(scores * self.offset[heads, None, None].exp(), bias).softmax(-1)


def naive_parametric(scores, masked, absent, part, head):
    return naive_softmax(scores * part.offset[head].exp(), masked, absent, part, head)


class Unmasked(Normaliser):
    def weights(self, scores, bias, query_padding, heads):
        return scores.softmax(-1)


class Undeclared(Normaliser):
    def weights(self, scores, bias, query_padding, heads):
        return add_bias(scores - scores.mean(-2, keepdim=True).exp(), bias).softmax(-1)


class Overflowing(Normaliser):
    def weights(self, scores, bias, query_padding, heads):
        e = add_bias(scores, bias).exp()
        return e / e.sum(-1, keepdim=True)


class OtherKernel(Softmax):
    def fused(self, call, mask):
        return call.q + call.k + call.v


class WrongHeads(Parametric):
    def weights(self, scores, bias, query_padding, heads):
        return super().weights(scores, bias, query_padding, slice(0, scores.size(1)))


def registered(monkeypatch, table, part, name="part", **options):
    monkeypatch.setattr(table, "_check", lambda part: None)
    table.register(name, **options)(part)
    monkeypatch.setitem(table, name, table.pop(name))  # until the test ends
    return name


@pytest.mark.parametrize(
    ("part", "twin"),
    [(Softmax, naive_softmax), (Parametric, naive_parametric), (Softmax, None)],
)
def test_normalisers_that_are_right(monkeypatch, part, twin):
    testing.check_normaliser(registered(monkeypatch, NORMALISERS, part), twin)


@pytest.mark.parametrize(
    ("part", "twin", "said"),
    [
        (Parametric, naive_softmax, "not close"),
        (Unmasked, None, "masked keys have weights"),
        (Undeclared, None, "not close"),
        (Overflowing, None, "not finite"),
        (OtherKernel, None, "not close"),
        (WrongHeads, None, "not close"),
    ],
)
def test_faults_of_normalisers_are_noticed(monkeypatch, part, twin, said):
    with pytest.raises(AssertionError, match=said):
        testing.check_normaliser(registered(monkeypatch, NORMALISERS, part), twin)


def test_a_normaliser_across_queries_must_be_refused_in_a_decoder(monkeypatch):
    """It is: a declared one passes."""
    testing.check_normaliser("doubly")
    monkeypatch.setattr(testing.slot_checks, "check_model", lambda *args, **options: None)
    with pytest.raises(AssertionError, match="decoder_normaliser accepts doubly"):
        testing.check_normaliser("doubly")


class Nearby(Scorer):
    """The dot product less a trained multiple of the distance."""

    def __init__(self, heads):
        super().__init__()
        self.slope = nn.Parameter(torch.ones(heads))

    def forward(self, call):
        away = call.context.distances(1.0)[:, None].abs()
        return dot_product(call) - (self.slope[call.heads, None, None] * away).to(call.q.dtype)


def naive_nearby(q, k, scorer, head):
    i, j = (torch.arange(len(x), dtype=torch.float64) for x in (q, k))
    return q @ k.T / q.size(1) ** 0.5 - scorer.slope[head] * (j - i[:, None]).abs()


class FromTheLeft(Nearby):
    """Positions count padding, so that what a batch is padded to matters."""

    def forward(self, call):
        return dot_product(call) * torch.arange(call.context.keys)


def test_scorers(monkeypatch):
    testing.check_scorer(registered(monkeypatch, SCORERS, Nearby, "nearby"), naive_nearby)
    testing.check_scorer("disentangled")  # of encoders alone
    module = registered(monkeypatch, SCORERS, lambda heads: nn.Identity(), "module")
    with pytest.raises(UsageError, match=r"Identity is no .*\.Scorer; derive it from that"):
        testing.check_scorer(module)
    with pytest.raises(AssertionError):
        testing.check_scorer("dot", lambda q, k, scorer, head: q @ k.T)
    with pytest.raises(AssertionError):
        testing.check_scorer(registered(monkeypatch, SCORERS, FromTheLeft, "left"))


def build_window(heads):
    """A mask of all keys more than two tokens away."""
    return lambda context: context.distances(1.0)[:, None].abs() > 2


def build_other_window(heads):
    return lambda context: torch.arange(context.keys) > 2


def test_masks(monkeypatch):
    testing.check_mask(registered(monkeypatch, MASKS, build_window, "window"))
    with pytest.raises(AssertionError):
        testing.check_mask(registered(monkeypatch, MASKS, build_other_window, "other"))


class InputGate(HeadGate):
    def __init__(self, heads, width):
        super().__init__(heads, width)
        self.map = nn.Linear(width, heads)

    def forward(self, out, x):
        return out * self.map(x).sigmoid().permute(1, 2, 0)[..., None]


def naive_gate(out, x, gate):
    gated = torch.zeros_like(out)
    for b, h, t in torch.cartesian_prod(*map(torch.arange, out.shape[:3])).tolist():
        score = gate.map.weight[h] @ x[t, b] + gate.map.bias[h]
        gated[b, h, t] = out[b, h, t] / (1 + (-score).exp())
    return gated


class BatchGate(InputGate):
    def forward(self, out, x):
        return out * self.map(x.mean(1, keepdim=True)).sigmoid().permute(1, 2, 0)[..., None]


def test_head_gates(monkeypatch):
    testing.check_head_gate(registered(monkeypatch, GATES, InputGate, "input_gate"), naive_gate)
    with pytest.raises(AssertionError):
        testing.check_head_gate(registered(monkeypatch, GATES, BatchGate, "batch_gate"))


def test_patterns(monkeypatch):
    for name in patterns.PATTERNS:
        testing.check_pattern(name)
    wrong = patterns.Pattern("wrong", lambda view: view.position)
    monkeypatch.setitem(patterns.PATTERNS, "wrong", wrong)
    with pytest.raises(AssertionError):
        testing.check_pattern("wrong")
    undeclared = patterns.Pattern("wrong", patterns.following, looks_ahead=False)
    monkeypatch.setitem(patterns.PATTERNS, "wrong", undeclared)
    with pytest.raises(AssertionError, match="wrong looks ahead; declare it"):
        testing.check_pattern("wrong")


class Large(Term):
    """A penalty of large logits, summed over tokens; or their mean over the batch."""

    mean = False

    def loss(self, step):
        rows = step.output[0].square().sum(-1)[step.sample["target"].ne(1)]
        loss = 0.01 * (rows.mean() if self.mean else rows.sum())
        return loss, {"large_loss": loss.detach()}

    @classmethod
    def reduce_metrics(cls, logs):
        pass


@pytest.fixture
def criterions_as_before():
    """Criterions that a test registers are gone after it."""
    registry = composite.criterions
    tables = [composite.REGULARISERS, composite.TERMS, registry.CRITERION_REGISTRY]
    tables += [registry.CRITERION_DATACLASS_REGISTRY]
    before = [dict(table) for table in tables]
    yield
    for table, earlier in zip(tables, before, strict=True):
        table.clear()
        table.update(earlier)


def test_regularisers(criterions_as_before, monkeypatch):
    testing.check_regulariser("ag", ag_alpha="1")  # reads the state of its task
    assert registry.register_regulariser("large")(Large) is Large
    testing.check_regulariser("large")
    monkeypatch.setattr(Large, "mean", True)
    with pytest.raises(AssertionError):
        testing.check_regulariser("large")


@pytest.mark.parametrize("mechanism", ["una", "dna", "gaussian"])
def test_mechanisms(mechanism):
    testing.check_mechanism(mechanism)
    with pytest.raises(AssertionError, match="no mechanism 'none' is registered"):
        testing.check_mechanism("none")
