"""Entmax: its naive twin, worked numbers, gradients, learned alphas, what is refused."""

import pytest
import restore
import torch
from mechanism_cases import Case
from saved_state import save_state
from torch import Tensor
from torch.autograd import gradcheck

from fairseq_ext.attention import Attention, HeadGroup
from fairseq_ext.attention.normalisers import build_normaliser
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms import entmax as module
from fairseq_ext.mechanisms.entmax import Entmax, entmax
from fairseq_ext.mechanisms.head_gates import L0Gate
from fairseq_ext.testing import check_model
from fairseq_ext.tools import prune


def naive_entmax(scores: Tensor, masked: Tensor, absent: Tensor, normaliser, head: int) -> Tensor:
    """Weights [T, S]: tau of each row by bisection, its gradient by one exact Newton step."""
    alpha = normaliser.alpha()
    alpha = alpha[head] if isinstance(alpha, Tensor) else alpha
    weights = []
    for row, hidden in zip((alpha - 1) * scores, masked, strict=True):
        low, high = row[~hidden].max().detach() - 1, row[~hidden].max().detach()
        for _ in range(80):
            middle = (low + high) / 2
            total = ((row[~hidden] - middle).clamp(min=0) ** (1 / (alpha - 1))).sum()
            low, high = (middle, high) if total >= 1 else (low, middle)
        support = ~hidden & (row > low.detach())
        base = row[support] - low.detach()
        slope = (base ** (1 / (alpha - 1) - 1) / (alpha - 1)).sum().detach()
        tau = low.detach() + ((base ** (1 / (alpha - 1))).sum() - 1) / slope
        p = (row[support] - tau) ** (1 / (alpha - 1))
        weights.append(torch.zeros_like(row).masked_scatter(support, p))
    return torch.stack(weights)


LEARNED = {"entmax_learned": True}
CASES = [
    Case(
        "entmax",
        "normaliser",
        twin=naive_entmax,
        options=({}, {"entmax_alpha": 2.0}, {"entmax_alpha": 1.2}, LEARNED),
        flags="--encoder-normaliser entmax --entmax-learned",
        own="normaliser.alpha_offset",
    )
]
ALL = slice(None)


def weights(scores, **options):
    """[T, S] weights of one head."""
    scores = torch.as_tensor(scores, dtype=torch.float64)[None, None]
    return build_normaliser("entmax", 1, **options).double().weights(scores, None, None, ALL)[0, 0]


def close(a, b, tol=1e-9):
    torch.testing.assert_close(a, torch.as_tensor(b, dtype=a.dtype), atol=tol, rtol=0)


def test_entmax_is_in_float32_under_autocast():
    """Products of vectors would be in 16 bits, and the rows' thresholds inexact."""
    scores = torch.randn(4, 16)
    with torch.autocast("cpu", torch.bfloat16):
        found = entmax(scores, 1.3)
    assert torch.equal(found, entmax(scores, 1.3))


def test_worked_entmax():
    close(weights([[0.5, 0.0, -2.0]], entmax_alpha=2.0), [[0.75, 0.25, 0.0]])
    close(weights([[3.0, 1.0, 0.0]], entmax_alpha=2.0), [[1.0, 0.0, 0.0]])
    # two equal scores; 1.5-entmax of (a, 0): x = (a/2, 0), (x - tau)^2 sums to one
    close(weights([[1.0, 1.0, -5.0]]), [[0.5, 0.5, 0.0]])
    a = 1.0
    tau = a / 4 - ((2 - a * a / 4) ** 0.5) / 2
    close(weights([[a, 0.0]]), [[(a / 2 - tau) ** 2, tau**2]])
    near = torch.randn(3, 5, dtype=torch.float64)
    close(weights(near, entmax_alpha=1.001), near.softmax(-1), 1e-2)


@pytest.mark.parametrize("alpha", [1.05, 1.3, 1.5, 1.8, 2.0])
def test_gradients_of_entmax(alpha):
    torch.manual_seed(0)
    scores = 3 * torch.randn(2, 3, 7, dtype=torch.float64)
    heads = torch.tensor([min(alpha, 1.9), min(alpha + 0.1, 1.97)], dtype=torch.float64)[
        :, None, None
    ]
    scores.requires_grad_()
    assert gradcheck(entmax, (scores, alpha))
    assert gradcheck(entmax, (scores, heads.requires_grad_()))


