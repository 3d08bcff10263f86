"""Adversarial self-attention (Wu et al. 2023): adversaries, second passes and their gradients."""

import math
from argparse import Namespace
from functools import partial
from itertools import product

import pytest
import torch
from mechanism_cases import Case
from torch import Tensor, nn
from torch.nn import functional

from fairseq_ext.attention import Attention, HeadGroup, Inputs, head_groups, normalisers
from fairseq_ext.attention.normalisers import Softmax
from fairseq_ext.criterions.divergence import (
    Divergence,
    Predictions,
    compare_across_batch,
    kl,
    squared_difference,
    symmetric_kl,
)
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.second_pass.adversary import (
    Adversary,
    parse_adversary_layers,
    straight_through_step,
)
from fairseq_ext.mechanisms.second_pass.passes import (
    EMPTY_ROWS,
    AdversarialPass,
    BernoulliPass,
    MagnitudePass,
)
from fairseq_ext.training.training_checks import check_adversaries

EXACT = {"rtol": 0, "atol": 1e-12}
CLOSE = {"rtol": 1e-8, "atol": 1e-10}
EMPTY = pytest.mark.parametrize("empty", EMPTY_ROWS)


CASES = [
    Case(
        "asa",
        "second pass",
        flags="--asa-layers all",
        paper=True,
        neutral={"asa_alpha": 0.0, "asa_tau": 0.0},
        own="adversary.query.weight",
        encoder_only=True,
    )
]


def keep(adversary, x: Tensor, reverse: bool = True) -> Tensor:
    """m [h, T, T] of one sentence [T, C]: 1 where scores are above 0. Its gradient is that of their
    sigmoid, with the opposite sign if it is to be reversed."""
    q, k = (x.detach() @ map_.weight.T + map_.bias for map_ in (adversary.query, adversary.key))
    size = q.size(1) // adversary.heads
    masks = []
    for h in range(adversary.heads):
        own = slice(h * size, (h + 1) * size)
        soft = torch.sigmoid(torch.einsum("ic,jc->ij", q[:, own], k[:, own]) / size**0.5)
        change = soft.detach() - soft if reverse else soft - soft.detach()
        masks.append((soft > 0.5).to(soft) + change)
    return torch.stack(masks)


def masked_row(scores: Tensor, m: Tensor, padding: Tensor, empty: str) -> Tensor:
    """Weights [S] of a query in a second pass; m [S] is 0 at padding."""
    lost = not m.any()
    if empty == "unmasked":
        logits = scores + 1e4 * (m if lost else m - 1)
        e = torch.where(padding, 0, (logits - logits[~padding].max()).exp())
    else:
        logits = (torch.where(m > 0, scores, 0) if empty == "uniform" else scores) + 1e4 * (m - 1)
        e = (logits - logits.max()).exp()
    return e / e.sum()


def second_pass(
    module, x: Tensor, padding: Tensor, empty: str = "unmasked", padded_rows: bool = False
) -> tuple[Tensor, Tensor]:
    """The output of attention with an adversary in a second pass, of x [B, T, C], and the number
    of units that are kept [B]."""
    width = x.size(-1) // module.num_heads
    outputs, kept = [], []
    for sentence, pads in zip(x, padding, strict=True):
        m = keep(module.adversary, sentence)
        m = torch.stack([m[..., j] * (not pads[j]) for j in range(len(pads))], -1)
        q, k, v = (p(sentence) for p in (module.q_proj, module.k_proj, module.v_proj))
        heads = []
        for h in range(module.num_heads):
            own = slice(h * width, (h + 1) * width)
            scores = torch.einsum("ic,jc->ij", q[:, own], k[:, own]) / width**0.5
            shared = m[h] if len(m) > 1 else m[0]
            w = [masked_row(*row, pads, empty) for row in zip(scores, shared, strict=True)]
            heads.append(torch.stack(w) @ v[:, own])
        outputs.append(module.out_proj(torch.cat(heads, 1)))
        counted = [i for i in range(len(pads)) if padded_rows or not pads[i]]
        kept.append(sum(mask[i].sum() for mask in m for i in counted) / len(m))
    return torch.stack(outputs), torch.stack(kept)


def numbers(*values, **options):
    return torch.tensor(values, dtype=torch.float64, **options)


def weighted(x):
    """A sum with a weight of its own for each number."""
    return (x * torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view_as(x)).sum()


