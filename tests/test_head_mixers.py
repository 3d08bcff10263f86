"""Mixers of heads: naive twins in a layer, what they go with, what is refused."""

import re

import naive
import pytest
import torch
from cases import slow_but_first
from commands import generate, read_hypotheses
from conftest import TRAIN, fairseq, train
from mechanism_cases import list_cases
from mixed_layer import D, H, T, attention

from fairseq_ext.attention import (
    MIXERS,
    Attention,
    AttentionRecorder,
    HeadGroup,
    HeadMixer,
    Inputs,
    build_normaliser,
)
from fairseq_ext.attention import normalisers as softmax
from fairseq_ext.attention.scorers import Scorer, dot_product
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.second_pass.adversary import Adversary
from fairseq_ext.mechanisms.second_pass.passes import MagnitudePass
from fairseq_ext.mechanisms.talking_heads import TalkingHeads
from fairseq_ext.testing import check_head_mixer, check_model
from fairseq_ext.testing.mechanisms import build_tiny_model
from fairseq_ext.training.training_checks import check_empty_rows, check_mixed_heads

UNA = "transformer_una_tiny"
KINDS = {case.key[1]: case.twin for case in list_cases() if case.slot == "head_mixer" and case.twin}


def heads(projection, x):
    """[T, B, C] -> [B, H, T, D]."""
    return projection(x).unflatten(-1, (H, D)).permute(1, 2, 0, 3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("smallest", [0, 1024])
@pytest.mark.parametrize("causal", [False, True])
def test_a_layer_against_the_twin(kind, smallest, causal, monkeypatch):
    """Outputs and every gradient, where torch's fused attention is used and where it is not."""
    monkeypatch.setattr(softmax, "MIN_SCORES", smallest)
    module = attention(kind)
    x = torch.randn(T, 2, H * D, dtype=torch.double, requires_grad=True)
    padding = torch.zeros(2, T, dtype=torch.bool)
    padding[1, -2:] = True
    masked = padding[:, None] | torch.full((T, T), causal).triu(1)
    q, k, v = (heads(p, x) for p in (module.q_proj, module.k_proj, module.v_proj))
    rows = [KINDS[kind](q[b], k[b], v[b], masked[b], module.mixer)[0] for b in range(2)]
    expected = module.out_proj(torch.stack(rows).permute(2, 0, 1, 3).flatten(2))
    found = module(x, x, x, Inputs(padding, causal), need_weights=False)[0]
    torch.testing.assert_close(found, expected)
    probe = torch.randn_like(x) * ~padding.T[..., None]
    wanted = [x, *module.parameters()]
    torch.testing.assert_close(*(torch.autograd.grad(o, wanted, probe) for o in (found, expected)))


@pytest.mark.parametrize("kind", KINDS)
def test_observed_maps_are_the_weights_of_values(kind):
    """Talking heads: after both projections. Differential attention: the difference."""
    module, x = attention(kind), torch.randn(T, 2, H * D).double()
    recorder = AttentionRecorder(lambda site, layer: [3, 1])
    plain = module(x, x, x, Inputs(), need_weights=False)[0]
    observed = module(x, x, x, Inputs(recorder=recorder), need_weights=False)[0]
    torch.testing.assert_close(observed, plain)
    (maps,) = recorder.maps.values()
    _, every = module(x, x, x, Inputs(), need_head_weights=True)
    torch.testing.assert_close(maps, every[[1, 3]].transpose(0, 1))
    out = every.transpose(0, 1) @ heads(module.v_proj, x)
    out = module.mixer.finish(out).permute(2, 0, 1, 3).flatten(2)
    torch.testing.assert_close(module.out_proj(out), plain)


def test_two_maps_of_a_head_have_its_role_its_slope_and_the_positions_of_their_width():
    """Rotated halves have the angles of their own width; hard-coded heads stay as they are."""
    options = {"encoder_head_mixer": "differential", "encoder_embed_dim": 32}
    check_model(encoder_roles="rare,relative", encoder_gaussian_heads="2", **options)
    for positions in ("rotary", "alibi", "t5"):
        check_model(encoder_positions=positions, encoder_normaliser="sink", **options)
    model = build_tiny_model(UNA, encoder_gaussian_heads="all", decoder_head_mixer="talking")
    assert model.encoder.layers[0].self_attn.mixer is None
    assert isinstance(model.decoder.layers[0].self_attn.mixer, TalkingHeads)


MIXED = [
    {"encoder_normaliser": "doubly", "encoder_positions": "t5", "head_gate": "input"},
    {"encoder_normaliser": "sinkformer", "checkpoint_activations": True},
    {"encoder_normaliser": "sink", "encoder_positions": "alibi"},
    {"decoder_normaliser": "sink", "decoder_positions": "rotary"},
    {"share_encoder_decoder_layers": True},
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", slow_but_first(MIXED))
def test_with_other_parts_at_all_sites(kind, options):
    sites = ("encoder", "decoder", "cross")
    check_model(**{f"{site}_head_mixer": kind for site in sites}, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_largest_scores_of_each_map_are_masked_and_counted_once(kind):
    groups = [HeadGroup(2, normaliser=build_normaliser("softmax", 2)) for _ in range(2)]
    module = attention(kind, *(groups if kind == "differential" else ()))
    x, second = torch.randn(8, 2, H * D).double(), MagnitudePass(0.25)  # 2 of 8 keys
    module(x, x, x, Inputs(passes=(second,)), need_weights=False)
    assert second.counts[0].kept.tolist() == [48, 48]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"encoder_head_mixer": "bogus"}, "encoder-head-mixer is 'bogus'; choose from none, diff"),
        ({"cross_head_mixer": "talking", "cross_gaussian_heads": "2"}, "--cross-head-mixer mixes"),
        (
            {"encoder_head_mixer": "talking", "encoder_roles": "rare"},
            "roles gives some of them maps of",
        ),
        (
            {"decoder_head_mixer": "differential", "decoder_gaussian_heads": "all"},
            "--decoder-head-mixer is given, and all heads are hard-coded",
        ),
        (
            {"encoder_head_mixer": "talking", "asa_layers": "all", "asa_per_head": True},
            "--asa-per-head masks a unit in one head",
        ),
        (
            {"encoder_head_mixer": "differential", "encoder_attention_heads": 32},
            "half of a head's width, and that is 1; give",
        ),
        (
            {"encoder_head_mixer": "differential", "encoder_attention_heads": 16}
            | {"encoder_positions": "rotary"},
            "rotary positions rotate pairs",
        ),
        ({"encoder_head_mixer": "differential", "encoder_attention_heads": 3}, "do not divide"),
    ],
)
def test_what_has_no_meaning_is_refused(options, said):
    sizes = {"encoder_embed_dim": 32, "encoder_ffn_embed_dim": 32}
    with pytest.raises(UsageError, match=said) as refused:
        build_tiny_model(UNA, **(sizes | options))
    assert "\n" not in str(refused.value)


