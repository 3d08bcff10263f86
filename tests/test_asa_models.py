"""Models with second passes: invariants, gradients of both players, evaluation, checkpoints."""

import copy
from argparse import Namespace
from functools import partial

import pytest
import restore
import torch
from cases import slow_but_first
from fairseq.criterions import build_criterion
from fairseq.data import Dictionary
from fairseq.models import build_model
from fairseq.tasks.fairseq_task import StatefulContainer
from omegaconf import OmegaConf
from saved_state import save_state

from fairseq_ext.attention import AttentionRecorder
from fairseq_ext.criterions.divergence import Divergence, Predictions, kl
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.second_pass.adversary import Adversary
from fairseq_ext.mechanisms.second_pass.passes import (
    EMPTY_ROWS,
    AdversarialPass,
    BernoulliPass,
    MagnitudePass,
    SecondPass,
)
from fairseq_ext.models.mixins import find_adversary_layers

PAD, EOS = 1, 2
SENTENCES = [[5, 6, 7, 8, 9, EOS], [10, 11, EOS], [12, 5, 7, EOS]]
TARGETS = [[20, 21, 22, EOS], [23, EOS], [24, 25, 26, 27, EOS]]
CLOSE = {"rtol": 1e-8, "atol": 1e-10}
EMPTY = pytest.mark.parametrize("empty", EMPTY_ROWS)
TOGETHER = pytest.mark.parametrize("together", [True, False], ids=["together", "in sequence"])


def batch(sentences=SENTENCES, side="right", extra=0):
    size = max(map(len, sentences)) + extra
    pads = [[PAD] * (size - len(s)) for s in sentences]
    return torch.tensor(
        [s + p if side == "right" else p + s for s, p in zip(sentences, pads, strict=True)]
    )


def weighted(x):
    """A sum with a weight of its own for each number."""
    return (x * torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view_as(x)).sum()


TINY = {"encoder_layers": 4, "encoder_embed_dim": 16, "encoder_ffn_embed_dim": 24}
TINY |= {"encoder_attention_heads": 4, "dropout": 0.0, "attention_dropout": 0.0}
DECODER = {"decoder_layers": 1, "decoder_embed_dim": 16, "decoder_ffn_embed_dim": 24}
BOTH = pytest.mark.parametrize("kind", ["transformer", "roberta"])


def task():
    words = Dictionary()
    for i in range(40):
        words.add_symbol(f"w{i}")
    return Namespace(
        cfg=Namespace(_name="translation"),
        source_dictionary=words,
        target_dictionary=words,
        max_positions=lambda: 16,
        state=StatefulContainer(),
    )


def build(kind, made_for=None, **options):
    """In training and float64, with adversaries that mask about half of the units."""
    torch.manual_seed(3)
    sizes = TINY | (DECODER if kind == "transformer" else {})
    config = {"_name": f"{kind}_asa_tiny", **sizes, **options}
    model = build_model(OmegaConf.create(config), made_for or task()).double().train()
    model.set_num_updates(0)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            deviation = 0.3 if "adversary" in name else 0.05
            parameter.data.add_(torch.randn_like(parameter), alpha=deviation)
    return model


@pytest.mark.parametrize("kind", ["roberta", "transformer"])
def test_adversaries_leave_the_other_parameters_as_they_begin(kind):
    states = []
    for layers in ("none", "all", "upper"):
        torch.manual_seed(3)
        sizes = TINY | (DECODER if kind == "transformer" else {})
        config = {"_name": f"{kind}_asa_tiny", **sizes, "asa_layers": layers}
        states.append(build_model(OmegaConf.create(config), task()).state_dict())
    plain, full, upper = states
    assert len(full) > len(upper) > len(plain)
    for more in (full, upper):
        torch.testing.assert_close({name: more[name] for name in plain}, plain, atol=0, rtol=0)
        own = [x.flatten() for name, x in more.items() if "adversary.query.weight" in name]
        spread = torch.stack([x.std() for x in own])
        torch.testing.assert_close(spread, torch.full_like(spread, 0.02), atol=0.005, rtol=0)
        assert len(own) < 2 or not torch.equal(own[0], own[1])


