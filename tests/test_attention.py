"""The attention module against the naive twin and fairseq's own; observation; bad input."""

import pytest
import torch
from fairseq.modules import MultiheadAttention
from mechanism_cases import list_cases
from naive import multi_head

from fairseq_ext.attention import Attention, AttentionRecorder, HeadGroup, Inputs, build_normaliser
from fairseq_ext.attention.weight_dropout import drop_weights
from fairseq_ext.errors import UsageError

pytestmark = pytest.mark.usefixtures("every_form")

KINDS = {case.key[1]: case for case in list_cases() if case.slot == "normaliser"}


def make(kind="softmax", heads=4, width=16, site="encoder", **stock):
    torch.manual_seed(0)
    groups = [HeadGroup(heads, normaliser=KINDS[kind].build(heads))]
    return Attention(width, heads, site=site, groups=groups, **stock)


def padded_on_the(side, lengths, size):
    at, lengths = torch.arange(size), torch.tensor(lengths)[:, None]
    return at >= lengths if side == "right" else at < size - lengths


def attend(module, x, padding=None, **kw):
    """[B, T, C] -> [B, T, C] self-attention."""
    x = x.transpose(0, 1)
    out, weights = module(x, x, x, padding, **({"need_weights": False} | kw))
    return (out.transpose(0, 1), weights) if kw.get("need_weights") else out.transpose(0, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_without_a_sentence(kind):
    out = attend(make(kind), torch.zeros(0, 64, 16, requires_grad=True))
    out.sum().backward()
    assert out.shape == (0, 64, 16)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5), (torch.bfloat16, 0.06)]
)
def test_outputs_and_all_gradients_equal_the_naive_twin(kind, side, dtype, tolerance):
    module = make(kind).double()
    x = torch.randn(3, 6, 16, dtype=torch.float64)
    padding = padded_on_the(side, [6, 4, 1], 6)
    probe = torch.randn_like(x).masked_fill(padding[..., None], 0)

    def run(function, dtype):
        module.to(dtype).zero_grad()
        leaf = x.detach().to(dtype).requires_grad_()
        out = function(leaf)
        (out * probe.to(dtype)).sum().backward()
        params = module.named_parameters()
        grads = {n: p.grad.double().clone() for n, p in params if p.grad is not None}
        return out.masked_fill(padding[..., None], 0).double(), leaf.grad.double(), grads

    twin = run(lambda y: multi_head(KINDS[kind].twin, module, y, padding), torch.float64)
    ours = run(lambda y: attend(module, y, padding), dtype)
    torch.testing.assert_close(ours, twin, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("side", ["left", "right"])
def test_softmax_equals_fairseqs_attention_and_shares_its_parameters(side):
    module, stock = make(), MultiheadAttention(16, 4, self_attention=True)
    assert list(module.state_dict()) == list(stock.state_dict())
    stock.load_state_dict(module.state_dict())
    x, padding = torch.randn(3, 6, 16), padded_on_the(side, [6, 4, 1], 6)
    real = ~padding
    torch.testing.assert_close(attend(module, x, padding)[real], attend(stock, x, padding)[real])
    causal = torch.triu(torch.full((6, 6), -torch.inf), 1)
    ours, theirs = (attend(m, x, attn_mask=causal) for m in (module, stock))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("kind", KINDS)
def test_observing_changes_nothing_and_costs_only_the_observed_heads(kind):
    module, x = make(kind), torch.randn(2, 5, 16)
    padding = padded_on_the("left", [5, 3], 5)
    recorder = AttentionRecorder(
        lambda site, layer: [2, 0] if (site, layer) == ("encoder", 0) else None
    )
    plain = attend(module, x, padding)
    heard = attend(module, x, Inputs(padding, recorder=recorder))
    torch.testing.assert_close(heard[~padding], plain[~padding])
    (maps,) = recorder.maps.values()
    _, every_head = attend(module, x, padding, need_weights=True, need_head_weights=True)
    _, mean = attend(module, x, padding, need_weights=True)
    assert every_head.shape == (4, 2, 5, 5)
    torch.testing.assert_close(maps, every_head[[0, 2]].transpose(0, 1))
    torch.testing.assert_close(mean, every_head.mean(0))
    if KINDS[kind].sums_to_one:
        torch.testing.assert_close(every_head.sum(-1), torch.ones(4, 2, 5))
    assert every_head.masked_select(padding[None, :, None]).abs().max() == 0


def test_a_detached_listener_keeps_no_graph():
    wants = lambda site, layer: [0]  # noqa: E731
    for detach in (True, False):
        recorder = AttentionRecorder(wants, detach=detach)
        attend(make(), torch.randn(1, 3, 16), Inputs(recorder=recorder))
        assert recorder.maps["encoder", 0].requires_grad is not detach


@pytest.mark.parametrize("kind", KINDS)
def test_groups_of_heads_stand_side_by_side(kind):
    """Softmax heads next to others give what each would give alone."""
    x = torch.randn(2, 5, 16)
    kinds = ["softmax", kind]
    groups = [HeadGroup(2, normaliser=KINDS[k].build(2)) for k in kinds]
    mixed = Attention(16, 4, site="encoder", groups=groups)
    _, weights = attend(mixed, x, need_weights=True, need_head_weights=True)
    for i, each in enumerate(kinds):
        alone = make(each)
        alone.load_state_dict(mixed.state_dict(), strict=False)
        _, expected = attend(alone, x, need_weights=True, need_head_weights=True)
        torch.testing.assert_close(weights[2 * i : 2 * i + 2], expected[2 * i : 2 * i + 2])
    torch.testing.assert_close(attend(mixed, x), attend(mixed, x, need_weights=True)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_falls_on_the_final_weights(kind):
    module, x = make(kind, dropout=0.5), torch.randn(1, 5, 16)
    _, weights = attend(module.eval(), x, need_weights=True, need_head_weights=True)
    v = module.v_proj(x).view(1, 5, 4, 4).transpose(1, 2)
    torch.manual_seed(7)
    dropped = drop_weights(weights.transpose(0, 1), 0.5) @ v
    expected = module.out_proj(dropped.transpose(1, 2).flatten(2))
    torch.manual_seed(7)
    ours, seen = attend(module.train(), x, need_weights=True, need_head_weights=True)
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(seen, weights)  # what is observed is not dropped


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.37, 1.0])
def test_dropout(rate):
    """Independent of place and neighbours, unbiased, with the gradient of what was kept."""
    torch.manual_seed(1)
    x = torch.ones(1000, 500, dtype=torch.float64, requires_grad=True)
    out = drop_weights(x, rate)
    gone = out.detach().eq(0).double()
    assert gone.mean().item() == pytest.approx(rate, abs=3e-3)
    assert (gone.mean(0) - rate).abs().max() < 0.08
    assert (gone[:, 1:] * gone[:, :-1]).mean().item() == pytest.approx(rate**2, abs=3e-3)
    assert out.mean().item() == pytest.approx(float(rate < 1), abs=3e-3)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(gradient, out.detach())
    torch.manual_seed(1)
    torch.testing.assert_close(drop_weights(x, rate), out)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_sentence_of_padding_gives_no_nan(kind, dtype):
    module = make(kind).to(dtype)
    x = torch.randn(2, 4, 16).to(dtype).requires_grad_()
    out = attend(module, x, padded_on_the("right", [4, 0], 4))
    out.sum().backward()
    grads = [p.grad for p in module.parameters() if p.grad is not None]
    assert all(t.isfinite().all() for t in (out, x.grad, *grads))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits_give_the_weights_of_64(kind, dtype):
    """Scores of up to 32 nats that 16 bits hold exactly; their exp overflows in float16."""
    module = make(kind)
    for projection in (module.q_proj, module.k_proj):
        torch.nn.init.eye_(projection.weight)
        torch.nn.init.zeros_(projection.bias)
    x = torch.randint(-4, 5, (2, 8, 16)).to(dtype)
    padding = padded_on_the("left", [8, 5], 8)
    every = {"need_weights": True, "need_head_weights": True}
    _, ours = attend(module.to(dtype), x, padding, **every)
    _, exact = attend(module.double(), x.double(), padding, **every)
    torch.testing.assert_close(ours.double(), exact, atol=4e-3, rtol=4e-3)