@pytest.mark.parametrize("keys", [1, 2, 500])
@pytest.mark.parametrize("alpha", [1.01, 1.5, 2.0])
def test_entmax_of_hard_rows(keys, alpha):
    """Equal scores, far scores; and rows do not depend on what else is in the batch."""
    scores = torch.stack([torch.zeros(keys), 1e4 * torch.randn(keys), torch.randn(keys)])
    found = entmax(scores, alpha)
    torch.testing.assert_close(found.sum(-1), torch.ones(3))
    torch.testing.assert_close(found[0], torch.full((keys,), 1 / keys))
    for row, alone in zip(found, scores, strict=True):
        assert torch.equal(row, entmax(alone[None], alpha)[0])


@pytest.mark.parametrize("alpha", [1.01, 1.25, 1.5, 1.75, 1.99, 2.0])
def test_a_gpu_takes_enough_steps(alpha, monkeypatch):
    """A CPU, which asks when it is done, takes as many or fewer of any rows."""
    torch.manual_seed(0)
    found = []
    shapes = [torch.randn(4, 5000), -torch.rand(4, 5000).log(), -torch.rand(4, 30).log()]
    rows = [scale * x for scale in (0, 0.1, 1, 10, 1e4) for x in shapes]
    for steps in (module.STEPS, module.STEPS_UNASKED):
        monkeypatch.setattr(module, "STEPS", steps)
        found.append([entmax(row, alpha) for row in rows])
    assert all(map(torch.equal, *found))


def test_a_learned_alpha_moves_and_is_logged():
    module = Entmax(2, 1.3, True).half()
    torch.nn.init.constant_(module.alpha_offset, 1e-3)
    assert (module.alpha() - 1.3).abs().min() > 1e-4
    assert module.statistics()["alpha"]() == pytest.approx(1.3, abs=1e-3)
    torch.nn.init.constant_(module.alpha_offset, -30)
    assert module.alpha().tolist() == pytest.approx([1.01, 1.01])


def test_a_learned_alpha_comes_back_from_its_bounds():
    part = build_normaliser("entmax", 2, entmax_learned=True)
    torch.nn.init.constant_(part.alpha_offset, 9.0)
    torch.testing.assert_close(part.alpha(), torch.full((2,), 1.99))
    part.alpha().sum().backward()
    assert part.alpha_offset.grad.gt(0).all()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"entmax_alpha": 1.0}, "alpha is 1; give a number above 1"),
        ({"entmax_alpha": 2.5}, "alpha is 2.5"),
        ({"entmax_alpha": float("nan")}, "alpha is nan"),
        ({"entmax_alpha": 2.0, **LEARNED}, "at the edge"),
    ],
)
def test_bad_options_are_refused_in_a_sentence(options, said):
    with pytest.raises(UsageError, match=said):
        build_normaliser("entmax", 1, **options)


def test_learned_alphas_relative_to_something_else_are_refused(tmp_path):
    """They are no beginning, as hybrid weights are not; an alpha not learned may change."""

    def options(**own):
        return restore.make_options("roberta_una_12", encoder_normaliser="entmax", **own)

    path = save_state(tmp_path / "checkpoint.pt", options(entmax_alpha=1.3, **LEARNED))
    restore.check(path, options(entmax_alpha=1.3, **LEARNED), False)
    with pytest.raises(UsageError, match="entmax_alpha 1.3 .now 1.5.*give the same --entmax-alpha"):
        restore.check(path, options(**LEARNED), True)
    restore.check(path, options(), True)


def test_heads_that_are_left_keep_their_alpha():
    groups = [HeadGroup(n, normaliser=build_normaliser("entmax", n, **LEARNED)) for n in (2, 1)]
    full = Attention(6, 2, site="encoder", groups=groups[:1], gate=L0Gate(2)).double().eval()
    small = Attention(6, 2, site="encoder", groups=groups[1:], heads_left=1).double().eval()
    full.gate.offset.data = torch.tensor([-9.0, -1.0])
    full.groups[0].normaliser.alpha_offset.data = torch.tensor([0.4, -0.7]).double()
    prune.copy_open_heads(full, small)
    assert small.groups[0].normaliser.alpha_offset.item() == pytest.approx(-0.7)
    prune.check_same(full, small, "here")


MIXED = [
    {"encoder_normaliser": "entmax", "encoder_positions": "alibi", "encoder_head_mixer": "talking"},
    {"encoder_normaliser": "entmax", "encoder_scorer": "disentangled"},
    {"decoder_normaliser": "entmax", "decoder_positions": "t5", "head_gate": "static"},
    {"decoder_normaliser": "entmax", "decoder_scorer": "dense", "checkpoint_activations": True},
    {"decoder_normaliser": "entmax", "encoder_positions": "alibi", "encoder_gaussian_heads": "2"},
]


@pytest.mark.slow
@pytest.mark.parametrize("options", MIXED)
def test_with_other_parts(options):
    check_model(**options)