def written(rows=range(3)):
    return batch([[EOS, *TARGETS[b][:-1]] for b in rows])


def run(model, tokens=None, rows=range(3), **keywords):
    tokens = batch() if tokens is None else tokens
    further = (None, written(rows)) if hasattr(model, "decoder") else ()
    return model(tokens, *further, **keywords)


def learn(model, second=None, recorder=None):
    """Outputs of both passes, counts, maps, and all gradients of a loss on all of them."""
    model.zero_grad()
    out, extra = run(model, second=second, recorder=recorder)
    results = {"first": out, "second": extra["second"][0], "maps": extra.get("attention_maps", {})}
    results["kept"] = {layer: count.kept for layer, count in extra["counts"].items()}
    sums = [results["first"], results["second"], *results["kept"].values()]
    sum(weighted(x) for x in [*sums, *results["maps"].values()]).backward()
    return results, {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def fill(model, query, key):
    """Adversaries whose scores are everywhere query * key * sqrt(C)."""
    for adversary in [m for m in model.modules() if isinstance(m, Adversary)]:
        for linear, bias in ((adversary.query, query), (adversary.key, key)):
            torch.nn.init.zeros_(linear.weight)
            torch.nn.init.constant_(linear.bias, bias)


def test_the_price_of_keeping_everything():
    """tau^2 layers mean_b(S n_b) in the released code; padded queries are not ours to count."""
    model = build("roberta", encoder_layers=2)
    fill(model, 1, 1)
    tokens = batch([[0, 5, 6, 7, EOS], [0, 8, EOS]], extra=1)
    for padded_rows, expected in ((True, 4.32), (False, 0.09 * 2 * (25 + 9) / 2)):
        second = AdversarialPass(0, padded_rows=padded_rows)
        counts = model(tokens, second=second)[1]["counts"].values()
        kept = torch.stack([count.kept for count in counts])
        assert 0.3**2 * kept.sum().item() / 2 == pytest.approx(expected)
        assert torch.equal(kept, torch.stack([count.units for count in counts]))


@EMPTY
@TOGETHER
def test_nothing_masked_is_no_divergence(empty, together):
    model = build("roberta")
    fill(model, 1, 1)
    out, extra = model(batch(), second=AdversarialPass(0, one_batch=together, empty_rows=empty))
    real = batch().ne(PAD)
    assert (
        Divergence(kl).total([Predictions(out[real])], [Predictions(extra["second"][0][real])]) == 0
    )


VARIANTS = {
    "all": {"asa_layers": "all"},
    "upper": {"asa_layers": "upper"},
    "some": {"asa_layers": "1,3"},
    "per head": {"asa_per_head": True},
    "pre-norm": {"encoder_normalize_before": True},
    "doubly": {"encoder_normaliser": "doubly"},
    "hybrid": {"encoder_normaliser": "hybrid"},
    "gaussian": {"encoder_gaussian_heads": "2"},
    "gaussian alone": {"encoder_gaussian_heads": "all"},
}


def recorder():
    return AttentionRecorder(
        lambda site, layer: [0, 2] if (site, layer % 2) == ("encoder", 1) else None
    )


def of(model, **options):
    return AdversarialPass(find_adversary_layers(model)[0], **options)


@pytest.mark.usefixtures("every_form")
@BOTH
@pytest.mark.parametrize("variant", slow_but_first(VARIANTS))
@EMPTY
def test_together_is_in_sequence(kind, variant, empty):
    """With a recorder, who hears the first pass alone; and the first pass is what it is alone."""
    model = build(kind, **VARIANTS[variant])
    both = [
        learn(model, of(model, one_batch=together, empty_rows=empty), recorder())
        for together in (True, False)
    ]
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)
    clean, extra = run(model, recorder=recorder())
    assert len(extra["attention_maps"]) == 2 and "second" not in extra and "counts" not in extra
    expected = {"first": clean, "maps": extra["attention_maps"]}
    found = {name: both[0][0][name] for name in expected}
    torch.testing.assert_close(found, expected, **CLOSE)
    assert list(both[0][0]["kept"]) == find_adversary_layers(model)
    assert (both[0][0]["second"] - clean).abs().max() > 1e-3
    assert all(torch.isfinite(g).all() for g in both[0][1].values())
    assert {n for n, _ in model.named_parameters() if "adversary" in n} <= set(both[0][1])


