"""R-Drop: the loss from its definition, and without dropout."""

import pytest
import torch
from mechanism_cases import Case

from fairseq_ext.attention import AttentionRecorder
from fairseq_ext.criterions.divergence import symmetric_kl
from fairseq_ext.criterions.two_copies import double_inputs, halve
from fairseq_ext.data import batch_facts
from fairseq_ext.errors import UsageError
from fairseq_ext.models.mixins import report_model
from fairseq_ext.testing import check_regulariser
from fairseq_ext.testing.losses import OBJECTIVE, _build, _sample, _Task
from fairseq_ext.testing.mechanisms import build_tiny_model

PAD = 1
CASES = [Case("rdrop", "second pass", flags="")]


def build(name, model, **options):
    task = _Task(model.encoder.dictionary)
    report_model(model, task)
    return _build(name, task, options)


def test_r_drop_is_two_losses_and_both_divergences():
    """The copies are one batch of twice the size, in which each has its own dropout."""
    model = build_tiny_model("transformer_una_tiny", dropout=0.3).train()
    sample, twice = _sample(range(3)), _sample([*range(3)] * 2)
    torch.manual_seed(7)
    outputs = model(**twice["net_input"])[0].chunk(2)
    target, losses = sample["target"], []
    real = target.ne(PAD)
    for out in outputs:
        logs = out.log_softmax(-1)
        right = logs.gather(2, target[:, :, None])[..., 0]
        others = 0.1 / (out.size(-1) - 1)
        losses.append(-((0.9 - others) * right + others * logs.sum(-1))[real].sum())
    one, other = (out[real].log_softmax(-1) for out in outputs)
    both = ((one.exp() * (one - other)).sum() + (other.exp() * (other - one)).sum()) / 2
    criterion, calls = build(f"{OBJECTIVE}_rdrop", model, rdrop_alpha=3.0), []
    model.register_forward_hook(lambda *call: calls.append(call))
    torch.manual_seed(7)
    loss, size, log = criterion(model, sample)
    assert len(calls) == 1 and size == sample["ntokens"]
    torch.testing.assert_close(loss, sum(losses) + 3 * both)
    torch.testing.assert_close(log["rdrop_divergence"], both)
    torch.testing.assert_close(symmetric_kl(one, other).sum(), both)
    torch.testing.assert_close(log["loss"], losses[0].detach())
    torch.testing.assert_close(log["rdrop_loss"], losses[1].detach())
    assert both > 1e-3


@pytest.mark.parametrize("by_places", [False, True])
def test_masked_words_are_those_of_both_copies(by_places):
    """Maps, features and scores of each copy are those of a batch of its own, without dropout."""
    model = build_tiny_model("roberta_una_tiny").train()
    tokens = _sample(range(3))["net_input"]["src_tokens"]
    masked = tokens.gt(6) & (torch.arange(tokens.size(1)) % 2 == 0)
    places = masked.flatten().nonzero().flatten()
    batch_facts.attach(tokens, batch_facts.take(tokens, PAD))
    wanted = {"masked_tokens": places if by_places else masked, "return_all_hiddens": True}

    def run(prepare):
        recorder = AttentionRecorder(lambda site, layer: [0])
        return model(**prepare({"src_tokens": tokens, "recorder": recorder, **wanted}))

    expected = run(dict)
    for out, extra in halve(run(double_inputs)):
        torch.testing.assert_close(out, expected[0])
        assert extra.keys() == expected[1].keys()
        for name in ("features", "attention_maps"):
            torch.testing.assert_close(extra[name], expected[1][name])
        torch.testing.assert_close([*extra["inner_states"]], expected[1]["inner_states"])


def test_guidance_is_of_one_copy():
    model, sample = build_tiny_model("transformer_una_tiny").train(), _sample(range(3))
    guided = {"ag_alpha": "1", "ag_encoder_heads": "next:1", "ag_decoder_heads": "prev:1"}
    names = (f"{OBJECTIVE}_ag", f"{OBJECTIVE}_ag_rdrop")
    alone, beside = (build(name, model, **guided)(model, sample)[2] for name in names)
    assert alone["ag_loss"] > 0 and alone["loss"] > 0
    for name in ("ag_loss", "loss", "sample_size"):
        torch.testing.assert_close(torch.as_tensor(beside[name]), torch.as_tensor(alone[name]))


def test_facts_of_a_batch_are_those_of_both_copies():
    tokens = _sample(range(3))["net_input"]["src_tokens"]
    batch_facts.attach(tokens, batch_facts.take(tokens, PAD))
    both = double_inputs({"src_tokens": tokens})["src_tokens"]
    found, expected = batch_facts.find(both), batch_facts.take(both, PAD)
    assert found[:2] == expected[:2] and torch.equal(found.positions, expected.positions)


def test_r_drop_without_dropout_doubles_the_loss():
    check_regulariser("rdrop")
    check_regulariser("rdrop", rdrop_alpha=0.1)
    with pytest.raises(UsageError, match="--rdrop-alpha is -1"):
        check_regulariser("rdrop", rdrop_alpha=-1.0)
