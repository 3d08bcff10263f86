"""What adversaries are compared with: noise, against naive twins, and logged rates; refusals."""

import copy
from contextlib import nullcontext

import pytest
import torch
from adversarial import (
    EVERY,
    PAD,
    PLACES,
    assert_same,
    build,
    divergence,
    gradients,
    kl,
)
from fairseq.distributed import ModuleProxyWrapper
from torch import nn

from fairseq_ext.attention.options import check_rules, read_rules
from fairseq_ext.criterions.adversarial.embedding_noise import Noise
from fairseq_ext.criterions.adversarial.masking_rates import read_masking_rates
from fairseq_ext.errors import UsageError
from fairseq_ext.tasks.labelled_task import LabelledConfig
from fairseq_ext.training.training_checks import check_criterion as check

PLAIN = {"asa_layers": "none"}
STEPS = pytest.mark.parametrize("steps", [1, 2, 3])


class Noisy:
    """A model whose embedded tokens have something added to them."""

    def __init__(self, model, delta):
        self.model, self.delta = model, delta

    def __call__(self, **given):
        self.output = self.model(**given, noise=lambda embedded, padding: embedded + self.delta)
        return self.output

    def __getattr__(self, name):
        return getattr(self.model, name)


def first_noise(sample, radius):
    """U(-radius, radius) / sqrt(n C) of each sentence, C = 16; nothing at padding."""
    tokens = sample["net_input"]["src_tokens"]
    delta = torch.empty(*tokens.shape, 16).uniform_(-radius, radius)
    for b, row in enumerate(tokens):
        delta[b] /= (row.ne(PAD).sum() * 16) ** 0.5
        delta[b][row.eq(PAD)] = 0
    return delta


def ascend(delta, gradient, size, radius):
    """A step of this length, then back into the ball, sentence by sentence."""
    moved = []
    for noise, slope in zip(delta.detach(), gradient, strict=True):
        noise = noise + size * slope / (slope.norm() or 1)
        moved.append(noise * radius / noise.norm() if noise.norm() > radius else noise)
    return torch.stack(moved)


@EVERY
@STEPS
@pytest.mark.parametrize(("radius", "size"), [(1.0, 0.2), (0.3, 0.25)], ids=["inside", "projected"])
def test_freelb(name, steps, radius, size):
    """Loss and gradient are means over K passes, each with its own backward pass."""
    options = {"asa_steps": steps, "asa_radius": radius}
    options |= {"asa_step_size": size} if steps > 1 else {}
    case = build(name, asa_baseline="freelb", model=PLAIN, **options)
    sample, losses = case.sample(PLACES), []
    torch.manual_seed(7)
    loss, log, seen = case.outputs(sample)
    assert all(p.grad is None for p in case.model.parameters()) and len(seen) == steps
    ours = gradients(case.model, loss)
    case.model.zero_grad()
    torch.manual_seed(7)
    delta = first_noise(sample, radius)
    for _ in range(steps):
        delta = delta.requires_grad_()
        each = case.criterion.base(Noisy(case.model, delta), sample)[0]
        each.backward()
        losses.append(each.item())
        assert not delta[sample["net_input"]["src_tokens"].eq(PAD)].any()
        delta = ascend(delta, delta.grad, size, radius)
    assert loss.item() == pytest.approx(sum(losses) / steps, rel=1e-5)
    grads = {n: p.grad for n, p in case.model.named_parameters() if p.grad is not None}
    assert_same(ours, {n: gradient / steps for n, gradient in grads.items()})
    assert log["loss"].item() == pytest.approx(losses[0], rel=1e-5)
    assert log["asa_gain"].item() == pytest.approx(sum(losses) / steps - losses[0], abs=1e-3)


DROPPING = {"dropout": 0.5, "attention_dropout": 0.5}


