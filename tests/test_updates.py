"""Updates of a training: what they count in several processes, and losses that are not finite."""

import inspect
import re
import sys
from types import SimpleNamespace

import fairseq_cli.train
import pytest
import torch
from cases import slow_but_first
from conftest import PLUGIN, fairseq, train_in_two_processes
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.trainer import Trainer

from fairseq_ext import patches
from fairseq_ext.errors import UsageError
from fairseq_ext.patches import updates
from fairseq_ext.safe_loading import load_checkpoint

SIZE = "--{0}-embed-dim 8 --{0}-ffn-embed-dim 8 --{0}-layers 1 --{0}-attention-heads 2"
FLAGS = f"""
--user-dir {PLUGIN} -s de -t en --cpu --num-workers 0 --dropout 0 --criterion
label_smoothed_cross_entropy --label-smoothing 0.1 {SIZE.format("encoder")} {SIZE.format("decoder")}
--optimizer sgd --lr 0.1 --log-format json --log-interval 1 --no-epoch-checkpoints
--disable-validation
""".split()
KINDS = {"stock": ["--arch", "transformer"], "hna": ["--arch", "transformer_hna_tiny"]}


@pytest.mark.processes
@pytest.mark.parametrize("kind", slow_but_first(KINDS))
@pytest.mark.parametrize("update_freq", slow_but_first([3, 1, 2]))
def test_processes_train_like_one_on_every_sentence(letters, tmp_path, update_freq, kind):
    """Batches of three of forty sentences: in each epoch some processes have none at the end."""
    flags = [*FLAGS, *KINDS[kind], "--batch-size", 3, "--max-epoch", 2]
    flags += ["--required-batch-size-multiple", 1]
    one = ["--save-dir", tmp_path / "one", "--update-freq", 2 * update_freq]
    fairseq("train", letters, *flags, *one, "--log-file", tmp_path / "one.log")
    two = ["--save-dir", tmp_path / "two", "--update-freq", update_freq]
    train_in_two_processes(letters, *flags, *two, "--log-file", tmp_path / "two.log")
    logs = [(tmp_path / f"{name}.log").read_text() for name in ("one", "two")]
    for count in ("wpb", "bsz", "num_updates"):
        counts = [re.findall(rf'"{count}": "([\d.]+)"', log) for log in logs]
        assert counts[0] == counts[1] and counts[0]
    one, two = (load_checkpoint(str(tmp_path / n / "checkpoint_last.pt")) for n in ("one", "two"))
    torch.testing.assert_close(one["model"], two["model"], atol=1e-6, rtol=0)


def trainer(original):
    """Return the step of a trainer whose fourth update is the next one."""
    stub = SimpleNamespace(get_num_updates=lambda: 3)
    step = inspect.unwrap(updates.stop_when_not_finite)
    return lambda samples: step(original, stub, samples)


SAMPLES = [{"id": torch.tensor([5, 7])}, {"id": torch.tensor([9])}, {}]


def test_dummies_come_first():
    """So that the last batch, which decides what an update counts, is a real one."""
    seen = []
    trainer(lambda _, samples: seen.extend(samples))(SAMPLES)
    assert seen == [{}, *SAMPLES[:2]]


@pytest.mark.parametrize("log", [None, {}, {"loss": 2.5}, {"loss": 2}])
def test_an_overflow_is_fairseqs_own_matter(log):
    """With --fp16 and --amp a batch whose gradients overflow is skipped, and logs nothing."""
    assert trainer(lambda *_: log)(SAMPLES) == log


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_names_update_and_sentences(loss):
    with pytest.raises(UsageError, match=rf"update 4 .*\(the loss is {loss}\).* 5, 7, 9 of the"):
        trainer(lambda *_: {"loss": loss})(SAMPLES)


def test_an_update_without_a_masked_token_goes_on():
    """Its loss is 0 / 0 and its gradient 0, which no --lr would change."""
    log = {"loss": float("nan"), "sample_size": torch.tensor(0.0)}
    assert trainer(lambda *_: log)(SAMPLES) is log
    with pytest.raises(UsageError, match="the loss is nan"):
        trainer(lambda *_: log | {"sample_size": torch.tensor(2.0)})(SAMPLES)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("gradients are Nan/Inf", UsageError),
        ("Minimum loss scale reached (0.0001). Your loss is", UsageError),
        ("gradients are inconsistent between workers.\nrank 0 = nan\nrank 1 = nan", UsageError),
        (
            "gradients are inconsistent between workers.\nrank 0 = 1.5\nrank 1 = 2",
            FloatingPointError,
        ),
    ],
)
def test_errors_of_a_step(text, kind):
    def step(*_):
        raise FloatingPointError(text)

    with pytest.raises((UsageError, FloatingPointError)) as refusal:
        trainer(step)(SAMPLES)
    assert refusal.type is kind


def test_a_training_stops_at_the_update_that_is_not_finite(letters, tmp_path, monkeypatch):
    forward, batches = LabelSmoothedCrossEntropyCriterion.forward, []

    def spoil(criterion, model, sample, reduce=True):
        loss, size, log = forward(criterion, model, sample, reduce)
        batches.append(sample["id"].tolist())
        return (loss * float("nan") if len(batches) > 3 else loss), size, log

    monkeypatch.setattr(LabelSmoothedCrossEntropyCriterion, "forward", spoil)
    flags = [*FLAGS, *KINDS["stock"], "--update-freq", 2, "--batch-size", 4, "--save-dir", tmp_path]
    monkeypatch.setattr(sys, "argv", ["fairseq-train", *map(str, [letters, *flags])])
    with pytest.raises(UsageError) as refusal:
        fairseq_cli.train.cli_main()
    numbers = ", ".join(str(i) for batch in batches[2:4] for i in batch)
    assert f"update 2 is not finite (gradients are Nan/Inf), with sentences {numbers} of" in str(
        refusal.value
    )
    assert not (tmp_path / "checkpoint_last.pt").exists()


def test_both_are_patches():
    assert {updates.count_real_batches, updates.stop_when_not_finite} <= {*patches.PATCHES}
    assert Trainer.train_step.__wrapped__