@TOGETHER
@pytest.mark.parametrize("variant", VARIANTS)
def test_everything_masked_is_nothing_masked(together, variant):
    """To the last digits of float32, and for weights that are no softmax too."""
    model = build("roberta", **VARIANTS[variant]).float()
    fill(model, 1, -1)
    out, extra = run(model, second=of(model, one_batch=together))
    torch.testing.assert_close(extra["second"][0], out, rtol=1e-5, atol=1e-5)
    assert not any(count.kept.any() for count in extra["counts"].values())


def second_rows(model, sentences, side="right", extra=0, rows=range(3), **options):
    """What a second pass makes of real tokens, and its counts, sentence by sentence."""
    tokens = batch(sentences, side, extra)
    with torch.no_grad():
        _, more = run(model, tokens, rows, second=of(model, **options))
    real = written(rows) if hasattr(model, "decoder") else tokens
    out = [x[t.ne(PAD)] for x, t in zip(more["second"][0], real, strict=True)]
    units = [torch.stack([*count]).T for count in more["counts"].values()]
    return list(zip(out, *units, strict=True))


@BOTH
@TOGETHER
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("extra", [0, 3])
def test_padding_and_company_change_nothing(kind, together, variant, side, extra):
    model = build(kind, **VARIANTS[variant])
    found = second_rows(model, SENTENCES, side, extra, one_batch=together)
    for b, sentence in enumerate(SENTENCES):
        [expected] = second_rows(model, [sentence], rows=[b])
        torch.testing.assert_close(found[b], expected, rtol=1e-6, atol=1e-6)
        assert all(units == len(sentence) ** 2 for _, units in expected[1:])


@pytest.mark.parametrize("kind", ["plain", "bernoulli", "magnitude"])
def test_the_control(kind):
    """Second passes that differ by dropout alone, or would, if they masked nothing."""
    second = {
        "plain": SecondPass(),
        "bernoulli": BernoulliPass(0.0),
        "magnitude": MagnitudePass(0.0),
    }[kind]
    options = {"asa_layers": "none"}
    results, _ = learn(build("roberta", **options), second)
    torch.testing.assert_close(results["second"], results["first"], **CLOSE)
    for dropout in ("dropout", "attention_dropout"):
        model = build("roberta", **options, **{dropout: 0.2})
        results, _ = learn(model, second)
        assert (results["second"] - results["first"]).abs().max() > 1e-3
        results, _ = learn(model.eval(), second)
        torch.testing.assert_close(results["second"], results["first"], **CLOSE)


@BOTH
@TOGETHER
@pytest.mark.parametrize("second", [AdversarialPass, BernoulliPass])
def test_activation_checkpointing_keeps_the_gradient(kind, together, second):
    """Of masks that are drawn too."""
    found = []
    for checkpointed in (False, True):
        model = build(kind, checkpoint_activations=checkpointed, attention_dropout=0.1)
        options = {"first": 0, "sample": True} if second is AdversarialPass else {"rate": 0.2}
        torch.manual_seed(7)
        found.append(learn(model, second(**options, one_batch=together), recorder()))
    torch.testing.assert_close(*found, **CLOSE)


@BOTH
def test_dropped_layers(kind):
    """Both passes leave out the same ones, all of those above the fork as well."""
    model, left = build(kind, asa_layers="upper", encoder_layerdrop=0.5), set()
    passes = [of(model, one_batch=together) for together in (True, False)]
    for seed in range(12):
        both = []
        for second in passes:
            torch.manual_seed(seed)
            both.append(learn(model, second, recorder()))
        torch.testing.assert_close(*both, rtol=1e-6, atol=1e-7)
        results, _ = both[0]
        left.add(tuple(results["kept"]))
        if not results["kept"]:
            torch.testing.assert_close(results["first"], results["second"], **CLOSE)
    assert left == {(), (2,), (3,), (2, 3)}


