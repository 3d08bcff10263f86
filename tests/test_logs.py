"""Lines of logs, as fairseq-train and fairseq-hydra-train write them."""

import pytest

from fairseq_ext.errors import UsageError
from fairseq_ext.training_logs import Record, is_finished, parse_line, read_log

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


@pytest.mark.parametrize(
    "end",
    [
        "2026-01-01 10:00:00 | INFO | fairseq_cli.train | done training in 5.4 seconds",
        "[2026-01-01 10:00:00,123][fairseq_cli.train][INFO] - done training in 5.4 seconds",
    ],
)
def test_a_log_says_that_a_training_is_finished(tmp_path, end):
    log = tmp_path / "train.log"
    numbers = "[2026-01-01 10:00:00,123][train][INFO] - loss=3.5, num_updates=10\n"
    log.write_text(f"{numbers}{end}\n")
    assert is_finished(log)
    log.write_text(f"{end}\n{numbers}")
    assert not is_finished(log)


def test_a_log_without_numbers_is_refused(tmp_path):
    (tmp_path / "train.log").write_text("INFO | fairseq_cli.train | begin\n")
    with pytest.raises(UsageError, match=r"train\.log has no line of numbers; give the log"):
        read_log(tmp_path)
