"""--asa-preset released, against numbers worked out with the modelling code of Wu et al. 2023."""

import math
import zlib
from argparse import Namespace
from contextlib import nullcontext

import pytest
import torch
from adversarial import PLACES, build, kl

from fairseq_ext.criterions.adversarial.asa_options import RELEASED, resolve_options
from fairseq_ext.data.rows import IGNORED, pad_batch
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.second_pass.adversary import Adversary
from fairseq_ext.mechanisms.second_pass.passes import SecondPass
from fairseq_ext.training.training_checks import check_criterion


def formula(name, shape):
    """Numbers from -1 to 1, the same on every machine; small ones in adversaries."""
    start = zlib.crc32(name.encode()) % 1000
    places = torch.arange(1, math.prod(shape) + 1, dtype=torch.float64)
    scale = 1.0 if "adversary" not in name else 0.02 if name.endswith("bias") else 0.2
    return scale * torch.sin(places * places + start).view(shape)


def build_released(name, bert, model=None, **options):
    """Build a model of formulas, in float64, and its criterion; rows are padded to 128 tokens."""
    sizes = {"encoder_layers": 2, "max_positions": 128, **(model or {})}
    segments = 2 if bert else 0
    case = build(name, model=sizes, segments=segments, **{"asa_preset": "released", **options})
    case.model.double()
    with torch.no_grad():
        for key, parameter in case.model.named_parameters():
            norm = key.endswith(("norm.weight", "embedding.weight"))
            parameter.copy_(formula(key, parameter.shape) + norm)
    return case


# Objective and whether it is a BERT, else a RoBERTa -> loss, divergence, and the norms of the
# gradients of the query weights of the adversaries in layers 0 and 1 and of the values in layer 0.
# The authors' classes, without dropout, on the same parameters and rows padded to 128 tokens.
WORKED = {
    ("sentence_classification", True): (154.13293, 0.31737196, 40.619, 66.7629, 3.82464),
    ("sentence_classification", False): (156.78047, 0.48503716, 426.972, 252.452, 5.10906),
    ("sentence_regression", True): (168.66671, 0.10108334, 45.3476, 63.94, 42.4562),
    ("sentence_regression", False): (175.98211, 0.34811243, 419.72, 180.771, 69.888),
    ("multiple_choice", True): (260.76451, 0.33713076, 508.832, 127.577, 6.10526),
    ("multiple_choice", False): (348.22224, 1.6895377, 7014.58, 553.892, 12.3449),
    ("sequence_tagging", True): (241.01295, 82.774986, 2022.69, 1724.5, 116.077),
    ("sequence_tagging", False): (257.54895, 99.230435, 49433.1, 34642.1, 271.308),
}


@pytest.mark.parametrize(("name", "bert"), WORKED)
@pytest.mark.parametrize("in_sequence", [False, True], ids=["together", "in sequence"])
def test_worked_numbers(name, bert, in_sequence):
    """Loss, divergence and the forces on adversaries and model, padding included."""
    case = build_released(name, bert, asa_in_sequence=in_sequence)
    loss, log, _ = case.outputs(case.sample(PLACES))
    (loss / log["sample_size"]).backward()
    gradients = [m.query.weight.grad for m in case.model.modules() if isinstance(m, Adversary)]
    layer = case.model.encoder.sentence_encoder.layers[0]
    norms = [float(g.norm()) for g in (*gradients, layer.self_attn.v_proj.weight.grad)]
    apart = float(log["asa_divergence"] / log["sample_size"])
    assert ((loss / log["sample_size"]).item(), apart, *norms) == pytest.approx(
        WORKED[name, bert], rel=5e-6
    )


def test_tau_and_length_are_options_of_the_released_code_too():
    case = build_released("sentence_classification", True, asa_tau=0.3, asa_padded_length=70)
    loss = case.outputs(case.sample(PLACES))[0] / len(PLACES)
    loss.backward()
    first = next(m for m in case.model.modules() if isinstance(m, Adversary))
    assert loss.item() == pytest.approx(32.0217605, rel=1e-7)
    assert first.query.weight.grad.norm().item() == pytest.approx(63.5131364, rel=5e-6)