@pytest.mark.parametrize(
    ("layers", "first"), [("all", 0), ("upper", 2), ("1,3", 1), ("3", 3), ("0", 0)]
)
@TOGETHER
def test_layers_below_the_fork_are_computed_once(layers, first, together):
    model, rows = build("roberta", asa_layers=layers), {}
    for layer in model.encoder.sentence_encoder.layers:
        layer.register_forward_pre_hook(
            lambda layer, given: rows.setdefault(layer.index, []).append(given[0].size(1))
        )
    states = run(model, second=of(model, one_batch=together), return_all_hiddens=True)[1]
    above = [6] if together else [3, 3]
    assert rows == {layer: above if layer >= first else [3] for layer in range(4)}
    clean = run(model, return_all_hiddens=True)[1]
    torch.testing.assert_close(states["inner_states"], clean["inner_states"], **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@BOTH
@EMPTY
@pytest.mark.parametrize("masked", ["some", "all", "none"])
def test_all_numbers_are_finite(dtype, kind, empty, masked):
    """With rows that are masked as a whole, and a sentence of padding."""
    model = build(kind).to(dtype)
    if masked != "some":
        fill(model, 1, -1 if masked == "all" else 1)
    tokens = torch.cat([batch(), torch.full((1, 6), PAD)])
    given = () if kind == "roberta" else (None, written([0, 1, 2, 0]))
    for together in (True, False):
        model.zero_grad()
        second = of(model, one_batch=together, empty_rows=empty)
        out, extra = model(tokens, *given, second=second)
        kept = torch.stack([count.kept for count in extra["counts"].values()])
        apart = kl(out, extra["second"][0])
        assert out.dtype == dtype and apart.dtype == kept.dtype == torch.float32
        assert masked == "some" or kept.any() == (masked == "none")
        assert torch.isfinite(out).all() and torch.isfinite(extra["second"][0]).all()
        (apart.mean() + 0.3 * kept.mean()).backward()
        found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        assert any("adversary" in name for name in found)
        assert all(torch.isfinite(g).all() for g in found.values())


# One step of both players.


class Plain(SecondPass):
    """Masks whose gradient is what it is, or none if they are fixed."""

    def __init__(self, fixed):
        super().__init__()
        self.fixed, self.kept = fixed, []

    def bias(self, attention, x, frame):
        if attention.adversary is None:
            return None
        keep = attention.adversary(x)
        keep = (keep.detach() if self.fixed else keep) * ~frame.key_padding[:, None, None]
        self.kept.append((keep * ~frame.key_padding[:, None, :, None]).sum((1, 2, 3)))
        return lambda heads: partial(self.apply_mask, keep)


ALPHA, TAU, RATE = 0.7, 0.3, 0.01


def played(model, sample, second):
    """L_e, D and the kept units, of the batch."""
    real, given = sample["target"].ne(PAD), sample["net_input"]
    out, extra = model(**given, second=second)
    fairseqs = out[real].log_softmax(-1, dtype=torch.float32)
    task_loss = -fairseqs.gather(1, sample["target"][real][:, None]).sum()
    clean, other = (scores[real].log_softmax(-1) for scores in (out, extra["second"][0]))
    apart = (clean.exp() * (clean - other)).sum()
    kept = sum((real.sum(1) * kept).sum() for kept in second.kept)
    return task_loss, apart, kept


@TOGETHER
@pytest.mark.parametrize("layers", ["all", "upper"])
@pytest.mark.parametrize("alpha", [1, ALPHA])
def test_one_step_is_that_of_two_optimisations(together, layers, alpha):
    """theta goes down L_e + alpha D for given masks; eta up alpha D + tau K for a given model."""
    words = task()
    joint = build("transformer", words, asa_layers=layers)
    given = {"src_tokens": batch(), "src_lengths": None, "prev_output_tokens": written()}
    target = batch(TARGETS)
    sample = {"net_input": given, "target": target, "ntokens": int(target.ne(PAD).sum())}
    twin = copy.deepcopy(joint)
    options = {"asa_alpha": alpha, "asa_tau": TAU, "asa_in_sequence": not together}
    config = {"_name": "cross_entropy_asa", "sentence_avg": False, **options}
    loss, _, _ = build_criterion(OmegaConf.create(config), words)(joint, sample)
    loss.backward()
    torch.optim.SGD(joint.parameters(), lr=RATE).step()

    theta, eta = (
        [(n, p) for n, p in twin.named_parameters() if ("adversary" in n) == adversary]
        for adversary in (False, True)
    )
    task_loss, apart, _ = played(twin, sample, Plain(fixed=True))
    down = torch.autograd.grad(task_loss + alpha * apart, [p for _, p in theta])
    _, apart, kept = played(twin, sample, Plain(fixed=False))
    up = torch.autograd.grad(alpha * apart, [p for _, p in eta], retain_graph=True)
    price = torch.autograd.grad(TAU * kept, [p for _, p in eta])
    expected = {n: p - RATE * g for (n, p), g in zip(theta, down, strict=True)}
    expected |= {n: p + RATE * (g + h) for (n, p), g, h in zip(eta, up, price, strict=True)}
    torch.testing.assert_close(dict(joint.named_parameters()), expected, rtol=1e-9, atol=1e-9)
    assert all(g.abs().max() > 1e-4 for g in (*up, *price))


# Evaluation and checkpoints.


@BOTH
def test_evaluation_knows_no_adversary(kind, monkeypatch):
    monkeypatch.setattr(Adversary, "forward", lambda *given: pytest.fail("an adversary is asked"))
    model, plain = build(kind).eval(), build(kind, asa_layers="none").eval()
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(run(model)[0], run(plain)[0], rtol=0, atol=0)
    assert not find_adversary_layers(plain)


@BOTH
@pytest.mark.parametrize(("given", "taken"), [("all", "upper"), ("1", "none"), ("none", "all")])
def test_checkpoints_with_and_without_adversaries(kind, given, taken):
    """Those that both have are loaded, others ignored, and what is missing stays as it is."""
    trained, model = build(kind, asa_layers=given), build(kind, asa_layers=taken)
    for parameter in trained.parameters():
        parameter.data.add_(0.5)
    state, before = trained.state_dict(), copy.deepcopy(model.state_dict())
    assert any("adversary" in name for name in state) == (given != "none")
    model.load_state_dict(copy.deepcopy(state), strict=True)
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name] if name in state else before[name]), name
    missing = [name for name in before if name not in state]
    assert bool(missing) == (given == "none") and all("adversary" in name for name in missing)
    with pytest.raises(RuntimeError, match="Missing key"):
        state.pop(next(name for name in state if "adversary" not in name and "layers" in name))
        model.load_state_dict(state, strict=True)


