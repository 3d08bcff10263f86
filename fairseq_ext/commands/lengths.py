"""Changes of what commands do with samples that are too long: they are named, and counted."""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from fairseq_ext.commands.raw_text import buffer_place
from fairseq_ext.errors import UsageError
from fairseq_ext.wrapping import wrap, wrapper_of

logger = logging.getLogger(__name__)

TOO_LONG = re.compile(r"Size of sample #(\d+) is invalid")
SIDES = ("--max-source-positions", "--max-target-positions")
ONE = "--tokens-per-sample or --max-positions"


@wrapper_of("fairseq.tasks.fairseq_task:FairseqTask", "filter_indices_by_size")
def name_long_sentences(
    original: Callable, task: Any, indices: Any, data: Any, limits: Any = None, skip: Any = None
) -> Any:
    """Name the sentence that is too long, and refuse a subset of which all are.

    Fault: A sentence that is too long is described by pairs of numbers, and its line is a buffer's.
        A subset of such sentences ends in a traceback.
    Asked: all users; loud; a message.
    Since: always.
    Until: filter_indices_by_size prints such sentences.
    """
    subset = next((name for name, each in task.datasets.items() if each is data), None)
    if subset is None and buffer_place:
        return _keep_lines(indices, data, limits, skip)
    try:
        kept = original(task, indices, data, limits, skip)
    except Exception as error:
        if not (found := TOO_LONG.match(str(error))):
            raise
        number = int(found[1])
        raise UsageError(_refuse(f"sentence {number} of {subset}", data, number, limits)) from None
    if subset and len(indices) and not len(kept):
        sides = isinstance(limits, tuple)
        most = " on the source side and ".join(map(str, limits)) if sides else limits
        raise UsageError(
            f"all {len(indices)} sentences of {subset} are longer than the model takes, which "
            f"is {most} tokens, their ends counted; raise "
            f"{' or '.join(SIDES) if sides else ONE}, or give shorter text"
        )
    return kept


def _keep_lines(indices: Any, data: Any, limits: Any, skip: bool) -> Any:
    """Return the lines of a buffer that are short enough; warn of others, or raise UsageError."""
    kept, ignored = data.filter_indices_by_size(indices, limits)
    (file, first), *_ = buffer_place
    for number in sorted(ignored):
        sentence = _refuse(f"{file}, line {first + number}", data, number, limits)
        if not skip:
            raise UsageError(sentence)
        logger.warning("%s; it is left out", sentence.partition(";")[0])
    return kept


def _refuse(where: str, data: Any, number: int, limits: Any) -> str:
    size, limit, flag = next(_list_exceeded(data.size(number), limits))
    return (
        f"{where} has {size} tokens, its end counted, and {limit} are possible; give shorter text, "
        f"leave it out by --skip-invalid-size-inputs-valid-test, or train with a larger {flag}"
    )


def _list_exceeded(size: Any, limits: Any) -> Iterator[tuple[int, int, str]]:
    """Yield the sizes of a sample above their limits, each with limit and flag."""
    if isinstance(limits, Mapping):
        for key in limits.keys() & size.keys():
            yield from _list_exceeded(size[key], limits[key])
        return
    sizes = [*size] if isinstance(size, Iterable) else [size]
    bounds = limits if isinstance(limits, Iterable) else [limits] * len(sizes)
    flags = SIDES if isinstance(limits, Iterable) else [ONE] * len(sizes)
    for length, most, flag in zip(sizes, bounds, flags, strict=False):
        if most is not None and length > most:
            yield int(length), most, flag


def evaluate_whole_text() -> None:
    """Refuse the perplexity of a part of a text, or of nothing.

    Fault: fairseq-eval-lm leaves out samples that are too long: by default all. The perplexity of
        nothing is 1.
    Asked: who evaluates a language model; silent; a refusal.
    Since: always.
    Until: eval_lm_dataloader keeps all samples.
    """
    from fairseq.tasks import TASK_REGISTRY

    def load(original: Callable, task: Any, *args: Any, **given: Any) -> Any:
        data, most = given["dataset"], given["max_positions"]
        window = given.get("context_window", 0)
        _, longer = data.filter_indices_by_size(np.arange(len(data)), most - window)
        if len(longer):
            context = f" with {window} of --context-window" if window else ""
            whole = getattr(task.args, "sample_break_mode", None) not in (None, "none")
            mode = " with --sample-break-mode none" if whole else ""
            raise UsageError(
                f"{len(longer)} of {len(data)} samples are longer than the {most} tokens that the "
                f"model takes{context}, and would be left out of the perplexity; give "
                f"--tokens-per-sample {most}{mode}"
            )
        return original(task, *args, **given)

    for task in {task for task in TASK_REGISTRY.values() if "eval_lm_dataloader" in vars(task)}:
        wrap(f"{task.__module__}:{task.__qualname__}", "eval_lm_dataloader", load)
