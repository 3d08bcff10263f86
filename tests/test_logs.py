"""Lines of logs, as fairseq-train and fairseq-hydra-train write them."""

import pytest

from fairseq_ext.evaluation.logs import Record, parse_line

NUMBERS = {"loss": 3.5, "lr": 1e-05}


@pytest.mark.parametrize(
    "line",
    [
        "2026-01-01 10:00:00 | INFO | train_inner | loss=3.5, lr=1e-05, num_updates=10",
        '2026-01-01 10:00:00 | INFO | train_inner | {"loss": "3.5", "lr": "1e-05", '
        '"num_updates": "10"}',
        "[2026-01-01 10:00:00,123][train_inner][INFO] - loss=3.5, lr=1e-05, num_updates=10",
        '[2026-01-01 10:00:00,123][train_inner][INFO] - {"train_inner_loss": "3.5", '
        '"train_inner_lr": "1e-05", "train_inner_num_updates": "10"}',
    ],
)
def test_every_form_says_the_same(line):
    assert parse_line(line) == Record("train_inner", 10, NUMBERS)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "loss=3.5, num_updates=10",
        "[2026-01-01 10:00:00,123][fairseq.trainer][INFO] - begin training epoch 1",
        "[2026-01-01 10:00:00,123][train_inner][WARNING] - loss=3.5, num_updates=10",
        "2026-01-01 10:00:00 | INFO | train_inner | {broken",
    ],
)
def test_other_lines_say_nothing(line):
    assert parse_line(line) is None
