"""Label-smoothed cross-entropy with its gradient: fairseq's own in float64 is the twin."""

import pytest
import torch
from adversarial import build
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss

from fairseq_ext.criterions import objectives, smoothed_loss
from fairseq_ext.criterions.smoothed_loss import SmoothedLoss

PAD = 1


def twin(scores, target, epsilon):
    scores = scores.double().detach().requires_grad_()
    loss, nll = label_smoothed_nll_loss(scores.log_softmax(-1), target, epsilon, PAD)
    (3 * loss).backward()
    return loss, nll, scores.grad


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("part", [1, 3, 100])
@pytest.mark.parametrize("scale", [1, 1e4])
def test_loss_and_gradient_are_those_of_fairseq(epsilon, part, scale):
    generator = torch.Generator().manual_seed(1)
    scores = scale * torch.randn(10, 17, generator=generator)
    target = torch.tensor([4, PAD, 5, PAD, PAD, 16, 0, 4, 9, PAD])
    own = scores.clone().requires_grad_()
    loss, nll = SmoothedLoss.apply(own, target, epsilon, PAD, part)
    (3 * loss).backward()
    for found, expected in zip((loss, nll, own.grad), twin(scores, target, epsilon), strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    assert not own.grad[target.eq(PAD)].any() and not nll.requires_grad


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("factor", [1, 2**15])
def test_scores_of_16_bits(dtype, factor):
    """The loss is computed in float32, and its gradient is rounded at its end alone."""
    scores = (4 * torch.randn(10, 17, generator=torch.Generator().manual_seed(1))).to(dtype)
    scores[3, 4] = 40  # others have probabilities that float16 does not know
    target = torch.tensor([4, PAD, 5, 7, PAD, 16, 0, 4, 9, PAD])
    results = []
    for x in (scores.clone(), scores.float()):
        x.requires_grad_()
        loss, nll = SmoothedLoss.apply(x, target, 0.1, PAD, 3)
        (factor * loss).backward()
        results.append((loss, nll, x.grad))
    (loss, nll, gradient), (exact_loss, exact_nll, exact) = results
    assert gradient.dtype == dtype and loss.dtype == nll.dtype == torch.float32
    torch.testing.assert_close((loss, nll), (exact_loss, exact_nll), rtol=1e-6, atol=1e-5)
    once = {torch.float16: 1, torch.bfloat16: 2 if factor != 1 else 1}[dtype]  # roundings
    rounding, smallest = torch.finfo(dtype).eps / 2, torch.finfo(dtype).smallest_normal
    tolerance = {"rtol": 1.01 * once * rounding, "atol": smallest * rounding}
    torch.testing.assert_close(gradient.float(), exact, **tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_losses_of_masked_words(dtype):
    """The same without smoothing and padding; gradients are in 16 bits at their end alone."""
    generator = torch.Generator().manual_seed(1)
    scores = (4 * torch.randn(10, 17, generator=generator)).to(dtype).requires_grad_()
    target = torch.arange(2, 12)
    loss = smoothed_loss.sum_losses(scores, target)
    (3 * loss).backward()
    expected, _, gradient = twin(scores, target, 0.0)
    assert loss.dtype == torch.float32 and scores.grad.dtype == dtype
    torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=1e-5)
    rounding = {torch.float32: 1e-5}.get(dtype, torch.finfo(dtype).eps)
    torch.testing.assert_close(scores.grad.double(), gradient, rtol=rounding, atol=1e-5)
    assert smoothed_loss.sum_losses(scores.detach(), target) == loss


def test_all_targets_may_be_padding():
    scores = torch.randn(2, 5, requires_grad=True)
    loss, nll = SmoothedLoss.apply(scores, torch.full((2,), PAD), 0.1, PAD, 1)
    loss.backward()
    assert loss == nll == 0 and not scores.grad.any()


@pytest.fixture
def computed():
    """A model, and a function that computes the loss of a batch by fairseq's criterion."""
    case = build("label_smoothed_cross_entropy", "label_smoothed_cross_entropy")
    sample = case.sample([0, 1, 2])

    def compute(**options):
        vars(case.criterion).update(options)
        case.model.zero_grad()
        output = case.model(**sample["net_input"])
        loss, nll = case.criterion.compute_loss(case.model, output, sample)
        own = loss.requires_grad and _names(loss.grad_fn) >= {"SmoothedLossBackward"}
        if loss.requires_grad:
            loss.backward()
        gradients = [parameter.grad for parameter in case.model.parameters()]
        return own, loss.item(), nll.item(), gradients

    return case.model, compute


def _names(function):
    """Return the names of the functions of a graph."""
    others = (other for other, _ in function.next_functions if other is not None)
    return {function.name()}.union(*map(_names, others))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_criterion_computes_it(computed, dtype, monkeypatch):
    model, compute = computed
    model.to(dtype)
    exact = dtype == torch.float32
    own, loss, nll, gradients = compute()
    assert own
    monkeypatch.setattr(smoothed_loss, "_is_usual", lambda *given: False)
    stock, *numbers, others = compute()
    assert not stock and numbers == pytest.approx([loss, nll], rel=1e-6)
    near = {"rtol": 1e-4, "atol": 1e-5} if exact else {"rtol": 0.05, "atol": 0.05}
    torch.testing.assert_close(gradients, others, **near)


@pytest.mark.parametrize("name", ["", "_asa", "_rdrop"])
@pytest.mark.parametrize("prefix", [0, 2, 99])
def test_tokens_without_a_loss_are_not_in_its_mean(name, prefix, caplog):
    """The size is that of a sample without them; loss / size is the mean over what counts."""
    name = f"label_smoothed_cross_entropy{name}"
    case = build("label_smoothed_cross_entropy", name, ignore_prefix_size=prefix)
    sample = case.sample([0, 1, 2])
    case.model.eval()
    loss, size, log = case.criterion(case.model, sample)
    counted = sample["target"][:, prefix:].ne(PAD)
    assert size == log["ntokens"] == counted.sum() and sample["ntokens"] > size - (prefix == 0)
    warned = "--ignore-prefix-size is 99, and no sentence of a batch is longer" in caplog.text
    assert warned == (prefix == 99)
    with torch.no_grad():
        scores = case.model(**sample["net_input"])[0][:, prefix:][counted].log_softmax(-1)
    nll = -scores.gather(1, sample["target"][:, prefix:][counted].unsqueeze(1))
    torch.testing.assert_close(log["nll_loss"], nll.sum(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("prefix", "by_sentence"), [(0, False), (2, False), (2, True)])
def test_weights_of_rows_add_up_to_the_sample_size(prefix, by_sentence):
    case = build("label_smoothed_cross_entropy", "label_smoothed_cross_entropy")
    vars(case.criterion).update(ignore_prefix_size=prefix, sentence_avg=by_sentence)
    sample = case.sample([0, 1, 2])
    weights = objectives.count_target_tokens(case.criterion, sample)
    assert weights.sum() == case.criterion(case.model, sample)[1]


def test_what_is_not_usual_is_left_to_fairseq(computed):
    model, compute = computed
    assert not compute(ignore_prefix_size=1)[0]
    with torch.no_grad():
        assert not compute(ignore_prefix_size=0)[0]
    model.decoder.get_normalized_probs = lambda output, log_probs, sample: output[0].log_softmax(-1)
    assert not compute()[0]