# The worked examples of the notes, measured on the released code.


def test_step():
    x = numbers(-2, -0.1, 0, 0.1, 3, -1e4, requires_grad=True)
    m = straight_through_step(x)
    assert m.tolist() == [0, 0, 0.5, 1, 1, 0]
    expected = numbers(0.10499, 0.24938, 0.25, 0.24938, 0.04518, 0)
    torch.testing.assert_close(torch.autograd.grad(m.sum(), x)[0], expected, atol=5e-6, rtol=0)


def row(m, empty):
    """Weights of scores 1, 2, 3 without padding, for m."""
    scores, closed = EMPTY_ROWS[empty](
        m.expand(1, 1, 1, -1), numbers(1, 2, 3).expand(1, 1, 1, -1), None
    )
    return Softmax().weights(scores, closed, None, slice(None)).flatten()


SOFTMAX = [0.0900, 0.2447, 0.6652]


@EMPTY
def test_a_row_of_attention(empty):
    nothing = [1 / 3] * 3 if empty == "uniform" else SOFTMAX
    for m, expected in (
        ((1, 1, 1), SOFTMAX),
        ((1, 0, 1), [0.1192, 0, 0.8808]),
        ((0,) * 3, nothing),
    ):
        torch.testing.assert_close(row(numbers(*m), empty), numbers(*expected), atol=5e-5, rtol=0)


@pytest.mark.parametrize(
    ("empty", "m", "out", "gradient"),
    [
        *[(e, (1, 0, 1), 3.6424, (-3149.81, 0, 3149.81)) for e in EMPTY_ROWS],
        ("uniform", (0, 0, 0), 2.3333, (-4444.4, -1111.1, 5555.6)),
        # 1e4 w_j (v_j - out)
        *[(e, (0, 0, 0), 3.2405, (-2017.1, -3035.7, 5052.8)) for e in ("unmasked", "scores")],
    ],
)
def test_the_gradient_to_a_row(empty, m, out, gradient):
    m = numbers(*m, requires_grad=True)
    found = row(m, empty) @ numbers(1, 2, 4)
    assert found.item() == pytest.approx(out, abs=5e-5)
    (found,) = torch.autograd.grad(found, m)
    torch.testing.assert_close(found, numbers(*gradient), atol=0.06, rtol=0)


def seen(second):
    """The masks that a second pass makes, as they are made."""
    masks, hide = [], second.apply_mask
    second.apply_mask = lambda keep, *row: (masks.append(keep), hide(keep, *row))[1]
    return masks


def alone(module, second, x, padding=None):
    """What attention makes of x [B, T, C] in a second pass without a first one."""
    x = x.transpose(0, 1)
    inputs = Inputs(padding, passes=(second,))
    return module(x, x, x, inputs, need_weights=False)[0].transpose(0, 1)


def test_an_adversary_of_two_dimensions():
    module = Attention(2, 1, site="encoder", adversary=Adversary(2)).double()
    with torch.no_grad():
        for linear in (module.adversary.query, module.adversary.key):
            linear.weight.copy_(torch.eye(2))
    h = numbers([1, 0], [0, 1], [-1, 0])[None]
    second = AdversarialPass(0, padded_rows=True)
    masks = seen(second)
    alone(module, second, h)
    (0.3**2 * second.counts[0].kept.sum()).backward()
    assert masks[0][0, 0].tolist() == [[1, 0.5, 0], [0.5, 1, 0.5], [0, 0.5, 1]]
    assert 0.3**2 * second.counts[0].kept.item() == pytest.approx(0.45)
    query = module.adversary.query
    torch.testing.assert_close(query.bias.grad, numbers(0, -0.04590), atol=5e-6, rtol=0)
    assert query.weight.grad[1, 1].item() == pytest.approx(-0.01408, abs=5e-6)
    second.counts = {}
    alone(module, second, h, torch.tensor([[False, False, True]]))
    assert masks[1][0, 0].tolist() == [[1, 0.5, 0], [0.5, 1, 0], [0, 0.5, 0]]
    assert second.counts[0].kept.item() == 3.5


