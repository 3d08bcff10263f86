"""A count of what a step issues on a GPU, taken on tensors without memory or numbers.

fairseq's whole `Trainer.train_step`, or a step of its beam search, runs on the device "meta", so
that all branches of the package on the kind of device are those of a GPU, and each operation that
torch dispatches is counted (`stand_ins.py`). A wait is a place where Python needs a number of the
GPU: `item`, a comparison of tensors, a boolean index, a copy between the two that blocks.
"""

import re
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

import torch
from fairseq.logging import metrics
from fairseq.sequence_generator import SequenceGenerator
from fairseq.trainer import Trainer
from stand_ins import Count, move_to_meta, standing_in, to_meta
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

PHASES = ("forward", "backward", "optimiser", "logs")
SEARCH_PHASES = ("reorder", "decoder", "search")

UNCOUNTED = re.compile(
    r"/benchmarks/stand_ins\.py|/torch/(?:_library/|_dynamo/|_compile\.py|compiler/)"
)
"""Files that stand in for a GPU, and of torch that send an operation to a mode."""


class Counts(NamedTuple):
    """Counts of one step.

    Attributes:
        operations: phase and name -> how often.
        places: phase, name and line of the package or fairseq -> how often.
        waits: kind and line -> how often.
        python_calls: calls of Python functions, but for those of the count.
        saved_bytes: of tensors that the forward pass keeps for the backward pass.
        phases: of the step, in their order.
    """

    operations: Counter[tuple[str, str]]
    places: Counter[tuple[str, str, str]]
    waits: Counter[tuple[str, str]]
    python_calls: int
    saved_bytes: int
    phases: tuple[str, ...] = PHASES

    def to_json(self) -> dict[str, Any]:
        """Return the sums, by phase and in all."""
        phases = {
            phase: sum(n for (where, _), n in self.operations.items() if where == phase)
            for phase in self.phases
        }
        return {
            "operations": sum(phases.values()),
            "waits": sum(self.waits.values()),
            "python_calls": self.python_calls,
            "saved_bytes": self.saved_bytes,
            "phases": phases,
        }


def count_step(trainer: Trainer, batch: Mapping[str, Any], chosen: float) -> Counts:
    """Return the counts of the third training step.

    Args:
        trainer: on a CPU; its model and criterion are moved to "meta".
        batch: a batch of the task.
        chosen: share of elements that a boolean index takes.
    """
    metrics.reset()  # what an earlier trainer logged is added to otherwise
    move_to_meta(trainer._model)
    move_to_meta(trainer._criterion)
    samples, count = [batch], Count(chosen)
    convert = trainer._fp_convert_sample
    trainer._fp_convert_sample = lambda sample: to_meta(convert(sample))  # after it would be moved
    with standing_in(count), count:
        _name_phases(trainer, count)
        for _ in range(2):  # state of the optimiser, caches
            trainer.train_step(samples)
        count.places.clear()
        count.waits.clear()
        trainer.train_step(samples)
        places, waits = Counter(count.places), Counter(count.waits)
        calls = _count_calls(partial(trainer.train_step, samples))
        saved = _sum_saved(trainer, samples)
    return Counts(_sum_places(places), places, waits, calls, saved)


def _sum_places(places: Counter[tuple[str, str, str]]) -> Counter[tuple[str, str]]:
    operations: Counter[tuple[str, str]] = Counter()
    for (phase, name, _), times in places.items():
        operations[phase, name] += times
    return operations


def _name_phases(trainer: Trainer, count: Count) -> None:
    """Let the trainer's own steps say which phase begins."""
    _begin(count, trainer, "zero_grad", "optimiser", after="forward")
    _begin(count, trainer.optimizer, "backward", "backward", after="optimiser")
    _begin(count, trainer, "_reduce_and_log_stats", "logs")


def _begin(count: Count, owner: Any, name: str, phase: str, after: str = "") -> None:
    """Let a method of an owner begin a phase, and another one after it."""
    original = getattr(owner, name)

    def in_phase(*args: Any, **kwargs: Any) -> Any:
        count.phase = phase
        result = original(*args, **kwargs)
        count.phase = after or phase
        return result

    setattr(owner, name, in_phase)


class _Decoded(Exception):
    """The decoder has made all the steps that are wanted."""


def count_search_step(generator: SequenceGenerator, batch: Mapping[str, Any]) -> Counts:
    """Return the counts of a step of beam search in which no hypothesis ends.

    It is what four steps issue beyond three: the decoder with its cache, the search for the next
    hypotheses, and the order of the cache for these.

    Args:
        generator: with its model on a CPU, which is moved to "meta".
        batch: a batch of the task, moved too.
    """
    move_to_meta(generator)
    sample, count, left = to_meta(batch), Count(0.0), 0
    decode = generator.model.forward_decoder

    def decode_some(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise _Decoded
        return decode(*args, **kwargs)

    generator.model.forward_decoder = decode_some
    _begin(count, generator.model, "reorder_incremental_state", "reorder")
    _begin(count, generator.model, "forward_decoder", "decoder", after="search")

    def search(steps: int) -> tuple[Counter, Counter]:
        nonlocal left
        left = steps
        count.places.clear()
        count.waits.clear()
        with suppress(_Decoded):
            generator.generate([], sample)
        return Counter(count.places), Counter(count.waits)

    with standing_in(count), count:
        search(2)  # caches
        shorter, longer = search(3), search(4)
        calls = _count_calls(partial(search, 4)) - _count_calls(partial(search, 3))
    places, waits = (more - fewer for fewer, more in zip(shorter, longer, strict=True))
    return Counts(_sum_places(places), places, waits, calls, 0, SEARCH_PHASES)


def _count_calls(work: Any) -> int:
    """Return how many Python functions are called, but for what stands in for a GPU."""
    calls = inside = 0

    def see(frame: FrameType, event: str, _: Any) -> None:
        nonlocal calls, inside
        ours = UNCOUNTED.search(frame.f_code.co_filename) is not None
        if event == "call":
            inside += ours
            calls += not inside
        elif event == "return":
            inside -= ours

    sys.setprofile(see)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def _sum_saved(trainer: Trainer, samples: list[Any]) -> int:
    """Return the bytes of all that the forward pass keeps, but parameters."""
    own = {x.untyped_storage()._cdata for x in trainer._model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if x.is_meta and storage._cdata not in own:
            kept[storage._cdata] = storage
        return x

    trainer.model.train()
    with saved_tensors_hooks(pack, lambda x: x):
        trainer.criterion(trainer.model, trainer._prepare_sample(samples[0])[0])
    return sum(storage.nbytes() for storage in kept.values())