@BOTH
def test_layers_have_the_adversaries_that_are_asked_for(kind):
    model = build(kind, asa_layers="1,3", asa_per_head=True)
    found = {name: m for name, m in model.named_modules() if isinstance(m, Adversary)}
    assert find_adversary_layers(model) == [1, 3]
    assert [name[-22:] for name in found] == [f".{i}.self_attn.adversary" for i in (1, 3)]
    assert not any("decoder" in name for name in found)
    assert {adversary.heads for adversary in found.values()} == {4}


def test_adversaries_of_heads_that_are_left():
    """Each has the slice of Q and K that is as wide as a head."""
    model = build("roberta", asa_layers="all", asa_per_head=True, encoder_heads_left="3/4/4/4")
    adversaries = [m for m in model.modules() if isinstance(m, Adversary)]
    widths = [len(adversary.query.bias) for adversary in adversaries]
    assert widths[0] * 4 == widths[1] * 3 and [a.heads for a in adversaries] == [3, 4, 4, 4]
    assert adversaries[0](torch.randn(5, 2, widths[1]).double()).shape == (2, 3, 5, 5)


def test_adversaries_come_and_go_with_a_new_optimizer(tmp_path, caplog):
    """Without a word, unlike other attention."""
    sizes = {"encoder_layers": 3, "encoder_attention_heads": 4}
    path = str(tmp_path / "checkpoint.pt")
    save_state(path, {**sizes, "asa_layers": "all"})
    now = Namespace(**sizes, asa_layers="none")
    with pytest.raises(UsageError, match=r"asa_layers all \(now none\)"):
        restore.check(path, now, False)
    restore.check(path, now, True)
    assert not caplog.records
    restore.check(path, Namespace(**vars(now), encoder_normaliser="doubly"), True)
    assert "encoder_normaliser softmax (now doubly)" in caplog.text