@EVERY
def test_freelb_has_same_dropout_in_all_passes(name):
    """Those of one step are equal where noise is 0, with one choice of layers; steps differ."""
    noiseless = {"asa_steps": 3, "asa_radius": 0.0, "asa_step_size": 0.0}
    model = PLAIN | DROPPING | {"encoder_layerdrop": 0.3}
    case, firsts = build(name, asa_baseline="freelb", model=model, **noiseless), []
    for _ in range(2):
        first, *others = (output[0] for _, output in case.outputs(case.sample(PLACES))[2])
        assert len(others) == 2 and all(torch.equal(first, other) for other in others)
        firsts.append(first)
    assert not torch.equal(*firsts)


# SMART.


def both(one, other):
    return kl(one, other) + kl(other, one)


class NaiveSmart:
    """alpha l(f(x + delta), f(x)) + mu l(f(x), mean(x)), l both KLs."""

    def __init__(self, case, steps, radius, size, beta):
        self.case, self.model, self.steps = case, case.model, steps
        self.radius, self.size, self.beta = radius, size, beta
        self.mean = copy.deepcopy(case.model).eval()

    def update(self):
        for mean, parameter in zip(self.mean.parameters(), self.model.parameters(), strict=True):
            mean.data = self.beta * mean.data + (1 - self.beta) * parameter.data

    def distance(self, sample, one, other):
        return divergence(self.case.name, sample, one, other, both)

    def loss(self, sample, alpha, mu):
        base, _, [(given, clean)] = self._base(sample, self.model)
        fixed = (clean[0].detach(), {"features": clean[1].get("features")})
        delta = first_noise(sample, self.radius)
        for _ in range(self.steps):
            delta = delta.requires_grad_()
            noisy = Noisy(self.model, delta)
            apart = self.distance(sample, noisy(**given), fixed)
            delta = ascend(delta, torch.autograd.grad(apart, delta)[0], self.size, self.radius)
        apart = self.distance(sample, Noisy(self.model, delta)(**given), clean)
        with torch.no_grad():
            mean = self.mean(**given)
        self.noise = delta
        return base + alpha * apart + mu * self.distance(sample, clean, mean)

    def _base(self, sample, model):
        seen = []
        hook = model.register_forward_hook(
            lambda model, args, given, output: seen.append((given, output)), with_kwargs=True
        )
        loss = self.case.criterion.base(model, sample)[0]
        hook.remove()
        return loss, None, seen


