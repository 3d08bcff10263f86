"""Patches with which a training step waits for a GPU less often."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fairseq_ext.data import batch_facts
from fairseq_ext.errors import UsageError
from fairseq_ext.wrapping import TRAINER, wrapper_of


@wrapper_of(TRAINER, "_prepare_sample")
def know_batches(original: Callable, trainer: Any, sample: Any, *args: Any, **how: Any) -> Any:
    """Let the host look for padding and masked tokens before a batch goes to a GPU.

    Fault: The step waits for the GPU to say where padding and masked tokens are.
    Asked: who trains on a GPU; silent, slow; none.
    Since: always.
    Until: fairseq's batches say both.
    """
    known = {}
    if isinstance(sample, dict) and getattr(trainer.task, "source_dictionary", None):
        pad = trainer.task.source_dictionary.pad()
        for name, tokens in batch_facts.list_tokens(sample):
            if tokens.device.type == "cpu":
                known[name] = tokens, batch_facts.take(tokens, pad)
    prepared, dummy = original(trainer, sample, *args, **how)
    for name, moved in batch_facts.list_tokens(prepared) if known else ():
        tokens, facts = known.get(name, (moved, None))
        if facts is not None and tokens.device != moved.device:
            batch_facts.attach(moved, facts)
    return prepared, dummy


@wrapper_of("fairseq.criterions.masked_lm:MaskedLmLoss", "forward")
def select_masked_tokens(
    original: Callable, criterion: Any, model: Any, sample: Any, reduce: bool = True
) -> tuple[Tensor, Any, dict[str, Any]]:
    """Select masked tokens by their places, which the host knows.

    Fault: The loss of masked words waits three times for the GPU to count them.
    Asked: who pre-trains on a GPU; silent, slow; none.
    Since: fairseq 0.9.
    Until: fairseq's batches have the places of masked tokens.
    """
    from fairseq_ext.criterions.smoothed_loss import sum_losses
    from fairseq_ext.models.model_report import get_model_report

    if "target" not in sample:
        raise UsageError(
            "--criterion masked_lm needs batches with targets, and --d2v2-multi makes others; "
            "leave that flag out"
        )
    facts = batch_facts.find(sample["target"])
    takes_places = get_model_report(criterion.task).selects_by_places
    if facts is None or not len(facts.positions) or not takes_places:
        return original(criterion, model, sample, reduce)
    places = facts.positions
    logits = model(**sample["net_input"], masked_tokens=places)[0]
    targets = model.get_targets(sample, [logits]).flatten().index_select(0, places)
    loss = sum_losses(logits.view(-1, logits.size(-1)), targets)
    counts = {name: sample[name] for name in ("ntokens", "nsentences")}
    size = len(places)
    return loss, size, {"loss": loss.data, **counts, "sample_size": size}


@wrapper_of(TRAINER, "_reduce_and_log_stats")
def read_logs_together(
    original: Callable, trainer: Any, logs: Any, size: Any, norm: Any = None
) -> Any:
    """Read all numbers that a step logs from a GPU at once.

    Fault: Each number that is logged waits for the GPU, up to seven times in a step.
    Asked: who trains on a GPU; silent, slow; none.
    Since: fairseq 0.9.
    Until: Trainer._reduce_and_log_stats copies them together.
    """
    held = [size, norm, *(value for log in logs or () for value in log.values())]
    read = _read(held)
    logs = logs and [{name: read(value) for name, value in log.items()} for log in logs]
    return original(trainer, logs, read(size), read(norm))


def _read(values: Sequence[Any]) -> Callable[[Any], Any]:
    """Return a function that gives tensors among these on a CPU, and all else as it is."""
    waiting = {id(x): x for x in values if isinstance(x, Tensor) and x.device.type != "cpu"}
    if not waiting:
        return lambda value: value
    numbers = torch.cat([x.detach().double().flatten() for x in waiting.values()]).cpu()
    parts = numbers.split([x.numel() for x in waiting.values()])
    found = {
        k: part.view(x.shape).to(x.dtype)
        for (k, x), part in zip(waiting.items(), parts, strict=True)
    }
    return lambda value: found.get(id(value), value)
