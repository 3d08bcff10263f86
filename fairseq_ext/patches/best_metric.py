"""The metric of validation that chooses the best checkpoint: it has to be one that is logged."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from fairseq_ext.errors import UsageError
from fairseq_ext.wrapping import wrap

ADDED = "num_updates"  # to what every validation logs
COMMAND = ("__main__", "fairseq_cli.train")  # modules that may hold fairseq-train


def check_metric(trainer: Any) -> None:
    """Raise UsageError if validation will not log --best-checkpoint-metric.

    Names that cannot be known before the first validation are checked there.
    """
    cfg, validated = trainer.cfg.checkpoint, not trainer.cfg.dataset.disable_validation
    names = list_metrics(trainer.task, trainer.get_criterion()) if validated else None
    if names and cfg.best_checkpoint_metric not in names:
        _refuse(cfg.best_checkpoint_metric, names)
    for module in COMMAND:
        function = getattr(sys.modules.get(module), "get_valid_stats", None)
        if function is not None and not hasattr(function, "__wrapped__"):
            wrap(module, "get_valid_stats", _get_stats)


def _get_stats(original: Callable, cfg: Any, trainer: Any, stats: dict, *args: Any) -> Any:
    if cfg.checkpoint.best_checkpoint_metric not in {ADDED, *stats}:
        _refuse(cfg.checkpoint.best_checkpoint_metric, stats)
    return original(cfg, trainer, stats, *args)


def _refuse(metric: str, names: Any) -> None:
    shown = ", ".join(sorted(name for name in names if name != ADDED))
    raise UsageError(
        f"--best-checkpoint-metric is {metric}, which validation does not measure; give one of "
        f"{shown}"
    )


def list_metrics(task: Any, criterion: Any) -> set[str]:
    """Return all names that a task and a criterion may log; none if they cannot be known.

    Their `reduce_metrics` is called with a log that has every value that is asked for. Those of
    fairseq log nll_loss only where sentences, not tokens, are the size of a sample.
    """
    from fairseq.logging import metrics

    names: set[str] = set()
    for tokens in (1,) if getattr(criterion, "sentence_avg", None) is False else (1, 2):
        with metrics.aggregate(new_root=True) as logged, suppress(Exception):
            task.reduce_metrics([_AnyLog(tokens)], criterion)
            names |= {ADDED, *(name for name in logged if not name.startswith("_"))}
    return names


class _AnyLog(Mapping):
    """Log of a batch with any value, which does not say what values it has.

    Args:
        tokens: their number; every other value is 1.
    """

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def __getitem__(self, name: str) -> int:
        return self.tokens if name == "ntokens" else 1

    def __iter__(self) -> Iterator[str]:
        raise NotImplementedError("what a batch logs is not known yet")

    def __len__(self) -> int:
        return 1