def test_divergence_of_tagging_in_both_scales():
    """All tokens with padding, divided by sentences, or the mean over words that have a tag."""
    options = {"asa_divergence": "symmetric", "asa_tau": 0.0, "asa_preset": "none"}
    for every in (False, True):
        tagging = {"asa_tagging": "tokens"} if every else {}
        case = build_released("sequence_tagging", True, **options, **tagging)
        sample = case.sample(PLACES)
        loss, log, [(_, clean)] = case.outputs(sample)
        other = clean[1]["second"][0]
        tokens = torch.ones_like(sample["target"]) if every else sample["target"].ne(IGNORED)
        pairs = [(clean[0][b, i], other[b, i]) for b, i in tokens.nonzero()]
        total = sum((kl(p, q) + kl(q, p)) / 2 for p, q in pairs).item()
        total /= len(PLACES) if every else len(pairs)
        size = log["sample_size"]
        assert log["asa_divergence"].item() / size == pytest.approx(total, rel=1e-6)
        assert (loss - log["loss"]).item() / size == pytest.approx(total, rel=1e-4)


@pytest.mark.parametrize("bert", [True, False])
def test_padding_matters_as_there(bert):
    """A longer row of padding changes the loss; without the preset it changes nothing."""
    losses = []
    for length in (20, 40):
        options = {"asa_tau": 0.0, "asa_padded_length": length}
        case = build_released("sentence_classification", bert, room=20, **options)
        losses.append(case.outputs(case.sample(PLACES))[0].item())
    assert abs(losses[0] - losses[1]) > 1e-3
    plain = build_released("sentence_classification", bert, asa_preset="none", asa_tau=0.0)
    samples = [plain.sample(PLACES), pad_batch(plain.sample(PLACES), 20, 1)]
    found = [plain.outputs(sample)[0].item() for sample in samples]
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_padding_is_embedded_as_there_in_an_encoder_alone():
    """Whether tokens are given as numbers or embedded, padding has an embedding and a position."""
    encoder = build_released("sentence_classification", False).model.encoder.sentence_encoder
    tokens = torch.tensor([[0, 5, 6, 2, 1, 1]])
    given = encoder.embed_tokens(tokens)
    outputs = {}
    for padding in ("bert", None):
        second = SecondPass(embedded_padding=padding)
        outputs[padding] = encoder(tokens, second=second)["encoder_out"][0]
        embedded = encoder(tokens, token_embeddings=given, second=second)["encoder_out"][0]
        torch.testing.assert_close(embedded, outputs[padding])
    first = outputs["bert"]
    assert not torch.equal(first[4], first[5])  # their positions differ
    torch.testing.assert_close(first[:4], outputs[None][:4])  # real tokens do not see padding


def test_evaluation_pads_nothing():
    case = build_released("sequence_tagging", True)
    case.model.eval()
    sample = case.sample(PLACES)
    shapes = [out[0].shape[:2] for _, out in case.outputs(sample)[2]]
    assert shapes == [sample["target"].shape]


def test_padded_batches():
    inputs = {name: torch.ones(2, 3).long() for name in ("src_tokens", "segments")}
    batch = {
        "net_input": {**inputs, "annotations": torch.ones(2, 3, 3).long()},
        "target": torch.zeros(2, 3).long(),
        "nsentences": 2,
    }
    padded = pad_batch(batch, 5, 7)
    assert padded["net_input"]["src_tokens"].tolist() == [[1, 1, 1, 7, 7]] * 2
    assert padded["net_input"]["segments"].tolist() == [[1, 1, 1, 0, 0]] * 2
    assert padded["net_input"]["annotations"].sum((0, 2)).tolist() == [6, 6, 6, -6, -6]
    assert padded["target"].tolist() == [[0, 0, 0, IGNORED, IGNORED]] * 2
    assert batch["net_input"]["src_tokens"].shape == batch["target"].shape == (2, 3)
    assert pad_batch({**batch, "target": torch.ones(2)}, 5, 7)["target"].shape == (2,)


