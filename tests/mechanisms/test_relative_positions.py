"""Positions in attention: naive twins, what embeddings they replace, decoding, what is refused."""

import math

import pytest
import torch
from cases import slow_but_first
from mechanism_cases import Case
from naive import rows

from fairseq_ext.attention import Attention, HeadGroup, Inputs, build_normaliser
from fairseq_ext.attention import normalisers as softmax
from fairseq_ext.attention.context import AttentionContext
from fairseq_ext.attention.positions import POSITIONS
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.relative_positions import Alibi, Buckets
from fairseq_ext.testing import check_model
from fairseq_ext.testing.invariants import run
from fairseq_ext.testing.mechanisms import build_tiny_model

CASES = [
    Case("alibi", "positions", flags="--encoder-positions alibi"),
    Case("t5", "positions", flags="--encoder-positions t5", own="positions.table"),
    Case(
        "rotary",
        "positions",
        flags="--encoder-positions rotary",
        apart=("scorer",),  # which has no queries and keys that it could turn
        biases={},  # they are turned
    ),
]
KINDS = [case.name for case in CASES]
H, D, T = 3, 4, 9


def t5_bucket(distance: int, causal: bool, buckets: int, farthest: int) -> int:
    """The bucket of a distance j - i (Raffel et al. 2020): single ones, then ever wider ones."""
    first = 0
    if not causal:
        buckets //= 2
        first = buckets if distance > 0 else 0
    away = max(-distance, 0) if causal else abs(distance)
    single = buckets // 2
    if away < single:
        return first + away
    share = math.log(away / single) / math.log(farthest / single)
    return first + min(single + int(share * (buckets - single)), buckets - 1)


def rotate(x, angle):
    """[D] turned pair by pair."""
    out = torch.zeros_like(x)
    for n in range(0, len(x), 2):
        theta = angle * 10000 ** (-n / len(x))
        out = out + torch.nn.functional.pad(
            torch.stack(
                [
                    math.cos(theta) * x[n] - math.sin(theta) * x[n + 1],
                    math.sin(theta) * x[n] + math.cos(theta) * x[n + 1],
                ]
            ),
            (n, len(x) - n - 2),
        )
    return out


def score(kind, positions, q, k, i, j, head, causal):
    if kind == "rotary":
        return rotate(q, i) @ rotate(k, j) / D**0.5
    if kind == "alibi":
        return q @ k / D**0.5 - positions.slopes()[head] * abs(j - i)
    bucket = t5_bucket(j - i, causal, positions.table.size(0), positions.distance)
    return q @ k / D**0.5 + positions.table[bucket, head]


def naive_attention(kind, module, x, padding, causal):
    """[T, B, C] -> [T, B, C], key by key."""
    positions = module.groups[0].positions
    outputs = []
    for b in range(x.size(1)):
        q, k, v = (p(x[:, b]).view(T, H, D) for p in (module.q_proj, module.k_proj, module.v_proj))
        heads = []
        for h in range(H):
            e = torch.zeros(T, T, dtype=x.dtype)
            for i in range(T):
                for j in range(i + 1 if causal else T):
                    if not padding[b, j]:
                        s = score(kind, positions, q[i, h], k[j, h], i, j, h, causal)
                        place = torch.zeros_like(e)
                        place[i, j] = 1
                        e = e + place * s.exp()
            heads.append(rows(e) @ v[:, h])
        outputs.append(torch.cat(heads, -1))
    return module.out_proj(torch.stack(outputs, 1))