def test_divergence_of_scores():
    clean, other = numbers([2, 0], [0, 1]), numbers([0, 0], [1, 0])
    for pairs in (1, 2):  # dim 0 is 2 of [2, 2, 2] as well
        both = [[Predictions(x.repeat(pairs, 1))] for x in (clean, other)]
        assert Divergence(symmetric_kl).total(*both) / 2 == pytest.approx(0.421457 * pairs, 1e-5)
    p, q = clean.softmax(-1), other.softmax(-1)
    torch.testing.assert_close(kl(clean, other), (p * (p / q).log()).sum(-1))
    torch.testing.assert_close(
        symmetric_kl(clean, other), (kl(clean, other) + kl(other, clean)) / 2
    )


@pytest.mark.parametrize(
    ("clean", "other", "expected"),
    [([1, 2, 3], [1, 2, 4], 0.029759), ([1, 2, 3], [6, 7, 8], 0), ([1], [4], 0)],
)
def test_divergence_of_numbers(clean, other, expected):
    clean, other = numbers(*clean)[:, None], numbers(*other)[:, None]
    both = [[Predictions(x, are_numbers=True)] for x in (clean, other)]
    released = Divergence(symmetric_kl, compare_across_batch(symmetric_kl))
    assert released.total(*both) / len(clean) == pytest.approx(expected, abs=5e-7)
    ours = (clean - other).square().sum()
    torch.testing.assert_close(Divergence(symmetric_kl, squared_difference).total(*both), ours)


# Attention against the naive twin.

PADDING = torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1], [1, 0, 0, 0, 0]]).bool()


def attention(heads=1, groups=None):
    """One whose adversary masks some rows as a whole, and others in part."""
    torch.manual_seed(5)
    module = Attention(8, 2, site="encoder", adversary=Adversary(8, heads), groups=groups)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.4)
    return module.double(), torch.randn(3, 5, 8).double()


def gradients(function, module, x):
    """Two results, and the gradients of parameters and input from both of them."""
    x = x.clone().requires_grad_()
    out, kept = function(x)
    named = {"x": x, **dict(module.named_parameters())}
    loss = weighted(out) + 0.3 * weighted(kept)
    return out, kept, dict(zip(named, torch.autograd.grad(loss, named.values()), strict=True))


@EMPTY
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("padded_rows", [False, True])
@pytest.mark.parametrize("padding", [PADDING, None], ids=["padded", "not padded"])
def test_a_second_pass_is_the_naive_one(empty, heads, padded_rows, padding):
    module, x = attention(heads)
    second = AdversarialPass(0, empty_rows=empty, padded_rows=padded_rows)
    masks = seen(second)

    def ours(x):
        second.counts = {}
        return alone(module, second, x, padding), second.counts[0].kept

    absent = torch.zeros_like(PADDING) if padding is None else padding
    twin = partial(second_pass, module, padding=absent, empty=empty, padded_rows=padded_rows)
    found, expected = gradients(ours, module, x), gradients(twin, module, x)
    torch.testing.assert_close(found[:2], expected[:2], **EXACT)
    torch.testing.assert_close(found[2], expected[2], **CLOSE)
    kept = masks[0][~absent[:, None].expand(-1, heads, -1)].sum(-1)
    assert 0 in kept and ((kept > 0) & (kept < 3)).any()  # a test of both kinds of rows
    assert all(g.any() for n, g in found[2].items() if n != "k_proj.bias")


@EMPTY
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("padding", [PADDING, None], ids=["padded", "not padded"])
def test_a_kernel_adds_masks_of_units(empty, heads, padding, monkeypatch):
    """It is used on GPUs, unless rows that keep no key change their scores."""
    kernel, used = functional.scaled_dot_product_attention, []

    def attend(*args, **options):
        used.append(args[3])
        return kernel(*args, **options)

    module, x = attention(heads)
    absent = torch.zeros_like(PADDING) if padding is None else padding
    second = AdversarialPass(0, empty_rows=empty)

    def ours(x):
        second.counts = {}
        return alone(module, second, x, padding), second.counts[0].kept

    monkeypatch.setattr(functional, "scaled_dot_product_attention", attend)
    monkeypatch.setattr(normalisers, "MIN_SCORES", 0)
    monkeypatch.setattr(head_groups, "WITHOUT_SLOPES", ())
    found = gradients(ours, module, x)
    assert [x.requires_grad for x in used] == [True] * (empty != "uniform")
    twin = partial(second_pass, module, padding=absent, empty=empty)
    expected = gradients(twin, module, x)
    torch.testing.assert_close(found[:2], expected[:2], **EXACT)
    torch.testing.assert_close(found[2], expected[2], **CLOSE)


