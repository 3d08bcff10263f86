"""--best-checkpoint-metric has to be a metric that validation logs."""

import pytest
from conftest import PLUGIN, fairseq
from fairseq.logging import metrics

from fairseq_ext.patches.best_metric import list_metrics

TRAIN = (
    "-s de -t en --arch transformer_una_tiny --max-tokens 128 --cpu --num-workers 0 --lr 1e-3 "
    "--optimizer adam --max-update 1 --no-save"
).split()


def train(data, tmp_path, metric, *flags):
    given = [data, "--user-dir", PLUGIN, *TRAIN, "--save-dir", tmp_path, *flags]
    done = fairseq("train", *given, "--best-checkpoint-metric", metric, check=False)
    return done.returncode, done.stderr.splitlines()[-1:], done.stdout


def test_an_unknown_metric_is_refused_before_the_first_update(letters, tmp_path):
    code, last, log = train(letters, tmp_path, "losss")
    assert code == 1 and "begin training epoch" not in log
    (line,) = last
    start = "error: --best-checkpoint-metric is losss, which validation does not measure; give one"
    assert line.startswith(start) and " loss," in line and "num_updates" not in line


def test_a_metric_that_is_known_at_the_first_validation_alone(letters, tmp_path):
    """Cross entropy may log accuracy, and does with --report-accuracy."""
    smoothed = "--criterion", "label_smoothed_cross_entropy"
    code, last, log = train(letters, tmp_path, "accuracy", *smoothed)
    assert code == 1 and "begin validation" in log
    assert last[0].startswith("error: --best-checkpoint-metric is accuracy, which validation does")
    assert " accuracy" not in last[0].partition("give one of")[2]
    assert train(letters, tmp_path, "accuracy", *smoothed, "--report-accuracy")[0] == 0


@pytest.mark.parametrize("metric", ["nll_loss", "ppl", "num_updates"])
def test_known_metrics_pass(letters, tmp_path, metric):
    assert train(letters, tmp_path, metric, "--criterion", "label_smoothed_cross_entropy")[0] == 0


def test_without_validation_any_metric_passes(letters, tmp_path):
    assert train(letters, tmp_path, "x", "--disable-validation")[0] == 0


class Task:
    """A task whose metrics have the names that a function finds in the log of a batch."""

    def __init__(self, find_names):
        self.find_names = find_names

    def reduce_metrics(self, logs, criterion):
        for name in self.find_names(logs[0]):
            metrics.log_scalar(name, logs[0].get(name, 0))


@pytest.mark.parametrize("by_sentence", [True, False])
def test_a_loss_of_words_is_logged_where_samples_are_sentences(letters, tmp_path, by_sentence):
    """Cross-entropy of fairseq logs nll_loss only if a sample's size is its sentences."""
    flags = ["--criterion", "cross_entropy", *(["--sentence-avg"] if by_sentence else [])]
    code, last, _ = train(letters, tmp_path, "nll_loss", *flags)
    assert (code == 0) == by_sentence
    assert by_sentence or "is nll_loss, which validation does not measure" in last[0]


def test_names_that_cannot_be_known():
    """Metrics outside keep what they are."""
    with metrics.aggregate() as outside:
        assert list_metrics(Task(lambda log: ["a", "_b"] * ("a" in log)), None) == {
            "a",
            "num_updates",
        }
        assert (
            list_metrics(Task(list), None) == list_metrics(Task(lambda log: 1 / 0), None) == set()
        )
        assert list_metrics(Task(lambda log: ["a"] if log else []), None) == {"a", "num_updates"}
        metrics.log_scalar("c", 1)
    assert [*outside] == ["c"]
