"""What must hold for every mechanism at every site where it is allowed."""

from argparse import Namespace
from functools import cache

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models import build_model
from invariants import (
    SENTENCES,
    TARGETS,
    assert_batches_change_nothing,
    assert_decoding_is_teacher_forcing,
    assert_masked_is_truncated,
    run,
)
from mechanism_cases import list_cases
from omegaconf import OmegaConf

from fairseq_ext.attention import Attention, HeadGroup, Inputs
from fairseq_ext.mechanisms.doubly import Sinkhorn

pytestmark = pytest.mark.usefixtures("every_form")

KINDS = {case.key[1]: case for case in list_cases() if case.slot == "normaliser"}
MODELS = {
    **{kind: {"encoder_normaliser": kind, **case.options[0]} for kind, case in KINDS.items()},
    **{name: options for case in list_cases() for name, options in case.models.items()},
    "shared layers": {"share_encoder_decoder_layers": True, "encoder_normaliser": "hybrid"},
}


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


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("target_side", ["left", "right"])
@pytest.mark.parametrize("extra", [0, 3])
def test_batch_composition_and_padding_change_nothing(kind, side, target_side, extra):
    padding = {"side": side, "target_side": target_side, "extra": extra}
    assert_batches_change_nothing(model(kind), SENTENCES, TARGETS, **padding)


@pytest.mark.parametrize("kind", MODELS)
def test_masked_equals_truncated(kind):
    assert_masked_is_truncated(model(kind), SENTENCES, TARGETS)


@pytest.mark.parametrize("kind", MODELS)
def test_the_decoder_does_not_look_ahead(kind):
    changed = [t[:-1] + [30] for t in TARGETS]
    before, after = (run(model(kind), SENTENCES, t) for t in (TARGETS, changed))
    for a, b in zip(before, after, strict=True):
        torch.testing.assert_close(a[:-1], b[:-1], atol=0, rtol=0)
        assert (a[-1] - b[-1]).abs().max() > 1e-4


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_incremental_equals_teacher_forced(kind, side):
    assert_decoding_is_teacher_forcing(model(kind), SENTENCES, TARGETS, side)


def looks_ahead(kind):
    """Whether outputs at earlier positions change with a later token, under a causal mask."""
    torch.manual_seed(0)
    heads = HeadGroup(4, normaliser=KINDS[kind].build(4))
    module = Attention(16, 4, site="encoder", groups=[heads])
    x = torch.randn(12, 1, 16)
    y = x.clone()
    y[8:] += 1
    a, b = (module(z, z, z, Inputs(causal=True), need_weights=False)[0] for z in (x, y))
    return (a[:8] - b[:8]).abs().max().item() > 1e-4


def test_what_normalises_over_queries_sees_the_future(monkeypatch):
    """Why it is refused in a decoder: a causal mask does not hide the future from them."""
    kinds = {type(case.build(1)): kind for kind, case in KINDS.items()}
    across = {kind for kind, case in KINDS.items() if case.build(1).across_queries}
    for normaliser in kinds:
        monkeypatch.setattr(normaliser, "across_queries", False)
    assert {kind for kind in KINDS if looks_ahead(kind)} == across


@pytest.mark.parametrize("site", ["decoder", "cross"])
def test_dna_forced_into_a_causal_site_fails_these_tests(site, monkeypatch):
    """With the refusal switched off, teacher forcing and decoding disagree, as they must."""
    monkeypatch.setattr(Sinkhorn, "across_queries", False)
    torch.manual_seed(0)
    module = Attention(16, 4, site=site, groups=[HeadGroup(4, normaliser=Sinkhorn())]).eval()
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