@pytest.mark.parametrize("heads", [1, 2])
def test_a_mask_for_all_heads_or_each(heads):
    """And that a group of heads gets those of its own."""
    together, x = attention(heads)
    apart, _ = attention(heads, [HeadGroup(1, normaliser=Softmax()) for _ in range(2)])
    second = AdversarialPass(0)
    masks = seen(second)
    results = [alone(module, second, x, PADDING) for module in (together, apart)]
    torch.testing.assert_close(*results, **EXACT)
    assert masks[0].shape == (3, heads, 5, 5)
    assert heads == 1 or not torch.equal(*masks[0].unbind(1))


class Seen(Softmax):
    """Softmax that remembers the weights it made."""

    def weights(self, *given):
        self.made = super().weights(*given)
        return self.made


@EMPTY
def test_padding_is_attended_by_rows_masked_as_a_whole_alone(empty):
    normaliser = Seen()
    module, x = attention(groups=[HeadGroup(2, normaliser=normaliser)])
    second = AdversarialPass(0, empty_rows=empty)
    masks = seen(second)
    alone(module, second, x, PADDING)
    attends = (normaliser.made * PADDING[:, None, None]).sum(-1) > 0
    lost = masks[0].sum(-1).eq(0) & PADDING.any(-1)[:, None, None]
    assert lost.any()
    assert torch.equal(attends, lost.expand_as(attends) & (empty != "unmasked"))


def test_both_passes_of_attention():
    module, x = attention()
    second, rows = AdversarialPass(0), x.transpose(0, 1)
    both = torch.cat([rows, rows], 1)
    out, _ = module(both, both, both, Inputs(PADDING, passes=(None, second)), need_weights=False)
    clean, _ = module(rows, rows, rows, Inputs(PADDING), need_weights=False)
    expected = torch.cat([clean, alone(module, AdversarialPass(0), x, PADDING).transpose(0, 1)], 1)
    torch.testing.assert_close(out, expected, **EXACT)