def move(model, seed):
    """What an optimiser does."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    model.zero_grad()
    model.set_num_updates(seed)


@EVERY
@STEPS
def test_smart(name, steps):
    compare_smart(name, steps, PLAIN)


def test_smart_of_shared_embeddings():
    """One module is the embedding of both sides, and its weight that of the output too."""
    compare_smart("label_smoothed_cross_entropy", 1, PLAIN | {"share_all_embeddings": True})


@pytest.mark.parametrize(
    "mechanism",
    [
        {"head_gate": "static"},
        {"head_gate": "input"},
        {"encoder_normaliser": "hybrid"},
        {"encoder_normaliser": "sink"},
        {"encoder_positions": "t5"},
        {"encoder_head_mixer": "talking"},
        {"encoder_head_mixer": "differential"},
        {"encoder_scorer": "random"},
    ],
    ids=lambda mechanism: str(*mechanism.values()),
)
def test_smart_of_mechanisms_with_parameters(mechanism):
    """The mean is of all parameters, also of those that are used as they are."""
    compare_smart("masked_lm", 1, PLAIN | mechanism)


def compare_smart(name, steps, model):
    """Over three updates of two batches each, from the second of which the mean lags behind."""
    options = {"asa_radius": 0.4, "asa_step_size": 0.3, "smart_beta": 0.7, "smart_mu": 2.0}
    given = {"asa_steps": steps, "asa_alpha": 1.5, **options}
    case = build(name, asa_baseline="smart", model=model, **given)
    twin = NaiveSmart(case, steps, 0.4, 0.3, 0.7)
    for update in range(3):
        if update:
            move(case.model, update)
            twin.update()
        for part in ([0, 1], [2, 3]):
            sample = case.sample(part)
            torch.manual_seed(7)
            loss, log, seen = case.outputs(sample)
            assert len(seen) == steps + 3 and not any(
                p.grad is not None for p in case.model.parameters()
            )
            ours = gradients(case.model, loss)
            torch.manual_seed(7)
            expected = twin.loss(sample, 1.5, 2.0)
            torch.testing.assert_close(loss.double(), expected.double(), rtol=1e-4, atol=1e-3)
            assert_same(ours, gradients(case.model, expected), 1e-3)
            case.model.zero_grad()
    kept = case.task.state.state_dict["smart_mean"]
    torch.testing.assert_close(kept, {n: p.data for n, p in twin.mean.named_parameters()})


def smart(model=PLAIN | DROPPING, **options):
    """Of one that drops out half of everything, and an update of it."""
    case = build("masked_lm", asa_baseline="smart", model=model, **options)

    def update(number):
        move(case.model, number)
        return case.outputs(case.sample(PLACES))

    return case, update


def test_the_mean_predicts_without_dropout_and_gradient():
    case, update = smart(asa_steps=2)
    how = []
    case.model.register_forward_pre_hook(
        lambda model, given: how.append((model.training, torch.is_grad_enabled()))
    )
    update(0)
    assert how == [(True, True)] * 4 + [(False, False)]
    assert case.model.training and case.model.encoder.sentence_encoder.layers[0].training
    how.clear()
    _, update_without = smart(smart_mu=0.0)
    assert len(update_without(0)[2]) == 3


def test_the_mean_goes_on_after_a_resume():
    """Task and model are loaded; the next update is that of an uninterrupted training."""
    whole, update = smart(smart_beta=0.5)
    update(0)
    update(1)
    state = copy.deepcopy((whole.model.state_dict(), whole.task.state.state_dict))
    resumed, update_resumed = smart(smart_beta=0.5)
    resumed.model.load_state_dict(state[0])
    resumed.task.state.merge_state_dict(state[1])
    expected, found = update(2)[0], update_resumed(2)[0]
    torch.testing.assert_close(resumed.task.state.state_dict, whole.task.state.state_dict)
    torch.testing.assert_close(found, expected)


class Parallel(nn.Module):
    """What fairseq puts around a model of several processes."""

    def __init__(self, model):
        super().__init__()
        self.module = model

    def forward(self, **given):
        return self.module(**given)


def test_the_mean_is_that_of_any_number_of_processes():
    """A training may go on with another one."""
    one, many = (smart(PLAIN)[0] for _ in range(2))
    found = []
    for case, model in ((one, one.model), (many, ModuleProxyWrapper(Parallel(many.model)))):
        for update in range(2):
            move(case.model, update)
            loss = case.criterion(model, case.sample(PLACES))[0]
        found.append((loss, case.task.state.state_dict["smart_mean"]))
    torch.testing.assert_close(*found)


def test_half_precision_does_not_stop_the_mean():
    """A step of a thousandth is lost in bfloat16, unless the mean is kept in more."""
    case, _ = smart(smart_beta=0.999)
    case.model.bfloat16()
    sample = case.sample(PLACES)
    for update in range(30):
        case.model.set_num_updates(update)
        case.criterion(case.model, sample)
        if not update:
            with torch.no_grad():
                case.model.encoder.lm_head.dense.weight += 1
    first = case.model.encoder.lm_head.dense.weight - 1
    mean = case.task.state.state_dict["smart_mean"]["encoder.lm_head.dense.weight"]
    share = (mean.float() - first.float()).mean().item()
    assert share == pytest.approx(1 - 0.999**29, rel=0.1)


# Rates of a log.


def write_log(folder, lines):
    folder.mkdir(exist_ok=True)
    text = "2026-01-01 00:00:00 | INFO | {} | {{{}}}"
    lines = [text.format(kind, f'"num_updates": "{u}", {values}') for kind, u, values in lines]
    (folder / "train.log").write_text("\n".join(lines) + "\n")
    return folder


def masked(share):
    return f'"loss": "3", "asa_masked": "{share}", "asa_masked_0": "0.25"'


def test_rates_are_those_of_the_log(tmp_path):
    lines = [("train_inner", u, masked(s)) for u, s in ((100, 0.5), (200, 0.3), (400, 0.1))]
    lines.insert(2, ("valid", 250, masked(0.9)))
    run = write_log(tmp_path, [("train_inner", 10, '"loss": "4"'), *lines])
    for log in (run, run / "train.log"):
        assert read_masking_rates(str(log)) == ([100, 200, 400], [0.5, 0.3, 0.1])
    case, rates = build("masked_lm", asa_baseline="scheduled", asa_log=str(run)), {}
    for update in (0, 100, 150, 300, 400, 9000):
        case.model.set_num_updates(update)
        _, _, [(given, _)] = case.outputs(case.sample(PLACES))
        rates[update] = given["second"].rate
    assert rates == pytest.approx({0: 0.5, 100: 0.5, 150: 0.4, 300: 0.2, 400: 0.1, 9000: 0.1})


def test_averages_of_epochs_are_no_rates(tmp_path):
    """Unless a log has nothing finer."""
    epochs = [("train", 150, masked(0.7)), ("train", 300, masked(0.4))]
    steps = [("train_inner", u, masked(s)) for u, s in ((100, 0.8), (200, 0.5), (300, 0.3))]
    lines = sorted([*steps, *epochs], key=lambda line: line[1])
    assert read_masking_rates(str(write_log(tmp_path / "a", lines)))[1] == [0.8, 0.5, 0.3]
    for name, others in (("b", []), ("c", steps[1:2])):
        assert read_masking_rates(str(write_log(tmp_path / name, [*others, *epochs])))[1] == [
            0.7,
            0.4,
        ]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_noise_on_many_numbers_of_16_bits(dtype):
    """More than 65,504, which in 16 bits are infinitely many."""
    torch.manual_seed(1)
    noise, padding = Noise(0.5), torch.zeros(1, 100, dtype=torch.bool)
    embedded = torch.zeros(1, 100, 768, dtype=dtype)
    out = noise(embedded, padding)
    assert out.dtype == dtype
    assert out.float().norm().item() == pytest.approx(0.5 / 3**0.5, rel=0.02)  # of a uniform one
    moved = noise.ascend((out * torch.ones_like(out)).sum(), 0.4, keep_graph=False)
    assert moved.delta.dtype == dtype
    assert moved.delta.float().norm().item() == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize("factor", [1e-4, 1.0, 100.0])
def test_noise_ascends_gradients_of_any_size(factor):
    """In float16 those below 6e-8 are 0; with the first factor, all but for a scale."""
    moved = []
    for dtype in (torch.float16, torch.float32):
        torch.manual_seed(2)
        noise, weights = Noise(0.5), torch.randn(2, 7, 32)
        out = noise(torch.zeros(2, 7, 32, dtype=dtype), torch.zeros(2, 7, dtype=torch.bool))
        slope = weights * factor if factor < 1 else weights
        loss = ((out * factor).float() * slope).sum()
        moved.append(noise.ascend(loss, 0.4, keep_graph=False).delta.float())
    assert torch.cosine_similarity(*(x.flatten(1) for x in moved)).min() > 0.999


def test_noise_is_the_same_in_float16():
    """SMART's, whose divergence begins near 0."""
    small = {"asa_radius": 1e-2, "asa_step_size": 1e-2}
    found = []
    for dtype in (torch.float16, torch.float32):
        case = build("sentence_classification", asa_baseline="smart", model=PLAIN, **small)
        for parameter in case.model.parameters():
            if parameter.dim() > 1:
                parameter.data *= 0.1
        case.model.to(dtype)
        torch.manual_seed(2)
        found.append(case.outputs(case.sample(PLACES))[2][2][0]["noise"].delta.float())
    assert torch.cosine_similarity(*(x.flatten(1) for x in found)).min() > 0.99


