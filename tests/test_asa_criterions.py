"""Adversarial self-attention and its baselines as criterions, against naive twins."""

from argparse import Namespace
from dataclasses import fields
from itertools import product

import pytest
import torch
from adversarial import (
    EVERY,
    NAMES,
    PAD,
    PLACES,
    TEXT,
    Task,
    assert_same,
    build,
    divergence,
    gradients,
    kl,
    targets,
)
from fairseq.logging import metrics

from fairseq_ext.criterions.adversarial.adversarial_attention import Adversaries
from fairseq_ext.criterions.adversarial.asa_options import AdversarialConfig
from fairseq_ext.mechanisms.second_pass.adversary import Adversary

# The loss (Eq. 9, 10), from what the model says and what the adversaries keep.


def symmetric(clean, other):
    return (kl(clean, other) + kl(other, clean)) / 2


def penalty_of(name, sample, masks, penalty):
    """Of masks [B, h, T, T] before padding is taken out, layer by layer."""
    total, weights = 0.0, targets(name, sample)
    for keep in masks:
        for b, row in enumerate(sample["net_input"]["src_tokens"]):
            real = row.ne(PAD)
            queries = torch.ones_like(real) if penalty == "padded" else real
            kept = keep[b].mean(0)[queries][:, real].sum()
            share = penalty == "share"
            total += weights[b] * (kept / real.sum() ** 2 / len(masks) if share else kept)
    return total


def adversaries(model):
    return [module for module in model.modules() if isinstance(module, Adversary)]


VARIANTS = {
    "as it is": {},
    "tau": {"asa_tau": 0.7},
    "tau squared": {"asa_tau_squared": True},
    "tau 0": {"asa_tau": 0.0},
    "alpha": {"asa_alpha": 2.5},
    "alpha 0": {"asa_alpha": 0.0},
    "symmetric": {"asa_divergence": "symmetric"},
    "padded": {"asa_penalty": "padded"},
    "share": {"asa_penalty": "share"},
    "in sequence": {"asa_in_sequence": True},
    "for each head": {"model": {"asa_per_head": True}},
    "upper": {"model": {"asa_layers": "1,2"}},
    "pre-norm": {"model": {"encoder_normalize_before": True}},
}


@pytest.mark.parametrize(
    ("name", "variant"),
    [pair for pair in product(NAMES, VARIANTS) if pair != ("sentence_regression", "symmetric")],
)
def test_the_loss_is_that_of_the_equations(name, variant):
    options = VARIANTS[variant]
    case, masks = build(name, **options), []
    sample = case.sample(PLACES)
    for adversary in adversaries(case.model):
        adversary.register_forward_hook(lambda m, given, keep: masks.append(keep.detach()))
    loss, log, [(_, clean)] = case.outputs(sample)
    apart = divergence(
        *(name, sample, clean, clean[1]["second"]),
        symmetric if "asa_divergence" in options else kl,
    )
    tau = options.get("asa_tau", 0.1 if name == "masked_lm" else 0.3)
    tau = tau**2 if "asa_tau_squared" in options else tau
    base = case.criterion.base(case.model, sample)[0]
    kept = penalty_of(name, sample, masks, options.get("asa_penalty", "sum"))
    expected = base + options.get("asa_alpha", 1) * apart + tau * kept
    torch.testing.assert_close(loss.double(), expected.double(), rtol=2e-5, atol=1e-4)
    assert apart > 0.05 and kept > 0.1
    assert torch.equal(log["loss"], base.detach())


@pytest.mark.parametrize("baseline", ["two_pass", "smart"])
def test_a_prefix_without_a_loss_is_not_compared(baseline):
    options = {"ignore_prefix_size": 1, "asa_baseline": baseline, "model": {"asa_layers": "none"}}
    case = build("label_smoothed_cross_entropy", **options)
    sample, part = case.sample(PLACES), case.criterion.parts[0]
    whole = part.divergence
    part.divergence = whole._replace(  # 1 for each prediction that counts
        score_distance=lambda p, q: 0 * whole.score_distance(p, q) + 1
    )
    log = case.criterion(case.model.train(), sample)[2]
    assert log["asa_divergence"] == sample["ntokens"] - len(PLACES)


