"""Pairs of mechanisms that meet in one row of attention: worked numbers, and naive twins."""

import pytest
import torch
from mechanism_cases import load
from naive import normalise
from torch import nn
from worked_sentence import make_sentence

from fairseq_ext.attention import Attention, AttentionRecorder, HeadGroup, Inputs, build_normaliser
from fairseq_ext.attention.masks import DEFAULT_MASKS
from fairseq_ext.attention.scorers import Scorer
from fairseq_ext.mechanisms.gaussian import build_gaussian_heads
from fairseq_ext.mechanisms.roles.role_masks import (
    NEVER_RARE,
    NO_WORD,
    RoleMask,
    TokenFeatures,
    allowed_keys,
)
from fairseq_ext.mechanisms.second_pass.adversary import Adversary
from fairseq_ext.mechanisms.second_pass.passes import MASK_SCALE, AdversarialPass

KINDS = ("softmax", "doubly", "hybrid", "sinkhorn")
OPTIONS = {"hna_init": 0.3, "hna_weight": "sigmoid", "sinkhorn_sweeps": 3}


def three_tokens(left):
    """Three tokens and two of padding, before or after them."""
    columns = {
        "real": [True] * 3,
        "ends": [False] * 3,
        "begins": [True] * 3,
        "separators": [False] * 3,
        "rarity": [1] * 3,
        "parse": [(NO_WORD, NO_WORD, 0)] * 3,
    }
    blank = {"rarity": NEVER_RARE, "parse": (NO_WORD, NO_WORD, 0)}
    for name, column in columns.items():
        pads = [blank.get(name, False)] * 2
        columns[name] = torch.tensor([pads + column if left else column + pads])
    return TokenFeatures(**columns)


SCORES = [[1, 3, 9], [1, 1, 2], [9, 4, 2]]  # e^score; neighbours alone see each other, so no 9
WORKED = {
    "softmax": [[1 / 4, 3 / 4, 0], [1 / 4, 1 / 4, 1 / 2], [0, 2 / 3, 1 / 3]],
    # from columns 1/2, 1/2, - and 3/8, 1/8, 4/8 and -, 1/2, 1/2
    "doubly": [[4 / 7, 3 / 7, 0], [4 / 9, 1 / 9, 4 / 9], [0, 1 / 2, 1 / 2]],
    # 0.3 of the second and 0.7 of the first
    "hybrid": [[0.34643, 0.65357, 0], [0.30833, 0.20833, 0.48333], [0, 0.61667, 0.38333]],
}


class Given(Scorer):
    """Scores that are known."""

    def __init__(self, scores):
        super().__init__()
        self.scores = scores

    def forward(self, call):
        return self.scores


@pytest.mark.parametrize("kind", WORKED)
@pytest.mark.parametrize("left", [False, True])
def test_columns_are_normalised_over_the_queries_that_may_see_the_key(kind, left):
    scores, real = torch.full((5, 5), 9.0), slice(2, 5) if left else slice(0, 3)
    scores[real, real] = torch.tensor(SCORES).float()
    heads = HeadGroup(
        1,
        normaliser=build_normaliser(kind, 1, **OPTIONS),
        scorer=Given(scores.log().expand(1, 1, 5, 5)),
        masks=(*DEFAULT_MASKS, RoleMask(("relative",))),
    )
    module, heard = (
        Attention(4, 1, site="encoder", groups=[heads]),
        AttentionRecorder(lambda *place: [0]),
    )
    view, x = three_tokens(left), torch.randn(5, 1, 4)
    module(x, x, x, Inputs(~view.real, recorder=heard, token_features=view), need_weights=False)
    found = heard.maps["encoder", 0][0, 0, real]
    torch.testing.assert_close(found[:, real], torch.tensor(WORKED[kind]), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.sum(-1), torch.ones(3))


def attention(groups, adversary=None):
    torch.manual_seed(2)
    module = Attention(16, 4, site="encoder", groups=groups, adversary=adversary)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.6)
    return module.double()


def with_roles(kind, names, adversary=None):
    """Four heads with a normaliser, the first ones with roles."""
    counts = {(*DEFAULT_MASKS, RoleMask(names)): len(names), DEFAULT_MASKS: 4 - len(names)}
    return attention(
        [
            HeadGroup(n, normaliser=build_normaliser(kind, n, **OPTIONS), masks=masks)
            for masks, n in counts.items()
            if n
        ],
        adversary,
    )


def two_sentences():
    """The worked one of roles, padded after and before it; the rows [T, B, 16] of an input."""
    view = {
        name: torch.cat([value, value.flip(1)]) for name, value in vars(make_sentence()).items()
    }
    return TokenFeatures(**view), torch.randn(11, 2, 16, dtype=torch.double, requires_grad=True)