def test_the_mean_of_models_predicts_in_training(monkeypatch):
    """What metrics cost in evaluation is not paid at each update."""
    case, asked = build("sequence_tagging", asa_baseline="smart", model=PLAIN), []
    monkeypatch.setattr(
        type(case.criterion.base),
        "count",
        lambda self, scores, sample, training: {"seen": asked.append(training)},
    )
    case.criterion(case.model, case.sample([0, 1]))
    assert asked == [True] * 4 and case.model.training


# Refused.


def begin(name, criterion=None, **options):
    """As a training begins."""
    case = build(name, criterion, **options)
    check(case.model, case.criterion, criterion or f"{name}_asa", 0.0)
    return case


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"asa_tau": -1.0}, "--asa-tau is -1; give a number from 0 upwards"),
        ({"asa_tau": float("nan")}, "--asa-tau is nan; give a number from 0 upwards"),
        ({"asa_alpha": -0.5}, "--asa-alpha is -0.5; give a number from 0 upwards"),
        ({"asa_rate": 1.5}, "--asa-rate is 1.5; give a number from 0 to 1"),
        ({"asa_rate": -0.1}, "--asa-rate is -0.1; give a number from 0 to 1"),
        ({"asa_steps": 0}, "--asa-steps is 0; give a whole number from 1 to"),
        ({"asa_radius": -1.0}, "--asa-radius is -1; give"),
        ({"asa_step_size": -1.0}, "--asa-step-size is -1; give"),
        ({"smart_mu": -1.0}, "--smart-mu is -1; give"),
        ({"smart_beta": 1.1}, "--smart-beta is 1.1; give a number from 0 to 1"),
        (
            {"asa_baseline": "scheduled", "model": PLAIN},
            "--asa-baseline scheduled takes its rates .*give --asa-log",
        ),
        (
            {"asa_baseline": "scheduled", "asa_log": "nowhere", "model": PLAIN},
            "nowhere has no train.log; give",
        ),
        (
            {"asa_baseline": "two_pass", "asa_tau": 0.5},
            "--asa-tau .* no effect .*baseline two_pass; leave",
        ),
        ({"asa_log": "run"}, "--asa-log .* no effect .*baseline none; .* --asa-baseline scheduled"),
        ({"asa_baseline": "bernoulli", "asa_sample": True}, "--asa-sample .* no effect"),
        ({"asa_rate": 0.4}, "--asa-rate .* no effect .* give --asa-baseline bernoulli or"),
        ({"asa_baseline": "freelb", "asa_alpha": 5.0}, "--asa-alpha .* no effect"),
        ({"asa_baseline": "smart", "asa_divergence": "symmetric"}, "--asa-divergence .* no effect"),
        ({"asa_baseline": "smart", "asa_regression": "batch"}, "--asa-regression .* no effect"),
        ({"asa_baseline": "bernoulli", "asa_penalty": "share"}, "--asa-penalty .* no effect"),
        ({"asa_baseline": "bernoulli", "asa_tau": 0.0}, "--asa-tau .* no effect"),
        (
            {"asa_baseline": "two_pass", "asa_empty_rows": "uniform"},
            "--asa-empty-rows .* no effect",
        ),
        ({"asa_regression": "batch"}, "--asa-regression .* give --task sentence_regression"),
        (
            {"asa_baseline": "smart", "smart_mu": 0.0, "smart_beta": 0.5},
            "--smart-beta .* no effect with --smart-mu 0.0; leave it out, or give --smart-mu$",
        ),
        ({"asa_baseline": "freelb", "smart_mu": 2.0}, "--smart-mu .* give --asa-baseline smart"),
        (
            {"asa_baseline": "freelb", "asa_steps": 1, "asa_step_size": 0.5},
            "--asa-step-size 0.5 has no effect with --asa-steps 1",
        ),
        (
            {"asa_baseline": "bernoulli", "asa_steps": 2},
            "--asa-steps .* give --asa-baseline freelb or",
        ),
        ({"model": {"asa_layers": "none"}}, "--criterion masked_lm_asa needs .* give --asa-layers"),
        ({"model": {"asa_layers": "3"}}, "--asa-layers .*3.* 0, 1, 2"),
        ({"model": {"_name": "roberta_una_tiny"}}, "needs an architecture with adversaries; give"),
        ({"model": {"_name": "roberta"}}, "needs an --arch of ours, such as"),
        ({"asa_tau": float("inf")}, "--asa-tau is inf; give a number from 0 to 1000000000"),
    ],
)
def test_refusals(options, says):
    with pytest.raises(UsageError, match=says) as error:
        begin("masked_lm", **options)
    assert str(error.value).count(". ") == 0


