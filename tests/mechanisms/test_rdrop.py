"""R-Drop: the loss from its definition, and without dropout."""

import pytest
import torch
from mechanism_cases import Case

from fairseq_ext.criterions.divergence import symmetric_kl
from fairseq_ext.errors import UsageError
from fairseq_ext.testing import check_regulariser
from fairseq_ext.testing.losses import OBJECTIVE, _build, _sample, _Task
from fairseq_ext.testing.mechanisms import build_tiny_model

CASES = [Case("rdrop", "second pass", flags="")]


def build(name, model, **options):
    return _build(name, _Task(model.encoder.dictionary), options)


def test_r_drop_is_two_losses_and_both_divergences():
    model = build_tiny_model("transformer_una_tiny", dropout=0.3).train()
    sample = _sample(range(3))
    torch.manual_seed(7)
    outputs = [model(**sample["net_input"])[0] for _ in range(2)]
    real = sample["target"].ne(1)
    plain = build(OBJECTIVE, model)
    torch.manual_seed(7)
    losses = [plain(model, sample)[0] for _ in range(2)]
    one, other = (out[real].log_softmax(-1) for out in outputs)
    both = ((one.exp() * (one - other)).sum() + (other.exp() * (other - one)).sum()) / 2
    torch.manual_seed(7)
    loss, _, log = build(f"{OBJECTIVE}_rdrop", model, rdrop_alpha=3.0)(model, sample)
    torch.testing.assert_close(loss, sum(losses) + 3 * both)
    torch.testing.assert_close(log["rdrop_divergence"], both)
    torch.testing.assert_close(symmetric_kl(one, other).sum(), both)
    torch.testing.assert_close(log["loss"], losses[0].detach())


def test_r_drop_without_dropout_doubles_the_loss():
    check_regulariser("rdrop")
    check_regulariser("rdrop", rdrop_alpha=0.1)
    with pytest.raises(UsageError, match="--rdrop-alpha is -1"):
        check_regulariser("rdrop", rdrop_alpha=-1.0)