def test_what_the_preset_sets():
    cfg = build("sequence_tagging", asa_preset="released", model={"max_positions": 128}).criterion
    resolved = vars(cfg.parts[0].cfg)
    assert {name: resolved[name] for name in RELEASED} == RELEASED
    for segments, rows in ((2, "uniform"), (0, "scores")):
        cfg = Namespace(asa_preset="released", asa_empty_rows=None)
        assert resolve_options(cfg, Namespace(segments=segments)).asa_empty_rows == rows


@pytest.mark.parametrize("baseline", ["two_pass", "bernoulli", "magnitude"])
def test_a_baseline_pads_rows_to_the_length_that_is_given(baseline):
    lengths = []
    for given in ({}, {"asa_padded_length": 100}):
        options = {"asa_baseline": baseline, **given}
        case = build_released("sequence_tagging", True, {"asa_layers": "none"}, **options)
        sample = case.criterion.parts[0].prepare(case.sample(PLACES))
        lengths.append(sample["net_input"]["src_tokens"].size(1))
    assert lengths == [128, 100]


def test_the_control_goes_with_roles_since_it_masks_nothing():
    mixed = {"asa_layers": "none", "encoder_roles": "relative"}
    for baseline in ("two_pass", "bernoulli"):
        case = build_released("sequence_tagging", True, mixed, asa_baseline=baseline)
        refused = pytest.raises(UsageError, match="or the preset that sets the rows")
        with nullcontext() if baseline == "two_pass" else refused:
            check_criterion(case.model, case.criterion, "sequence_tagging_asa", 0.0)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"asa_divergence": "kl"}, "--asa-divergence kl contradicts --asa-preset released; leave"),
        ({"asa_penalty": "sum"}, "--asa-penalty sum contradicts"),
        ({"asa_tagging": "words"}, "--asa-tagging words contradicts"),
        ({"asa_empty_rows": "unmasked"}, "--asa-empty-rows unmasked contradicts"),
        ({"asa_sample": True}, "--asa-sample contradicts"),
        ({"asa_alpha": 2.0}, "--asa-alpha 2.0 contradicts"),
        (
            {"asa_padded_length": 63},
            "63, and rows have up to 64 .* give --tokens-per-sample 63",
        ),
        ({"asa_padded_length": 129}, "129, and the encoder has 128 positions; give"),
        (
            {"asa_baseline": "smart"},
            "--asa-preset released has no effect with --asa-b",
        ),
        ({"asa_preset": "none", "asa_padded_length": 70}, "no effect with --asa-penalty sum"),
        ({"asa_padded_length": 0}, "--asa-padded-length is 0; give a whole number from 1"),
    ],
)
def test_refused(options, says):
    with pytest.raises(UsageError, match=says):
        build_released("sequence_tagging", True, **options)


def test_what_the_released_code_does_not_have_is_refused():
    for name in ("masked_lm", "label_smoothed_cross_entropy"):
        with pytest.raises(UsageError, match="--asa-preset released has no effect with --task"):
            build(name, asa_preset="released")
    with pytest.raises(UsageError, match="--asa-tagging tokens has no effect with --task sentence"):
        build("sentence_classification", asa_tagging="tokens")


@pytest.mark.parametrize("baseline", ["two_pass", "bernoulli"])
def test_controls_take_what_they_have(baseline):
    options = {"asa_baseline": baseline, "model": {"asa_layers": "none"}}
    case = build_released("sequence_tagging", True, **options)
    loss, log, _ = case.outputs(case.sample(PLACES))
    apart = 0 if baseline == "two_pass" else log["asa_divergence"].item()
    assert loss.item() == pytest.approx(log["loss"].item() + apart, rel=1e-5)