def test_numbers_are_compared_by_no_divergence():
    """But where a batch of them is."""
    with pytest.raises(UsageError, match="--asa-divergence .* give --asa-regression batch"):
        begin("sentence_regression", asa_divergence="symmetric")
    begin("sentence_regression", asa_divergence="symmetric", asa_regression="batch")


@pytest.mark.parametrize("baseline", ["two_pass", "bernoulli", "freelb", "smart"])
@pytest.mark.parametrize("arch", ["roberta", "transformer"])
def test_baselines_are_for_architectures_of_ours(baseline, arch):
    """Those of fairseq know of no second pass and of no noise."""
    name = "masked_lm" if arch == "roberta" else "label_smoothed_cross_entropy"
    with pytest.raises(UsageError, match=f"{name}_asa needs an --arch of ours, such as"):
        begin(name, asa_baseline=baseline, model={"_name": arch})


@pytest.mark.parametrize("values", ['"loss": "4"', '"asa_masked": "0.1"'], ids=["none", "naive"])
def test_a_log_without_adversaries_is_refused(tmp_path, values):
    run = write_log(tmp_path, [("train_inner", 10, values)])
    with pytest.raises(UsageError, match=f"--asa-log {run} names no asa_masked_0; give"):
        begin("masked_lm", asa_baseline="scheduled", asa_log=str(run), model=PLAIN)


