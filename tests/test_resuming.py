"""Trainings that are resumed: exactly where they were, and not at all after their end."""

import json
import re

import pytest
import torch
from conftest import PLUGIN, fairseq

from fairseq_ext.safe_loading import load_checkpoint

SIZE = "--{0}-embed-dim 8 --{0}-ffn-embed-dim 8 --{0}-layers 1 --{0}-attention-heads 2"
FLAGS = f"""
--user-dir {PLUGIN} -s de -t en --arch transformer --cpu --num-workers 0 --max-tokens 60
{SIZE.format("encoder")} {SIZE.format("decoder")} --optimizer adam --lr 1e-3 --dropout 0.1
--log-format json --log-interval 1 --no-epoch-checkpoints
""".split()
PLATEAU = "--lr-scheduler reduce_lr_on_plateau --lr-patience 1 --lr-shrink 0.5 --lr 1e-6".split()
# a rate with which no validation is better than the first

ENDS = {
    "it has 3 updates, and --max-update is 3": ["--max-update", "3"],
    "done training in 0.0 seconds": ["--max-epoch", "1"],
    "smaller than or equal to minimum learning rate": [*PLATEAU, "--stop-min-lr", "4e-7"],
    "2 validations in a row were not better": ["--lr", "1e-12", "--patience", "2"],
    "hours, and --stop-time-hours is 1e-09": ["--stop-time-hours", "1e-9"],
}


def train(data, folder, *flags):
    done = fairseq("train", data, *FLAGS, "--save-dir", folder, *flags)
    return done.stdout + done.stderr


def look_at(folder):
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.iterdir()}


@pytest.mark.parametrize(("says", "flags"), ENDS.items(), ids=[f[-2] for f in ENDS.values()])
def test_a_training_that_is_done_is_left_alone(letters, tmp_path, says, flags):
    train(letters, tmp_path, *flags)
    before = look_at(tmp_path)
    again = train(letters, tmp_path, *flags)
    assert before and look_at(tmp_path) == before
    assert says in again and "train_inner" not in again


def test_a_training_that_is_done_can_be_made_longer(letters, tmp_path):
    train(letters, tmp_path, "--max-update", 2)
    assert (
        re.findall(r'"num_updates": "(\d+)"', train(letters, tmp_path, "--max-update", 3))[0] == "3"
    )


def test_a_training_that_begins_from_another_is_not_done(letters, tmp_path):
    train(letters, tmp_path / "first", "--max-update", 2)
    first = tmp_path / "first" / "checkpoint_last.pt"
    said = train(letters, tmp_path / "next", "--max-update", 2, "--finetune-from-model", first)
    assert re.findall(r'train_inner.*"num_updates": "(\d+)"', said) == ["1", "2"]


def epochs(said):
    """Return the learning rate that the training had at the end of each epoch."""
    lines = map(json.loads, re.findall(r"\| train \| (\{.*\})", said))
    return {line["epoch"]: line["train_lr"] for line in lines}


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_the_learning_rate_falls_when_it_would_have(letters, tmp_path, cut):
    """What the schedule and early stopping have waited for is restored."""
    flags = [*PLATEAU, "--patience", "4", "--max-epoch"]
    whole = epochs(train(letters, tmp_path / "whole", *flags, 20))
    parts = epochs(train(letters, tmp_path / "cut", *flags, cut))
    parts |= epochs(train(letters, tmp_path / "cut", *flags, 20))
    assert parts == whole and len({*whole.values()}) > 2 and cut < len(whole) < 20
    states = [load_checkpoint(str(tmp_path / n / "checkpoint_last.pt")) for n in ("whole", "cut")]
    torch.testing.assert_close(states[0]["model"], states[1]["model"], atol=0, rtol=0)
    assert states[0]["extra_state"]["early_stop"] == states[1]["extra_state"]["early_stop"]