def test_heads_nobody_observes_stay_on_the_fused_kernel(monkeypatch):
    """Softmax runs on torch's; with heads 0 and 2 observed, on the other two alone."""
    seen = []
    fused = torch.nn.functional.scaled_dot_product_attention

    def spy(q, *args, **kwargs):
        seen.append(q.size(1))
        return fused(q, *args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    module, x = make(), torch.randn(1, 40, 16)
    attend(module, x)
    attend(module, x, Inputs(recorder=AttentionRecorder(lambda *_: [0, 2, 2])))
    attend(module, x, need_weights=True)
    assert seen == [4, 1, 1]


def test_a_query_without_a_key_falls_back_to_what_padding_leaves():
    module, x = make(), torch.randn(1, 4, 16)
    padding = padded_on_the("right", [3], 4)
    masked = torch.zeros(4, 4, dtype=torch.bool)
    masked[1] = masked[2, 0] = True
    every = {"need_weights": True, "need_head_weights": True}
    _, weights = attend(module, x, Inputs(padding, masked=masked), **every)
    _, free = attend(module, x, Inputs(padding), **every)
    torch.testing.assert_close(weights[..., :2, :], free[..., :2, :])
    assert weights[..., 3].abs().max() == 0 and weights[..., 2, 0].abs().max() == 0


def test_observed_maps_are_exact_in_16_bits():
    module = make().half()
    _, weights = attend(module, torch.randn(1, 5, 16).half(), need_weights=True)
    assert weights.dtype == torch.float32


def test_a_mask_of_the_call_is_added_to_the_inputs():
    module, x = make(), torch.randn(2, 5, 16)
    padding = padded_on_the("right", [5, 3], 5)
    later = torch.ones(5, 5, dtype=torch.bool).triu(1)
    both = attend(module, x, Inputs(padding), attn_mask=later)
    torch.testing.assert_close(both, attend(module, x, Inputs(padding, causal=True)))
    first = torch.zeros(5, 5, dtype=torch.bool)
    first[1:, 0] = True
    added = torch.zeros(5, 5, dtype=torch.bfloat16).masked_fill(later, -1e4)  # as fairseq has it
    torch.testing.assert_close(attend(module, x, Inputs(padding), attn_mask=added), both)
    joined = attend(module, x, Inputs(padding, masked=first), attn_mask=later)
    torch.testing.assert_close(joined, attend(module, x, Inputs(padding, masked=first | later)))


def cached(module, x, incremental, **kw):
    return torch.cat(
        [
            attend(module, x[:, t : t + 1], incremental_state=incremental, **kw)
            for t in range(x.size(1))
        ],
        1,
    )


def test_the_cache_equals_the_causal_mask_and_follows_the_beam():
    module, x = make(site="decoder").eval(), torch.randn(3, 5, 16)
    full = attend(module, x, Inputs(causal=True))
    torch.testing.assert_close(cached(module, x, {}), full)
    state, order = {}, torch.tensor([2, 0, 0])
    cached(module, x[:, :3], state)
    module.reorder_incremental_state(state, order)
    torch.testing.assert_close(cached(module, x[order, 3:], state), full[order, 3:])


def test_cross_attention_projects_its_keys_once():
    module = make(site="cross", kdim=12, vdim=12).eval()
    x, memory = torch.randn(4, 2, 16), torch.randn(6, 2, 12)
    padding = padded_on_the("left", [6, 3], 6)
    full, _ = module(x, memory, memory, padding, need_weights=False, static_kv=True)
    state = {}
    for t in range(4):
        keys = memory if t == 0 else torch.full_like(memory, torch.nan)
        step, _ = module(x[t : t + 1], keys, keys, padding, state, False, static_kv=True)
        torch.testing.assert_close(step, full[t : t + 1])


@pytest.mark.parametrize(
    ("make_it", "said"),
    [
        (lambda: Attention(16, 3, site="encoder"), "3 heads do not divide the width 16"),
        (lambda: Attention(16, 0, site="encoder"), "0 heads do not divide"),
        (lambda: make("doubly", site="decoder"), "see the future"),
        (lambda: make("hybrid", site="decoder"), "use softmax"),
        (lambda: make("sinkhorn", site="cross"), "needs all queries at once"),
        (
            lambda: Attention(
                16,
                4,
                site="encoder",
                groups=[HeadGroup(3, normaliser=build_normaliser("softmax", 3))],
            ),
            "groups of 3 heads in all for 4 heads",
        ),
        (
            lambda: attend(make("doubly"), torch.randn(1, 2, 16), Inputs(causal=True)),
            "causal attention cannot",
        ),
        (
            lambda: Inputs(masked=torch.zeros(1, 4, 2, 2, dtype=torch.bool)),
            "is .1, 4, 2, 2.; give",
        ),
        (
            lambda: make(site="cross")(
                *(torch.randn(3, n, 16) for n in (4, 2, 2)), attn_mask=torch.zeros(3, 3)
            ),
            "repeat the keys",
        ),
        (lambda: Inputs(masked=torch.zeros(2, dtype=torch.bool)), "or .B, 1, T, S."),
        (lambda: attend(make(), torch.randn(1, 2, 16), before_softmax=True), "AttentionRecorder"),
        (lambda: attend(make(), torch.randn(1, 2, 16), attn_mask=torch.randn(2, 2)), "a bool"),
        (
            lambda: attend(
                make(), torch.randn(1, 2, 16), Inputs(recorder=AttentionRecorder(lambda *_: [1, 4]))
            ),
            "has heads 0 to 3",
        ),
    ],
)
def test_bad_input_is_refused_in_a_sentence(make_it, said):
    with pytest.raises(UsageError, match=said):
        make_it()


@pytest.mark.parametrize("heads", [(0, 1), (1,)])
def test_maps_after_dropout_are_those_that_values_are_mixed_by(heads):
    torch.manual_seed(3)
    module = Attention(8, 2, site="encoder", dropout=0.4).double()
    x = torch.randn(5, 3, 8, dtype=torch.float64)
    recorder = AttentionRecorder(lambda site, layer: heads, dropped=True)
    mixed = []
    hook = module.out_proj.register_forward_pre_hook(lambda _, given: mixed.append(given[0]))
    module(x, x, x, Inputs(recorder=recorder), need_weights=False)
    hook.remove()
    maps = recorder.maps["encoder", 0]
    assert maps.eq(0).any() and (maps.sum(-1) > 1.05).any()
    values = module.v_proj(x).view(5, 3, 2, 4).permute(1, 2, 0, 3)[:, heads]
    expected = (maps @ values).permute(2, 0, 1, 3)
    torch.testing.assert_close(mixed[0].view(5, 3, 2, 4)[:, :, heads], expected)