def test_scores_that_cannot_be_split_are_refused():
    class Negative(Scorer):
        def forward(self, call):
            return -dot_product(call)

    group = HeadGroup(H, normaliser=build_normaliser("softmax", H), scorer=Negative())
    attention("talking", group)
    with pytest.raises(UsageError, match="only --encoder-scorer dot compares"):
        attention("differential", group)


@pytest.mark.parametrize("shape", [(1, H), (H,)])
def test_masks_that_differ_between_heads_are_refused(shape):
    def per_head(context):
        return torch.zeros(*shape, context.queries, context.keys, dtype=torch.bool)

    x = torch.randn(T, 2, H * D).double()
    group = HeadGroup(H, normaliser=build_normaliser("softmax", H), masks=(per_head,))
    attention("differential", group)(x, x, x)
    with pytest.raises(UsageError, match="a mask differs between heads"):
        attention("talking", group)(x, x, x)


def test_second_passes_that_mask_heads_apart_are_refused():
    for kind in KINDS:
        model = build_tiny_model(UNA, encoder_head_mixer=kind)
        check_mixed_heads(model, False)
        if kind == "differential":
            check_mixed_heads(model, True)
            continue
        with pytest.raises(UsageError, match="--asa-baseline magnitude masks a unit"):
            check_mixed_heads(model, True)
        with pytest.raises(UsageError, match="--encoder-head-mixer changes its weights"):
            check_empty_rows(model, "uniform")
    attention("differential", adversary=Adversary(H * D, H))