def twin(module, x, view, kind, names):
    """[T, B, C]: each head normalises what it may see, and of that what a second pass keeps."""
    padded_rows = torch.eye(11, dtype=torch.bool)  # nobody reads them; they have to see something
    masks = [view.real[:, None] | padded_rows] * 4
    masks[: len(names)] = [allowed_keys(name, view) for name in names]
    us = [u for group in module.groups for u in getattr(group.normaliser, "u", lambda: [0] * 4)()]
    out = []
    for b, rows in enumerate(x.unbind(1)):
        q, k, v = (p(rows) for p in (module.q_proj, module.k_proj, module.v_proj))
        heads = []
        for head, mask in enumerate(masks):
            own = slice(head * 4, head * 4 + 4)
            scores = q[:, own] @ k[:, own].T / 2
            if module.adversary is not None:
                keep = load("second_pass").keep(module.adversary, rows)[0] * view.real[b]
                seen = torch.where(mask[b], keep, 0).detach()
                logits = scores + MASK_SCALE * (keep - seen.amax(1, keepdim=True))
                scores = torch.where(mask[b], logits, 0)  # infinite elsewhere
            weights = normalise(kind, scores, ~mask[b], ~view.real[b], u=us[head], sweeps=3)
            heads.append(weights @ v[:, own])
        out.append(module.out_proj(torch.cat(heads, 1)))
    return torch.stack(out, 1)


def assert_same(found, expected, view, leaves):
    """Outputs of real rows, and every gradient."""
    found, expected = (out * view.real.T[..., None] for out in (found, expected))
    torch.testing.assert_close(found, expected)
    named = list(leaves)
    ours, theirs = (
        torch.autograd.grad(out.sin().sum(), leaves.values()) for out in (found, expected)
    )
    for name, one, other in zip(named, ours, theirs, strict=True):
        assert (one - other).norm() <= 1e-6 * other.norm() + 1e-9, name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("names", [("relative", "rare"), ("dependency", "separator", "major")])
def test_normalisers_under_roles_are_the_naive_ones(kind, names):
    module, (view, x) = with_roles(kind, names), two_sentences()
    found = module(x, x, x, Inputs(~view.real, token_features=view), need_weights=False)[0]
    leaves = {"x": x, **dict(module.named_parameters())}
    assert_same(found, twin(module, x, view, kind, names), view, leaves)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("names", [(), ("relative", "dependency")])
def test_second_passes_of_normalisers_and_roles_are_the_naive_ones(kind, names):
    """A row that keeps nothing of what its role may look at is one that is not masked."""
    module, (view, x) = with_roles(kind, names, Adversary(16)), two_sentences()
    second = AdversarialPass(0)
    masks, hide = [], second.apply_mask
    second.apply_mask = lambda keep, *row: (masks.append(keep), hide(keep, *row))[1]
    inputs = Inputs(~view.real, token_features=view, passes=(second,))
    found = module(x, x, x, inputs, need_weights=False)[0]
    for name in names:
        kept = masks[0][:, 0].bool() & view.real[:, None]
        lost = kept.any(-1) & ~(kept & allowed_keys(name, view)).any(-1)
        assert lost[view.real].any()
    leaves = {"x": x, **dict(module.named_parameters())}
    assert_same(found, twin(module, x, view, kind, names), view, leaves)


def test_a_second_pass_takes_units_out_of_hard_coded_heads():
    """What is left of a row is as dense as before; a row that loses everything keeps it."""
    module, (view, x) = (
        attention([build_gaussian_heads([-1, 1, 0, 2], [1.0] * 4)], Adversary(16)),
        two_sentences(),
    )
    inputs = Inputs(~view.real, token_features=view, passes=(AdversarialPass(0),))
    found = module(x, x, x, inputs, need_weights=False)[0]
    out = []
    for b, rows in enumerate(x.unbind(1)):
        keep = load("second_pass").keep(module.adversary, rows)[0] * view.real[b]
        left = torch.exp(MASK_SCALE * (keep - keep.detach().amax(1, keepdim=True))) * view.real[b]
        values = module.v_proj(rows)
        heads = [
            (load("gaussian").gaussian(11, 11, offset) * left) @ values[:, head * 4 : head * 4 + 4]
            for head, offset in enumerate([-1, 1, 0, 2])
        ]
        out.append(module.out_proj(torch.cat(heads, 1)))
    assert_same(found, torch.stack(out, 1), view, {"x": x, **dict(module.named_parameters())})