@pytest.mark.parametrize(
    ("name", "tau"),
    [
        *[(name, 0.1) for name in ("masked_lm_sop_asa", "replaced_token_detection_ag_asa")],
        ("cross_entropy_asa", 0.3),
    ],
)
def test_the_penalty_is_lower_in_pre_training(name, tau):
    given = {field.name: field.default for field in fields(AdversarialConfig)} | {"_name": name}
    assert Adversaries(Namespace(**given), Task()).tau == tau


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("baseline", ["none", "two_pass", "smart", "freelb"])
def test_a_batch_in_which_nothing_is_masked(baseline, rows):
    """fairseq then predicts all tokens on a CPU."""
    model = {} if baseline == "none" else {"model": {"asa_layers": "none"}}
    case = build("masked_lm", asa_baseline=baseline, **model)
    sample = case.sample([3] * rows)
    sample["target"].fill_(PAD)
    loss, log, _ = case.outputs(sample)
    assert loss.item() == pytest.approx(log["loss"].item())


@pytest.mark.parametrize("distance", [kl, symmetric])
def test_numbers_as_one_distribution_over_the_batch(distance):
    options = {"asa_divergence": distance.__name__, "asa_regression": "batch", "asa_tau": 0.0}
    case = build("sentence_regression", **options)
    sample = case.sample(PLACES)
    loss, log, [(_, clean)] = case.outputs(sample)
    apart = distance(clean[0].view(-1), clean[1]["second"][0].view(-1)).float()
    torch.testing.assert_close(loss, log["loss"] + apart)
    assert apart > 0.1
    alone = case.sample([1])
    torch.testing.assert_close(
        *case.outputs(alone)[:2][0:1], case.criterion.base(case.model, alone)[0]
    )


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("sentence_prediction_asa", "sentence_classification"),
        ("sentence_prediction_asa", "sentence_regression"),
        ("sentence_ranking_asa", "multiple_choice"),
    ],
)
def test_names_of_fairseq_mean_what_the_task_does(alias, name):
    ours, theirs = build(name), build(name, alias)
    assert type(ours.criterion) is type(theirs.criterion)
    sample = ours.sample(PLACES)
    torch.testing.assert_close(ours.outputs(sample)[0], theirs.outputs(sample)[0])


# Batches.


