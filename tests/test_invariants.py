"""What must hold for every mechanism at every site where it is allowed."""

from argparse import Namespace
from functools import cache

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models import build_model
from omegaconf import OmegaConf

from fairseq_ext.attention import Attention, Heads, Inputs, build_normaliser
from fairseq_ext.attention.normalisers import Sinkhorn

pytestmark = pytest.mark.usefixtures("every_form")

KINDS = ("softmax", "doubly", "hybrid", "sinkhorn")
HARD_CODED = {
    "gaussian": {"encoder_gaussian_heads": "all", "decoder_gaussian_heads": "all"},
    "gaussian everywhere": {
        **{f"{site}_gaussian_heads": "all" for site in ("encoder", "decoder", "cross")},
        "gaussian_ratio": 1.3,
        "gaussian_sigma": "0.7,2",
    },
    "gaussian and learned": {
        **{f"{site}_gaussian_heads": "2" for site in ("encoder", "decoder", "cross")},
    },
    "gaussian and hybrid": {"encoder_gaussian_heads": "1", "encoder_gaussian_offsets": "0"}
    | {"encoder_normaliser": "hybrid"},
    "one cross head": {"cross_layers": "last", "cross_attention_heads": 1}
    | {"encoder_gaussian_heads": "all", "decoder_gaussian_heads": "all"},
}
ROLES = {
    "roles": {"encoder_roles": "rare,separator,relative"},
    "roles as in the code": {
        "encoder_roles": "rare,none/separator/relative/none,relative,rare",
        "role_definitions": "code",
        "head_gate": True,
    },
    "roles and DNA": {"encoder_roles": "rare,relative", "encoder_normaliser": "doubly"},
    "roles and Gaussians": {"encoder_roles": "rare,relative", "encoder_gaussian_heads": "2"},
}
MODELS = {
    **{kind: {"encoder_normaliser": kind, "sinkhorn_sweeps": 3} for kind in KINDS},
    **HARD_CODED,
    **ROLES,
    "shared layers": {"share_encoder_decoder_layers": True, "encoder_normaliser": "hybrid"},
}
PAD, EOS = 1, 2
SENTENCES = [[5, 6, 7, 8, 9, EOS], [10, 11, EOS], [12, 5, 7, EOS]]
TARGETS = [[EOS, 20, 21, 22], [EOS, 23], [EOS, 24, 25, 26, 27]]


def dictionary():
    words = Dictionary()
    for i in range(40):
        words.add_symbol(f"w{i}" if i else ",", n=50 - i)
    return words


@cache
def model(kind):
    """A tiny translation model in evaluation mode, no parameter (bias) exactly initial."""
    words, torch_state = dictionary(), torch.random.get_rng_state()
    torch.manual_seed(1)
    task = Namespace(source_dictionary=words, target_dictionary=words)
    config = {"_name": "transformer_una_tiny", **MODELS[kind]}
    made = build_model(OmegaConf.create(config), task).eval()
    for parameter in made.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.05)
    torch.random.set_rng_state(torch_state)
    return made


def batch(sentences, side="right", extra=0):
    size = max(map(len, sentences)) + extra
    pads = [[PAD] * (size - len(s)) for s in sentences]
    return torch.tensor(
        [s + p if side == "right" else p + s for s, p in zip(sentences, pads, strict=True)]
    )


def real_rows(output, tokens):
    return [rows[row.ne(PAD)] for rows, row in zip(output, tokens, strict=True)]


def run(kind, sources, targets, side="right", target_side="right", extra=0):
    """Logits at the real target positions, sentence by sentence."""
    source, target = batch(sources, side, extra), batch(targets, target_side, extra)
    with torch.no_grad():
        logits, _ = model(kind)(source, None, target)
    return real_rows(logits, target)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("target_side", ["left", "right"])
@pytest.mark.parametrize("extra", [0, 3])
def test_batch_composition_and_padding_change_nothing(kind, side, target_side, extra):
    together = run(kind, SENTENCES, TARGETS, side, target_side, extra)
    alone = [run(kind, [s], [t])[0] for s, t in zip(SENTENCES, TARGETS, strict=True)]
    torch.testing.assert_close(together, alone, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("kind", MODELS)
def test_masked_equals_truncated(kind):
    """The last two tokens turned into padding give what the shorter sentence gives."""
    cut = [s[:-2] for s in SENTENCES]
    masked = run(kind, [c + [PAD, PAD] for c in cut], TARGETS)
    torch.testing.assert_close(masked, run(kind, cut, TARGETS), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("kind", MODELS)
def test_the_decoder_does_not_look_ahead(kind):
    changed = [t[:-1] + [30] for t in TARGETS]
    before, after = (run(kind, SENTENCES, t) for t in (TARGETS, changed))
    for a, b in zip(before, after, strict=True):
        torch.testing.assert_close(a[:-1], b[:-1], atol=0, rtol=0)
        assert (a[-1] - b[-1]).abs().max() > 1e-4


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_incremental_equals_teacher_forced(kind, side):
    translator, source, target = (
        model(kind),
        batch(SENTENCES, side),
        batch([t[:2] for t in TARGETS]),
    )
    with torch.no_grad():
        forced, extra = translator(source, None, target)
        encoded, state = translator.encoder(source), {}
        for t in range(target.size(1)):
            step, more = translator.decoder(target[:, : t + 1], encoded, state)
            torch.testing.assert_close(step[:, 0], forced[:, t], atol=2e-5, rtol=2e-5)
            torch.testing.assert_close(more["attn"][0][:, 0], extra["attn"][0][:, t])


def looks_ahead(kind):
    """Whether outputs at earlier positions change with a later token, under a causal mask."""
    torch.manual_seed(0)
    heads = Heads(
        4,
        normaliser=build_normaliser(kind, 4, hna_init=0.5, hna_weight="sigmoid", sinkhorn_sweeps=3),
    )
    module = Attention(16, 4, site="encoder", groups=[heads])
    x = torch.randn(12, 1, 16)
    y = x.clone()
    y[8:] += 1
    a, b = (module(z, z, z, Inputs(causal=True), need_weights=False)[0] for z in (x, y))
    return (a[:8] - b[:8]).abs().max().item() > 1e-4


def test_only_softmax_is_blind_to_the_future():
    """Why the others are refused in a decoder: a causal mask does not hide the future from them."""
    assert [looks_ahead(kind) for kind in KINDS] == [False, True, True, True]


@pytest.mark.parametrize("site", ["decoder", "cross"])
def test_dna_forced_into_a_causal_site_fails_these_tests(site, monkeypatch):
    """With the refusal switched off, teacher forcing and decoding disagree, as they must."""
    monkeypatch.setattr(Sinkhorn, "across_queries", False)
    torch.manual_seed(0)
    module = Attention(16, 4, site=site, groups=[Heads(4, normaliser=Sinkhorn())]).eval()
    x = torch.randn(5, 1, 16)
    cross = {"static_kv": True} if site == "cross" else {}
    memory = torch.randn(6, 1, 16) if site == "cross" else None
    keys = x if memory is None else memory
    forced, _ = module(x, keys, keys, Inputs(causal=site == "decoder"), need_weights=False, **cross)
    state = {}
    steps = [
        module(
            q,
            q if memory is None else memory,
            q if memory is None else memory,
            None,
            state,
            False,
            **cross,
        )[0]
        for q in x.split(1)
    ]
    assert (torch.cat(steps) - forced).abs().max() > 1e-2