def attention(kind, normaliser="softmax", **options):
    torch.manual_seed(0)
    positions = POSITIONS.build(kind, H, **({"t5_buckets": 8, "t5_distance": 16} | options))
    group = HeadGroup(H, normaliser=build_normaliser(normaliser, H), positions=positions)
    module = Attention(H * D, H, site="encoder", groups=[group]).double()
    for parameter in positions.parameters():
        torch.nn.init.normal_(parameter)
    return module


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("smallest", [0, 1024])
def test_twin(kind, causal, smallest, monkeypatch):
    """Outputs and every gradient, on the fused kernel and on maps, with padding."""
    monkeypatch.setattr(softmax, "MIN_SCORES", smallest)
    module = attention(kind)
    x = torch.randn(T, 2, H * D, dtype=torch.double, requires_grad=True)
    padding = torch.zeros(2, T, dtype=torch.bool)
    padding[1, -2:] = True
    inputs = Inputs(padding, causal)
    real = ~padding.T[..., None]
    pair = [
        module(x, x, x, inputs, need_weights=False)[0] * real,
        naive_attention(kind, module, x, padding, causal) * real,
    ]
    torch.testing.assert_close(*pair)
    probe, wanted = torch.randn_like(x), [x, *module.parameters()]
    grads = [torch.autograd.grad(out, wanted, probe) for out in pair]
    torch.testing.assert_close(*grads, atol=1e-9, rtol=1e-6)


def test_fixed_positions_stay_on_the_fused_kernel(monkeypatch):
    monkeypatch.setattr(softmax, "MIN_SCORES", 0)
    for kind, normaliser in (("alibi", "softmax"), ("rotary", "softmax"), ("alibi", "sink")):
        module = attention(kind, normaliser)
        monkeypatch.setattr(module.groups[0].normaliser, "weights", None)
        x = torch.randn(T, 2, H * D).double()
        assert module(x, x, x, Inputs(causal=True), need_weights=False)[0].isfinite().all()


def test_worked_slopes():
    assert Alibi(8).slopes() == [2.0**-n for n in range(1, 9)]
    assert Alibi(6).slopes() == pytest.approx([2**-n for n in (2, 4, 6, 8, 1, 3)])
    assert Alibi(1).slopes() == [2.0**-8]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (8, 16), (4, 100)])
def test_buckets_are_those_of_t5(causal, buckets, distance):
    distances = torch.arange(-300, 300)
    ours = Buckets(1, buckets, distance).buckets(distances, causal)
    theirs = [t5_bucket(int(d), causal, buckets, distance) for d in distances]
    assert ours.tolist() == theirs
    assert max(theirs) == buckets - 1 and min(theirs) == 0


EVERY = [
    {f"{side}_positions": kind} for kind in (*KINDS, "learned") for side in ("encoder", "decoder")
]
MIXED = [
    {"encoder_positions": "rotary", "encoder_normaliser": "doubly", "encoder_roles": "relative"},
    {"encoder_positions": "t5", "encoder_normaliser": "sinkformer", "checkpoint_activations": True},
    {"encoder_positions": "alibi", "encoder_gaussian_heads": "2", "decoder_normaliser": "sink"},
    {"decoder_positions": "rotary", "decoder_normaliser": "sink", "decoder_gaussian_heads": "2"},
    {"decoder_positions": "t5", "share_encoder_decoder_layers": True, "head_gate": "static"},
]


@pytest.mark.parametrize("smallest", slow_but_first([0, 1024]))
def test_invariants(smallest, monkeypatch):
    """Padding on either side, batches, no look-ahead, and decoding token by token."""
    monkeypatch.setattr(softmax, "MIN_SCORES", smallest)
    for options in (*EVERY, *MIXED):
        check_model(**options)
    for kind in KINDS:
        check_model("roberta_una_tiny", encoder_positions=kind)


@pytest.mark.parametrize("kind", KINDS)
def test_positions_matter_and_embeddings_are_gone(kind):
    both = {"encoder_positions": kind, "decoder_positions": kind}
    model = build_tiny_model("transformer_una_tiny", **both)
    assert model.encoder.embed_positions is None and model.decoder.embed_positions is None
    none = build_tiny_model("transformer_una_tiny", **dict.fromkeys(both, "none"))
    for network, differs in ((model, True), (none, False)):
        texts = [5, 6, 7, 2], [7, 6, 5, 2]
        one, other = (run(network, [text], [[2, 5, 6]])[0] for text in texts)
        assert ((one - other).abs().max() > 1e-3) == differs


