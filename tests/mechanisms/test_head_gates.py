"""Gates of heads, static, of the input or closing: twins, worked numbers, trainings."""

import json
from contextlib import nullcontext

import pytest
import torch
from commands import generate, read_hypotheses
from conftest import train
from fairseq.criterions import CRITERION_REGISTRY
from mechanism_cases import Case
from restore import configure_training
from torch import nn

from fairseq_ext.attention.gates import gate_heads
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.head_gates import InputGate, L0Gate, are_open, open_probability
from fairseq_ext.models import task_heads
from fairseq_ext.models.model_options import check_gate_sites
from fairseq_ext.testing import check_model
from fairseq_ext.testing.losses import OBJECTIVE, _build, _sample, _Task
from fairseq_ext.testing.mechanisms import build_tiny_model
from fairseq_ext.training.training_checks import check_gates, check_training


def naive_input_gate(out, x, gate):
    gated = torch.zeros_like(out)
    for b, h, t in torch.cartesian_prod(*map(torch.arange, out.shape[:3])).tolist():
        gated[b, h, t] = out[b, h, t] / (1 + (-(gate.weight[h] @ x[t, b])).exp())
    return gated


def naive_l0_gate(out, x, gate):
    open_ = 1.2 / (1 + (-(2 + gate.offset)).exp()) - 0.1
    open_ = torch.where(open_ > 1, 1, torch.where(open_ < 0, 0, open_))
    return torch.stack([out[:, h] * open_[h] for h in range(out.size(1))], 1)


CASES = [
    Case(
        "gate",
        "head_gate",
        part="static",
        flags="--head-gate",
        paper=True,
        neutral={},
        own="gate",
    ),
    Case(
        "input",
        "head_gate",
        twin=naive_input_gate,
        flags="--head-gate input",
        neutral={"head_gate": "none"},
        own="gate.weight",
    ),
    Case("l0", "head_gate", twin=naive_l0_gate, flags="--head-gate l0", own="gate.offset"),
]


def test_gates_at_all_sites():
    check_model(head_gate="input", head_gate_sites="encoder,decoder,cross", encoder_roles="rare")


def test_gates_begin_as_they_should():
    out, x = torch.randn(2, 3, 5, 4), torch.randn(5, 2, 12)
    torch.testing.assert_close(InputGate(3, 12)(out, x), out / 2)
    assert L0Gate(3).eval().gate().min() > 0.9


def test_a_small_step_of_a_static_gate_is_not_rounded_away_in_16_bits():
    out, gate = torch.randn(1, 2, 500, 4).bfloat16(), torch.full((2,), 0.003).bfloat16()
    gated = gate_heads(nn.Parameter(gate), out, None)
    exact = out.double() * (1 + gate.double())[:, None, None]
    assert (gated != out).float().mean() > 0.3
    torch.testing.assert_close(gated.double(), exact, atol=0, rtol=2**-8)


def test_samples_of_gates_that_close():
    """The share of zeros is 1 - P, also where the gate is nearly closed."""
    torch.manual_seed(0)
    gate = L0Gate(4)
    gate.offset.data = torch.tensor([-5.0, -2.5, -1.0, 1.0])
    samples = torch.stack([gate.gate() for _ in range(4000)])
    assert samples.min() >= 0 and samples.max() <= 1 and samples[:, 3].eq(1).any()
    share = samples.gt(0).float().mean(0)
    torch.testing.assert_close(share, gate.open_probability(), atol=0.03, rtol=0)
    assert gate.open_heads().tolist() == [False, True, True, True]
    assert gate.statistics()["open"]() == 0.75
    samples.mean(0).sum().backward()
    assert gate.offset.grad.min() > 0


def test_gates_of_all_layers_are_counted_as_each_is():
    gates = [L0Gate(heads) for heads in (2, 3)]
    for gate in gates:
        gate.offset.data.normal_(-3, 2)
    offsets = torch.cat([gate.offset for gate in gates])
    expected = torch.cat([gate.open_probability() for gate in gates])
    torch.testing.assert_close(open_probability(offsets), expected)
    opened = [gate.eval().gate() > 0 for gate in gates]
    assert torch.equal(are_open(offsets), torch.cat(opened))


def test_a_former_checkpoint_says_true():
    model = build_tiny_model("transformer_una_tiny", head_gate=True)
    assert isinstance(model.encoder.layers[0].self_attn.gate, torch.nn.Parameter)
    assert model.decoder.layers[0].self_attn.gate is None
    assert "encoder.layers.0.self_attn.gate" in model.state_dict()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"head_gate": "bogus"}, "--head-gate is 'bogus'; choose from none, static, input, l0"),
        ({"head_gate": "l0", "head_gate_sites": "decode"}, "--head-gate-sites is 'decode'; give"),
    ],
)
def test_options_that_are_refused(options, said):
    with pytest.raises(UsageError, match=said):
        build_tiny_model("transformer_una_tiny", **options)


