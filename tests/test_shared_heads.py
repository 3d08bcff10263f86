"""Grouped-query and multi-query attention: twin, caches, other mechanisms, what is refused."""

import pytest
import torch
from mechanism_cases import find_case

from fairseq_ext.attention import (
    Attention,
    AttentionRecorder,
    HeadGroup,
    Inputs,
    build_normaliser,
    head_groups,
    normalisers,
)
from fairseq_ext.errors import UsageError
from fairseq_ext.testing import check_model
from fairseq_ext.testing.mechanisms import build_tiny_model

H, D, C, T = 4, 8, 32, 7
KINDS = ["softmax", "doubly", "entmax", "sink"]


def attention(site="encoder", kv_heads=2, kind="softmax", **options):
    torch.manual_seed(0)
    group = HeadGroup(H, normaliser=build_normaliser(kind, H))
    module = Attention(C, H, site=site, groups=[group], kv_heads=kv_heads, **options).double()
    for parameter in module.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    return module.eval()


def naive(module, kind, x, memory, padding, causal):
    """[T, B, C] head by head: the head of queries h has the keys and values h // (H / G)."""
    twin, outputs = find_case("normaliser", kind).twin, []
    per_group = H // (module.k_proj.out_features // D)
    for b in range(x.size(1)):
        q = module.q_proj(x[:, b]).view(-1, H, D)
        k, v = (p(memory[:, b]).view(len(memory), -1, D) for p in (module.k_proj, module.v_proj))
        masked = padding[b].expand(len(x), -1)
        if causal:
            masked = masked | torch.ones(len(x), len(memory), dtype=torch.bool).triu(1)
        absent = padding[b] if memory is x else torch.zeros(len(x), dtype=torch.bool)
        heads = []
        for h in range(H):
            scores = q[:, h] @ k[:, h // per_group].T / D**0.5
            weights = twin(scores, masked, absent, module.groups[0].normaliser, h)
            heads.append(weights @ v[:, h // per_group])
        outputs.append(torch.cat(heads, -1))
    return module.out_proj(torch.stack(outputs, 1))


@pytest.mark.parametrize("smallest", [0, 1024])
@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize(
    ("site", "kind"),
    [*(("encoder", kind) for kind in KINDS), ("decoder", "softmax"), ("cross", "softmax")],
)
def test_twin(site, kind, kv_heads, smallest, monkeypatch):
    """Output and every gradient, on fused kernels and on maps, with padding."""
    monkeypatch.setattr(normalisers, "MIN_SCORES", smallest)
    module = attention(site, kv_heads, kind)
    x = torch.randn(T, 2, C, dtype=torch.double, requires_grad=True)
    memory = torch.randn(9, 2, C, dtype=torch.double) if site == "cross" else x
    padding = torch.zeros(2, len(memory), dtype=torch.bool)
    padding[1, -2:] = True
    causal = site == "decoder"
    real = 1 if site == "cross" else ~padding.T[..., None]
    pair = [
        module(x, memory, memory, Inputs(padding, causal), need_weights=False)[0] * real,
        naive(module, kind, x, memory, padding, causal) * real,
    ]
    torch.testing.assert_close(*pair)
    probe, wanted = torch.randn_like(x), [x, *module.parameters()]
    grads = [torch.autograd.grad(out, wanted, probe) for out in pair]
    torch.testing.assert_close(*grads, atol=1e-9, rtol=1e-6)


def widen(module, **options):
    """Attention with a head of keys and values for each of queries, which computes the same."""
    whole = attention(module.site, None, **options)
    state = dict(module.state_dict())
    for name in ("k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias"):
        parts = state[name].unflatten(0, (-1, D))
        state[name] = parts.repeat_interleave(H // len(parts), 0).flatten(0, 1)
    whole.load_state_dict(state)
    return whole


@pytest.mark.parametrize("normalised", [False, True])
def test_maps_masks_and_some_observed_heads(normalised):
    """Recorded maps, and outputs with a mask of each head's, are those of whole heads."""
    module = attention(qk_norm=normalised)
    both = module, widen(module, qk_norm=normalised)
    x = torch.randn(T, 2, C, dtype=torch.double)
    for wanted in ([0, 1, 2, 3], [1, 2], []):
        recorders = [AttentionRecorder(lambda *_, wanted=wanted: wanted) for _ in both]
        inputs = [Inputs(recorder=recorder) for recorder in recorders]
        pair = [m(x, x, x, i, need_weights=False)[0] for m, i in zip(both, inputs, strict=True)]
        torch.testing.assert_close(*pair)
        torch.testing.assert_close(*(recorder.maps for recorder in recorders))
    masked = torch.rand(T, T) < 0.3
    pair = [m(x, x, x, attn_mask=masked)[0] for m in both]
    torch.testing.assert_close(*pair)


class LowerFirstHead:
    """A second pass, in which the first head sees less of the first key."""

    def bias(self, module, x, context):
        lower = torch.zeros(H, 1, context.keys, dtype=x.dtype)
        lower[0, 0, 0] = -2
        return lambda heads: lambda scores, mask: (scores + lower[heads], mask)


def test_a_second_pass_changes_scores_of_single_heads():
    module, x = attention(), torch.randn(T, 4, C, dtype=torch.double)
    inputs = Inputs(passes=(None, LowerFirstHead()))
    pair = [m(x, x, x, inputs, need_weights=False)[0] for m in (module, widen(module))]
    torch.testing.assert_close(*pair)
    plain = module(x, x, x, Inputs(), need_weights=False)[0]
    torch.testing.assert_close(pair[0][:, :2], plain[:, :2])
    assert not torch.allclose(pair[0][:, 2:], plain[:, 2:])


@pytest.mark.parametrize("smallest", [0, 1024])
def test_nothing_is_copied_for_softmax(smallest, monkeypatch):
    """Neither kernels nor maps need a head of keys for each head of queries."""
    monkeypatch.setattr(normalisers, "MIN_SCORES", smallest)
    monkeypatch.setattr(normalisers, "repeat_heads", None)
    monkeypatch.setattr(head_groups, "repeat_heads", None)
    module, x = attention(kv_heads=1), torch.randn(T, 2, C, dtype=torch.double)
    for inputs in (Inputs(), Inputs(causal=True), Inputs(torch.arange(T).expand(2, T) > 4)):
        assert module(x, x, x, inputs, need_weights=False)[0].isfinite().all()


@pytest.mark.parametrize("site", ["decoder", "cross"])
def test_caches_hold_the_shared_heads(site):
    """Token by token as at once; hypotheses of a sentence share keys in attention to the source."""
    module = attention(site, kv_heads=2)
    whole = widen(module)
    x, memory = (torch.randn(n, 2, C, dtype=torch.double) for n in (T, 5))
    keys = memory if site == "cross" else x
    forced, _ = module(x, keys, keys, Inputs(causal=site == "decoder"), need_weights=False)
    states = {}, {}
    for t in range(T):
        given = memory if site == "cross" else x[t : t + 1]
        now = [
            m(x[t : t + 1], given, given, Inputs(first_query=t), state, False, site == "cross")[0]
            for m, state in zip((module, whole), states, strict=True)
        ]
        torch.testing.assert_close(now[0], forced[t : t + 1])
        torch.testing.assert_close(*now)
    cached, wide = (
        m._get_input_buffer(s)["prev_key"] for m, s in zip((module, whole), states, strict=True)
    )
    assert cached.shape == (2, 2, len(keys), D) and wide.numel() == 2 * cached.numel()
    if site == "cross":  # three hypotheses of each sentence
        queries = torch.randn(1, 6, C, dtype=torch.double)
        pair = [m(queries, memory, memory, Inputs(), {}, False, True)[0] for m in (module, whole)]
        torch.testing.assert_close(*pair)


SHARED = {"encoder_kv_heads": 2, "decoder_kv_heads": 1, "cross_kv_heads": 2}


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"encoder_normaliser": "hybrid", "qk_norm": True}, marks=pytest.mark.slow),
        pytest.param({"decoder_normaliser": "sink"}, marks=pytest.mark.slow),
        pytest.param({"decoder_head_mixer": "talking"}, marks=pytest.mark.slow),
        pytest.param({"decoder_head_mixer": "differential"}, marks=pytest.mark.slow),
        pytest.param(
            {"encoder_positions": "t5", "decoder_positions": "alibi", "head_gate": "input"},
            marks=pytest.mark.slow,
        ),
        pytest.param({"encoder_roles": "relative,separator"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_models(options):
    check_model("transformer_una_tiny", **SHARED, **options)


def test_one_stack_of_layers():
    build_tiny_model(
        "transformer_una_tiny",
        share_encoder_decoder_layers=True,
        **dict.fromkeys(SHARED, 2),
    )
    with pytest.raises(UsageError, match="differ; give both the same"):
        build_tiny_model("transformer_una_tiny", share_encoder_decoder_layers=True, **SHARED)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoder_kv_heads": 3}, "does not divide the 4 heads of queries; give one of 1, 2, 4"),
        ({"encoder_kv_heads": 8}, "does not divide"),
        ({"encoder_kv_heads": 2, "encoder_heads_left": "2/4"}, "heads_left|heads-left"),
        ({"encoder_kv_heads": 2, "encoder_gaussian_heads": "2"}, "hard-coded heads"),
        ({"encoder_kv_heads": 2, "encoder_scorer": "random"}, "give --encoder-scorer dot"),
        ({"decoder_kv_heads": 2, "decoder_scorer": "dense"}, "give --decoder-scorer dot"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(UsageError, match=message):
        build_tiny_model("transformer_una_tiny", **options)


def test_deberta_has_no_shared_heads():
    with pytest.raises(UsageError, match="--encoder-kv-heads 2 does not go with --encoder-scorer"):
        build_tiny_model("deberta_una_tiny", encoder_kv_heads=2)