@pytest.mark.parametrize(
    ("options", "learned"),
    [
        ({}, False),
        ({"encoder_learned_pos": True}, True),
        ({"encoder_positions": "learned"}, True),
        ({"encoder_positions": "sinusoidal", "encoder_learned_pos": True}, False),
        ({"encoder_positions": "sinusoidal", "no_token_positional_embeddings": True}, False),
    ],
)
def test_embedded_positions(options, learned):
    model = build_tiny_model("transformer_una_tiny", **options)
    assert ("encoder.embed_positions.weight" in model.state_dict()) == learned
    assert model.encoder.embed_positions is not None


def test_layers_share_the_biases_of_t5():
    model = build_tiny_model("transformer_una_tiny", encoder_positions="t5", decoder_positions="t5")
    tables = {
        id(layer.self_attn.groups[0].positions.table): side
        for side in (model.encoder, model.decoder)
        for layer in side.layers
    }
    assert len(tables) == 2
    names = [name for name, _ in model.named_parameters() if name.endswith("table")]
    assert len(names) == 2
    assert sum(name.endswith("table") for name in model.state_dict()) == 4


@pytest.mark.parametrize("kind", ["alibi", "t5"])
def test_heads_have_the_bias_of_their_place_whatever_groups_they_are_in(kind):
    options = {"encoder_positions": kind, "encoder_attention_heads": 4}
    plain = build_tiny_model("transformer_una_tiny", **options)
    parted = build_tiny_model("transformer_una_tiny", **options, encoder_roles="none/rare,relative")
    parted.load_state_dict(plain.state_dict())
    context = AttentionContext(Inputs(), 5, 5, 0, torch.device("cpu"))
    wanted, *found = (
        torch.cat([g.positions.bias(context, slice(None), torch.float32) for g in groups], 1)
        for groups in (plain.encoder.layers[0].self_attn.groups,)
        + tuple(layer.self_attn.groups for layer in parted.encoder.layers)
    )
    assert [len(layer.self_attn.groups) for layer in parted.encoder.layers] == [1, 2]
    for each in found:
        torch.testing.assert_close(each, wanted)


def test_a_model_without_positions_becomes_one_with_them():
    """The biases begin as 0, so that only embeddings differ."""
    old = build_tiny_model("transformer_una_tiny", encoder_positions="none")
    new = build_tiny_model("transformer_una_tiny", encoder_positions="t5")
    for layer in new.encoder.layers:
        torch.nn.init.zeros_(layer.self_attn.groups[0].positions.table)
    new.load_state_dict(old.state_dict(), strict=True)
    torch.testing.assert_close(*(run(m, [[5, 6, 2]], [[2, 7]]) for m in (old, new)))


def test_a_bias_that_differs_between_layers_is_not_kept(monkeypatch):
    """ALiBi's is computed once and kept with the masks; T5's is made anew by each layer."""
    cached, seen = Inputs.cached, []
    monkeypatch.setattr(Inputs, "cached", lambda s, k, c: seen.append(k) or cached(s, k, c))
    for kind, kept in (("alibi", 1), ("t5", 0)):
        model = build_tiny_model("transformer_una_tiny", encoder_positions=kind).eval()
        seen.clear()
        with torch.no_grad():
            model.encoder(torch.tensor([[5, 6, 2]]), torch.tensor([3]))
        assert len({key for key in seen if key[0] == "bias"}) == kept


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"encoder_positions": "bogus"},
            "--encoder-positions is 'bogus'; choose from",
        ),
        ({"encoder_positions": "alibi", "encoder_gaussian_heads": "all"}, "leaves no head to"),
        ({"encoder_scorer": "dense", "encoder_gaussian_heads": "all"}, "no head to --encoder-sco"),
        ({"encoder_positions": "rotary", "encoder_attention_heads": 32}, "has width 1"),
        ({"encoder_positions": "t5", "t5_buckets": 6}, "--t5-buckets is 6; give a multiple of 4"),
        (
            {"encoder_positions": "t5", "t5_distance": 8},
            "--t5-distance 8 is not above",
        ),
    ],
)
def test_what_is_refused(options, said):
    with pytest.raises(UsageError, match=said):
        build_tiny_model("transformer_una_tiny", **options)