@pytest.mark.parametrize(
    ("name", "options", "missing"),
    [
        ("roberta_una_tiny", {"head_gate_sites": "encoder,decoder"}, "decoder; give some of enc"),
        ("transformer_una_tiny", {"head_gate_sites": "cross", "no_cross_attention": True}, "cross"),
        ("transformer_una_tiny", {"head_gate_sites": "encoder,decoder,cross"}, None),
        ("roberta_una_tiny", {}, None),
        ("transformer_lm_una_tiny", {}, None),
    ],
)
def test_sites_that_a_model_does_not_have(name, options, missing):
    """They are refused before a training, and a model that was trained so is still read."""
    options = {"head_gate": "input", **options}
    model = build_tiny_model(name, **options)
    cfg = configure_training(name, "cross_entropy", **options)
    says = f"this model has no attention called {missing}"
    with pytest.raises(UsageError, match=says) if missing else nullcontext():
        check_training(model, None, cfg)
    cfg.model.head_gate = "none"
    check_gate_sites(model, cfg.model)


def test_the_head_of_a_task_has_no_gates():
    """Its attention calls itself cross, and --head-gate-sites is not of it."""
    options = {"head_gate": "static", "head_gate_sites": "encoder,cross"}
    model = build_tiny_model("roberta_una_tiny", **options)
    pooling = task_heads.TaskAttention(128, 4, layers=1, cross=False)
    model.attach(task_heads.SentenceHead(pooling, torch.nn.Linear(128, 2)))
    with pytest.raises(UsageError, match="no attention called cross; give some of encoder$"):
        check_gate_sites(model, options)


def test_gates_and_their_price_need_each_other():
    gated = build_tiny_model("transformer_una_tiny", head_gate="l0")
    plain = build_tiny_model("transformer_una_tiny")
    check_gates(gated, True, "cross_entropy_l0")
    check_gates(plain, False, "cross_entropy")
    with pytest.raises(UsageError, match="with --criterion cross_entropy; give cross_entropy_l0"):
        check_gates(gated, False, "cross_entropy")
    with pytest.raises(
        UsageError, match="--criterion cross_entropy_l0 closes .* --head-gate l0 too"
    ):
        check_gates(plain, True, "cross_entropy_l0")


def build(name, model, **options):
    return _build(name, _Task(model.encoder.dictionary), options)


def test_the_price_of_open_heads():
    model = build_tiny_model("transformer_una_tiny", head_gate="l0").eval()
    sample = _sample(range(3))
    model.training = True  # so that the term counts, and gates are not sampled
    plain, priced = (build(n, model, l0_lambda=0.5) for n in (OBJECTIVE, f"{OBJECTIVE}_l0"))
    base = plain(model, sample)[0]
    loss, size, log = priced(model, sample)
    expected = sum(
        1 / (1 + torch.exp(-(2 + x) + 2 / 3 * torch.log(torch.tensor(0.1 / 1.1))))
        for layer in model.encoder.layers
        for x in layer.self_attn.gate.offset
    )
    torch.testing.assert_close(loss - base, 0.5 * size * expected, rtol=1e-4, atol=1e-4)
    assert log["l0_heads"] == 8 and log["l0_open"] == 8
    with pytest.raises(UsageError, match="--l0-lambda is -1"):
        build(f"{OBJECTIVE}_l0", model, l0_lambda=-1.0)


def test_every_objective_has_both_and_no_second_pass_twice():
    for name in ("masked_lm", "sentence_classification", "multiple_choice", "sequence_tagging"):
        for more in ("rdrop", "l0", "ag_rdrop", "ag_rdrop_l0", "asa_l0"):
            assert f"{name}_{more}" in CRITERION_REGISTRY
    assert not [name for name in CRITERION_REGISTRY if "asa" in name and "rdrop" in name]
    assert "sentence_prediction_rdrop" in CRITERION_REGISTRY


@pytest.fixture(scope="module")
def closing(data_bin, tmp_path_factory):
    """A training that closes heads at all sites."""
    own = "--head-gate l0 --head-gate-sites encoder,decoder,cross --l0-lambda 9 --lr 1.5".split()
    folder = tmp_path_factory.mktemp("closing")
    more = ["--criterion", "label_smoothed_cross_entropy_ag_rdrop_l0", "--ag-alpha", 1]
    small = "--encoder-layers 1 --decoder-layers 1 --warmup-updates 1 --log-file".split()
    log = folder / "log.jsonl"
    path = train(data_bin, "transformer_una_tiny", folder, 8, *own, *more, *small, log)
    return path, log.read_text("utf-8")


def test_a_training_that_closes_heads_says_how_many_are_left(data_bin, closing):
    path, text = closing
    lines = [json.loads(line[line.index("{") :]) for line in text.splitlines() if '"loss"' in line]
    left = [float(line["l0_left"]) for line in lines if "l0_left" in line]
    assert left[0] == 100 and left[-1] < 100
    assert float(lines[0]["rdrop_divergence"]) > 0
    assert len(read_hypotheses(generate(data_bin, path))) == 100