def test_a_mixer_without_methods_of_its_own_changes_nothing():
    """Neither the output nor the maps, which are in memory since it may mix heads."""
    mixed = Attention(H * D, H, site="encoder", mixer=HeadMixer(H)).double()
    plain = Attention(H * D, H, site="encoder").double()
    plain.load_state_dict(mixed.state_dict())
    x = torch.randn(T, 2, H * D).double()
    pair = [each(x, x, x, Inputs(), need_head_weights=True) for each in (mixed, plain)]
    torch.testing.assert_close(*pair, atol=1e-12, rtol=1e-12)


class Averaging(HeadMixer):
    """A head's map is the mean of all heads' maps; or, wrongly, it gets what it does not say."""

    masked_too = False

    def mix_weights(self, weights):
        mean = weights.mean(1, keepdim=True).expand_as(weights)
        return mean + 0.1 if self.masked_too else mean


class Undeclared(Averaging):
    """It needs maps and says the contrary, so that its outputs depend on who looks."""

    mixes_heads = False

    def join(self, parts):
        return parts[0].exp()


def naive_averaging(q, k, v, masked, mixer):
    maps = [naive.softmax_rows(a @ b.T / D**0.5, masked) for a, b in zip(q, k, strict=True)]
    mean = sum(maps) / len(maps)
    return torch.stack([mean @ each for each in v]), torch.stack([mean] * len(v))


def test_mixers_of_other_packages_are_checked(monkeypatch):
    for name, part in (("averaging", Averaging), ("undeclared", Undeclared)):
        MIXERS.register(name, package="other")(part)
        monkeypatch.setitem(MIXERS, name, MIXERS.pop(name))  # until the test ends
    check_head_mixer("averaging", naive_averaging)
    with pytest.raises(AssertionError, match="not close"):
        check_head_mixer("averaging", lambda q, k, *rest: naive_averaging(k, q, *rest))
    with pytest.raises(AssertionError):
        check_head_mixer("undeclared")
    monkeypatch.setattr(Averaging, "masked_too", True)
    with pytest.raises(AssertionError, match="masked keys have weights"):
        check_head_mixer("averaging")


def test_trained_translated_with_and_continued_by_commands(data_bin, tmp_path):
    """Checkpoints of a model without mixers are read; one with other mixers is not continued."""
    small = "--encoder-layers 1 --decoder-layers 1 --log-format json".split()
    plain = train(data_bin, UNA, tmp_path / "plain", 1, *small)
    begun = [*small, "--restore-file", plain, "--reset-optimizer", "--reset-dataloader"]
    flags = "--decoder-head-mixer talking --cross-head-mixer differential --log-interval 1".split()
    log = tmp_path / "log.jsonl"
    arch, folder = "transformer_differential_tiny", tmp_path / "mixed"
    mixed = train(data_bin, arch, folder, 3, *begun, *flags, "--log-file", log)
    values = re.findall(r'"(?:train_)?(\w+)_lambda": "?([\d.]+)', log.read_text("utf-8"))
    assert {name for name, _ in values} == {"encoder0", "cross0"}
    assert all(0.1 < float(value) < 0.3 for _, value in values)
    assert len(read_hypotheses(generate(data_bin, mixed))) == 100
    again = [*TRAIN, "--arch", arch, "--save-dir", folder, "--max-update", 4, *small]
    refused = fairseq("train", data_bin, *again, check=False)
    assert refused.returncode == 1
    assert "decoder_head_mixer talking (now none)" in refused.stdout + refused.stderr