@EVERY
@pytest.mark.parametrize("baseline", [{}, {"asa_baseline": "magnitude", "asa_rate": 0.4}])
@pytest.mark.parametrize("parts", [[[0, 1], [2, 3]], [[0], [1], [2], [3]]], ids=["halves", "alone"])
def test_a_batch_is_the_sum_of_its_parts(name, baseline, parts):
    """So that --update-freq and the number of processes change nothing."""
    case = build(name, **baseline)
    whole = case.criterion(case.model, case.sample(PLACES))
    each = [case.criterion(case.model, case.sample(part)) for part in parts]
    logs = [log for *_, log in each]
    assert all(log.keys() == whole[2].keys() for log in logs)
    for key in whole[2]:
        if key != "sample_size":
            total = sum(torch.as_tensor(log[key]) for log in logs)
            torch.testing.assert_close(total, torch.as_tensor(whole[2][key]), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(sum(loss for loss, *_ in each), whole[0])
    ours = gradients(case.model, whole[0])
    theirs = gradients(case.model, sum(loss for loss, *_ in each))
    assert_same(ours, theirs)


@pytest.mark.parametrize("name", TEXT)
@pytest.mark.parametrize("baseline", ["freelb", "smart"])
def test_noise_is_of_each_sentence(name, baseline):
    """Both halves are as long as the whole, so the same noise is drawn."""
    case = build(name, asa_baseline=baseline, asa_steps=2, model={"asa_layers": "none"})
    torch.manual_seed(3)
    whole = case.criterion(case.model, case.sample(PLACES))[0]
    torch.manual_seed(3)
    halves = [case.criterion(case.model, case.sample(part))[0] for part in ([0, 1], [2, 3])]
    torch.testing.assert_close(sum(halves), whole)


def test_activation_checkpointing_keeps_loss_and_gradient():
    """Those of adversaries too."""
    for baseline in ("none", "magnitude", "freelb", "smart"):
        found = []
        for options in ({}, {"checkpoint_activations": True}):
            case = build("masked_lm", asa_baseline=baseline, model=options)
            torch.manual_seed(3)
            loss = case.criterion(case.model, case.sample(PLACES))[0]
            found.append((loss.detach(), gradients(case.model, loss)))
        torch.testing.assert_close(found[0][0], found[1][0])
        assert_same(found[0][1], found[1][1])


# Evaluation and logs.


@EVERY
@pytest.mark.parametrize("baseline", ["none", "two_pass", "freelb", "smart"])
def test_evaluation_is_that_of_the_objective(name, baseline):
    """One pass, and nothing logged that it does not log."""
    case, plain = build(name, asa_baseline=baseline), build(name, name)
    for each in (case, plain):
        each.model.eval()
    (loss, log, seen), (expected, logged, alone) = (
        each.outputs(each.sample(PLACES)) for each in (case, plain)
    )
    assert len(seen) == 1 and seen[0][0].keys() == alone[0][0].keys()
    assert torch.equal(loss, expected) and log.keys() == logged.keys()
    for key in log:
        assert torch.equal(torch.as_tensor(log[key]), torch.as_tensor(logged[key])), key


def reduced(criterion, logs):
    with metrics.aggregate(new_root=True) as found:
        criterion.reduce_metrics(logs)
    return found.get_smoothed_values()


@EVERY
def test_logs_of_several_workers(name):
    case = build(name, model={"asa_layers": "0,2"})
    logs, apart, size, masked = [], 0, 0, {0: [], 2: []}
    for part in ([0, 1, 2], [3, 0], [1]):
        sample = case.sample(part)
        _, log, [(_, output)] = case.outputs(sample)
        logs.append(log)
        apart += divergence(name, sample, output, output[1]["second"], kl).item()
        size += log["sample_size"]
        for layer, count in output[1]["counts"].items():
            masked[layer].append(((count.units - count.kept.detach()).sum(), count.units.sum()))
    values = reduced(case.criterion, logs)
    assert values["asa_divergence"] == pytest.approx(float(apart / size), abs=2e-5, rel=1e-5)
    shares = {
        f"asa_masked_{i}": [sum(x) for x in zip(*of, strict=True)] for i, of in masked.items()
    }
    shares["asa_masked"] = [sum(x) for x in zip(*shares.values(), strict=True)]
    for key, (less, units) in shares.items():
        assert values[key] == pytest.approx(float(less / units), abs=1e-4)
    assert {key for key in values if key.startswith("asa")} == {*shares, "asa_divergence"}
    assert values["loss"] == reduced(build(name, name).criterion, logs)["loss"]
    if case.criterion.logging_outputs_can_be_summed():
        summed = {key: sum(log[key] for log in logs) for key in logs[0]}
        assert reduced(case.criterion, [summed]) == pytest.approx(values, abs=1e-4)


@pytest.mark.parametrize(
    ("baseline", "penalty"),
    [("none", "sum"), ("none", "share"), ("bernoulli", "sum"), ("two_pass", "sum")],
)
def test_dropped_layers_change_no_key_of_a_log(baseline, penalty):
    """Workers drop different ones; sums over them need the same keys, and tensors of one form."""
    dropping = {"encoder_layerdrop": 0.5}
    case = build("masked_lm", asa_baseline=baseline, asa_penalty=penalty, model=dropping)
    expected = build("masked_lm", asa_baseline=baseline).outputs(case.sample(PLACES))[1].keys()
    torch.manual_seed(0)
    layers, shapes, logs = set(), set(), []
    for _ in range(40):
        loss, log, [(_, output)] = case.outputs(case.sample(PLACES))
        assert log.keys() == expected and loss.isfinite()
        shapes.add(log["asa_counts"].shape)  # a tensor, which is summed apart from numbers
        layers.add(len(output[1]["counts"]))
        logs.append(log)
    assert layers == ({0} if baseline == "two_pass" else {0, 1, 2, 3})
    assert shapes == {(3, 2) if baseline == "none" else (2,)}
    assert ("asa_masked" in reduced(case.criterion, logs)) == (baseline != "two_pass")


def test_naive_masks_are_logged():
    case = build("masked_lm", asa_baseline="bernoulli", asa_rate=0.25)
    torch.manual_seed(0)
    logs = [case.outputs(case.sample(PLACES))[1] for _ in range(60)]
    values = reduced(case.criterion, logs)
    assert values["asa_masked"] == pytest.approx(0.25, abs=0.01)
    two = build("masked_lm", asa_baseline="two_pass", model={"dropout": 0.3})
    values = reduced(two.criterion, [two.outputs(two.sample(PLACES))[1]])
    assert values["asa_divergence"] > 0.01 and "asa_masked" not in values