@pytest.mark.parametrize("name", ["masked_lm", "sequence_tagging"])
def test_adversaries_that_nobody_trains_are_refused(name):
    for criterion, given in ((name, {}), (None, {"asa_baseline": "two_pass"})):
        with pytest.raises(UsageError, match="give one with _asa .* or --asa-layers none"):
            begin(name, criterion, **given)
        begin(name, criterion, model=PLAIN, **given)
    begin(name)


@pytest.mark.parametrize("empty", ["uniform", "scores"])
def test_rows_that_see_past_roles_are_refused(empty):
    guided = {"encoder_roles": "relative"}
    with pytest.raises(UsageError, match=f"--asa-empty-rows {empty} looks at all positions"):
        begin("masked_lm", asa_empty_rows=empty, model=guided)
    begin("masked_lm", model=guided)
    begin("masked_lm", asa_empty_rows=empty)


@pytest.mark.parametrize(
    ("option", "refused"),
    [
        ({"asa_baseline": "none"}, True),
        ({"asa_baseline": "bernoulli"}, False),
        ({"ag_preset": "none"}, True),
        ({"l0_lambda": 0.05}, True),
    ],
)
def test_what_a_frozen_encoder_cannot_learn(option, refused):
    rules = read_rules(LabelledConfig)
    options = {"criterion": "masked_lm_ag_l0_asa", **option}
    check_rules({**options, "freeze_encoder": False}, rules)
    says = pytest.raises(UsageError, match="^--criterion masked_lm.* leave out --freeze-encoder")
    with says if refused else nullcontext():
        check_rules({**options, "freeze_encoder": True}, rules)


@pytest.mark.parametrize(
    ("name", "criterion", "says"),
    [
        ("multiple_choice", "sentence_prediction_asa", "sentence_regression, and not for multiple"),
        ("sentence_classification", "sentence_ranking_asa", "is for --task multiple_choice"),
        ("sentence_classification", "sequence_tagging_asa", "needs --task sequence_tagging"),
        ("sequence_tagging", "sentence_prediction_asa", "and not for sequence_tagging; give both"),
    ],
)
def test_criterions_of_other_tasks_are_refused(name, criterion, says):
    with pytest.raises(UsageError, match=f"--criterion .* {says}"):
        build(name, criterion)
