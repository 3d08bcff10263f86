"""Patches of the trainer's step: what it counts, and what it does when a loss is not finite."""

import logging
import math
import re
from collections.abc import Callable
from typing import Any

from fairseq_ext.errors import UsageError
from fairseq_ext.wrapping import TRAINER, wrap, wrapper_of

logger = logging.getLogger(__name__)

SHOWN = 20  # numbers of sentences in an error


class _DummyLog(dict):
    """Log of a batch that a process repeats because it has none left for this update."""


def count_real_batches() -> None:
    """Count each process's real batches of an update, and no dummies.

    Fault: A process with a dummy batch at an epoch's end counts nothing of this update, or the
        dummy too.
    Asked: who trains in processes with --update-freq; silent; none.
    Since: fairseq 0.9.
    Until: Trainer.train_step leaves only dummies out.
    """

    def compute(original: Callable, task: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
        loss, size, log = original(task, *args, **kwargs)
        return (loss, size * 0, _DummyLog(log)) if kwargs.get("ignore_grad") else (loss, size, log)

    def aggregate(original: Callable, trainer: Any, logs: list[Any], *args: Any, **kw: Any) -> Any:
        real = [log for log in logs if not isinstance(log, _DummyLog)]
        return original(trainer, real or logs, *args, **kw)

    wrap("fairseq.tasks.fairseq_task:FairseqTask", "train_step", compute)
    wrap(TRAINER, "_aggregate_logging_outputs", aggregate)


def count_targets_after_prefix() -> None:
    """Leave what --ignore-prefix-size leaves out of a loss out of its mean, too.

    Fault: The loss is divided by the number of all tokens, not of those that count.
    Asked: who gives --ignore-prefix-size; silent; none.
    Since: fairseq 0.10.
    Until: criterions count the targets of their losses.
    """
    from fairseq.criterions import CRITERION_REGISTRY
    from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion

    def forward(
        original: Callable, criterion: Any, model: Any, sample: Any, *args: Any, **kw: Any
    ) -> Any:
        if prefix := criterion.ignore_prefix_size:
            counted = sample["target"][:, prefix:].ne(criterion.padding_idx).sum().item()
            sample = {**sample, "ntokens": counted}
            if not counted and not vars(criterion).get("has_warned"):
                criterion.has_warned = True
                logger.warning(
                    "--ignore-prefix-size is %d, and no sentence of a batch is longer; nothing is "
                    "learned from it",
                    prefix,
                )
        return original(criterion, model, sample, *args, **kw)

    for kind in {*CRITERION_REGISTRY.values()}:
        if issubclass(kind, LabelSmoothedCrossEntropyCriterion) and "forward" in vars(kind):
            wrap(f"{kind.__module__}:{kind.__qualname__}", "forward", forward)


@wrapper_of(TRAINER, "train_step")
def stop_when_not_finite(
    original: Callable, trainer: Any, samples: list[Any], *args: Any, **kw: Any
) -> Any:
    """Stop a training whose loss or gradient is not finite, and put dummies of an update first.

    Fault: A training whose loss is not finite goes on, or ends in a traceback. The last batch
        decides whether an update counts.
    Asked: who trains; silent; a refusal.
    Since: always.
    Until: Trainer.train_step names them.
    """
    update = trainer.get_num_updates() + 1
    try:
        log = original(trainer, sorted(samples, key=bool), *args, **kw)
    except Exception as error:
        reason = _find_fault(error)
        if not reason:
            raise
        raise _not_finite(update, reason, samples) from error
    loss, size = ((log or {}).get(name, 1.0) for name in ("loss", "sample_size"))
    empty = math.isnan(loss) and not size  # 0 / 0: no token was masked, and nothing is learned
    if not (math.isfinite(loss) or empty):
        raise _not_finite(update, f"the loss is {loss}", samples)
    return log


def _find_fault(error: BaseException | None) -> str:
    """Return what was not finite in a step that failed, or an empty text.

    fairseq then runs the update again to find the layer, which itself fails in encoders that return
    a dictionary: the first error counts.
    """
    while error is not None and not isinstance(error, FloatingPointError):
        error = error.__context__
    differs = "inconsistent" in str(error) and not re.search(r"= *-?(nan|inf)", str(error))
    return "" if error is None or differs else str(error).strip().partition("\n")[0]


def _not_finite(update: int, reason: str, samples: list[Any]) -> UsageError:
    numbers = [int(i) for sample in samples if sample for i in sample.get("id", ())]
    shown = ", ".join(map(str, numbers[:SHOWN])) + (" ..." if len(numbers) > SHOWN else "")
    return UsageError(
        f"update {update} is not finite ({reason}), with sentences {shown} of the training data; "
        "lower --lr, give --clip-norm, or look at these sentences; an earlier checkpoint can go on"
    )