@pytest.mark.parametrize("heads", [1, 2])
def test_sampled_masks(heads):
    adversary = Adversary(8, heads).double()
    for linear, bias in ((adversary.query, 0.5), (adversary.key, -0.5)):
        nn.init.zeros_(linear.weight)
        nn.init.constant_(linear.bias, bias)
    x = torch.randn(100, 20, 8).double()
    score = -0.25 * (8 / heads) ** 0.5
    torch.manual_seed(0)
    m = adversary(x, sample=True)
    rate = 1 / (1 + math.exp(-score))
    assert m.mean().item() == pytest.approx(rate, abs=0.01) and set(m.unique().tolist()) == {0, 1}
    torch.manual_seed(0)
    u = torch.rand_like(m)
    soft = (score + u.log() - (1 - u).log()).sigmoid()
    assert torch.equal(m, (soft > 0.5).double())
    (found,) = torch.autograd.grad(m.sum(), adversary.query.bias)
    slope = (soft * (1 - soft)).sum((0, 2, 3)) * -0.5 / (8 / heads) ** 0.5
    torch.testing.assert_close(found, slope.repeat_interleave(8 // heads), rtol=1e-4, atol=0)
    assert not torch.equal(m, adversary(x, sample=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@EMPTY
@pytest.mark.parametrize("heads", [1, 2])
def test_all_numbers_are_finite(dtype, empty, heads):
    """Of a large attention too, with rows masked as a whole and a sentence of padding."""
    module, x = attention(heads)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter *= 10 if "adversary" not in name else 1
    module, x = module.to(dtype), x.to(dtype).requires_grad_()
    padding = torch.cat([PADDING[:2], torch.ones_like(PADDING[2:])])
    second = AdversarialPass(0, empty_rows=empty)
    out, kept = alone(module, second, x, padding), second.counts[0].kept
    assert out.dtype == dtype and kept.dtype == torch.float32 and kept[2] == 0
    (out.float().mean() + kept.sum()).backward()
    given = [x, *module.parameters()]
    assert all(torch.isfinite(y).all() for y in (out, kept, *(y.grad for y in given)))


# Naive masks.


@pytest.mark.parametrize("rate", [0, 0.1, 0.75, 1])
def test_bernoulli(rate):
    """One mask for all heads, another one in each sentence and each time."""
    normaliser = Seen()
    module = Attention(8, 2, site="encoder", groups=[HeadGroup(2, normaliser=normaliser)])
    second, x = BernoulliPass(rate), torch.randn(20, 60, 8)
    masks = seen(second)
    padding = torch.arange(60).expand(20, -1) >= torch.randint(30, 61, (20, 1))
    for _ in range(2):
        second.counts = {}
        alone(module, second, x, padding)
    real = ~padding[:, None] & ~padding[:, :, None]
    kept = masks[1][:, 0][real]
    assert kept.mean().item() == pytest.approx(1 - rate, abs=0.01)
    assert second.counts[0].kept.sum() == kept.sum()
    assert second.counts[0].units.sum() == real.sum() == len(kept)
    if 0 < rate < 1:
        attended = normaliser.made > 0
        assert masks[1].size(1) == 1
        assert torch.equal(attended, masks[1].bool().expand_as(attended))
        assert not torch.equal(masks[0], masks[1])
        assert not torch.equal(masks[1][0, :, :30, :30], masks[1][1, :, :30, :30])


@pytest.mark.parametrize(
    ("share", "empty"), [*product([0, 0.1, 0.4, 0.7], EMPTY_ROWS), (1, "unmasked")]
)
@pytest.mark.parametrize("groups", [1, 2])
def test_magnitude(share, empty, groups):
    """The largest of a row's scores are masked, what remains is a softmax; padding counts not."""
    spies = [Seen() for _ in range(groups)]
    module, x = attention(groups=[HeadGroup(2 // groups, normaliser=spy) for spy in spies])
    module.adversary = None
    alone(module, MagnitudePass(share, empty_rows=empty), x, PADDING)
    found = torch.cat([spy.made for spy in spies], 1)
    q, k = (map_(x).view(3, 5, 2, 4) for map_ in (module.q_proj, module.k_proj))
    for b, h, i in torch.cartesian_prod(*map(torch.arange, (3, 2, 5))).tolist():
        scores = {j: (q[b, i, h] @ k[b, j, h]).item() / 2 for j in range(5) if not PADDING[b, j]}
        order = sorted(scores, key=scores.get)
        left = order[: len(order) - round(share * len(order))] or order
        total = sum(math.exp(scores[j]) for j in left)
        expected = [math.exp(scores[j]) / total if j in left else 0 for j in range(5)]
        torch.testing.assert_close(found[b, h, i], numbers(*expected), **EXACT)


# Options.


@pytest.mark.parametrize(
    ("text", "layers", "expected"),
    [
        *[("none", 4, []), ("all", 4, [0, 1, 2, 3]), ("upper", 4, [2, 3]), ("upper", 5, [2, 3, 4])],
        *[("upper", 1, [0]), ("3", 4, [3]), ("3, 1", 4, [1, 3]), ("1,1", 4, [1])],
    ],
)
def test_layers_in_words(text, layers, expected):
    assert parse_adversary_layers(text, layers) == expected


@pytest.mark.parametrize("text", ["4", "-1", "", "lower", "1,", "1,x", "all,1", "1-3"])
def test_refused_layers(text):
    message = f"--asa-layers is '{text}'; give none, all, upper, or some of the layers 0, 1, 2, 3"
    with pytest.raises(UsageError, match=message):
        parse_adversary_layers(text, 4)


def test_adversaries_need_a_criterion_and_it_needs_them(caplog):
    model, plain = nn.ModuleList([Adversary(4)]), nn.Linear(4, 4)
    asa, other = Namespace(uses_adversaries=True), Namespace()
    with pytest.raises(UsageError, match="--criterion masked_lm .* --asa-layers"):
        check_adversaries(model, other, "masked_lm", 0)
    with pytest.raises(UsageError, match="--criterion masked_lm_asa .* adversaries; .* --asa-l"):
        check_adversaries(plain, asa, "masked_lm_asa", 0)
    check_adversaries(plain, other, "masked_lm", 0.1)
    check_adversaries(model, asa, "masked_lm_asa", 0)
    assert not caplog.records
    check_adversaries(model, asa, "masked_lm_asa", 0.1)
    assert "--clip-norm 0.1" in caplog.text and "give --clip-norm 0" in caplog.text
