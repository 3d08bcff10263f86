"""Contents of a checkpoint, checked before any of them is used; every reading of one passes here.

The unpickler says that nothing in a file runs, and not that the file holds a model.
"""

from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from fairseq_ext.bounds import check_unpacked
from fairseq_ext.errors import UsageError
from fairseq_ext.permissions import is_given

SIZES = ("layers", "embed_dim", "ffn_embed_dim", "attention_heads")
SIDES = ("encoder", "decoder")
NAMES = {"model": ("_name", "arch"), "task": ("_name", "task")}
"""Part of the settings -> its entries, one of which is a registered name."""


CONTAINERS = (dict, list, tuple, set, Namespace)
DEEPEST = 100  # containers in one another
MOST_PARTS = 20_000_000  # of containers, each counted as often as it is reached


def check_bounds(file: str, content: Any) -> None:
    """Raise UsageError for content that is small in a file and without end when it is used.

    Containers that hold one another, or one container many times, are walked like a tree. A tensor
    may not have more numbers than its storage, and many tensors not all the same storage.
    """
    waiting: list[tuple[Any, int]] = [([content], 0)]
    parts, sizes, storages = 0, 0, {}
    while waiting:
        value, depth = waiting.pop()
        if isinstance(value, torch.Tensor):
            size, storage = _measure(file, value)
            sizes, storages[storage.data_ptr()] = sizes + size, storage.nbytes()
            continue
        values = vars(value) if isinstance(value, Namespace) else value
        values = values.values() if isinstance(values, dict) else values
        parts += len(values)
        if depth > DEEPEST or parts > MOST_PARTS:
            raise UsageError(
                f"{file} is no whole checkpoint: its parts hold one another {DEEPEST} times, or "
                f"are more than {MOST_PARTS}; give one that fairseq-train saved"
            )
        kinds = (*CONTAINERS, torch.Tensor)
        waiting += [(each, depth + 1) for each in values if isinstance(each, kinds)]
    check_unpacked(file, sum(storages.values()), sizes)


def _measure(file: str, tensor: torch.Tensor) -> tuple[int, torch.UntypedStorage]:
    """Return the bytes of a tensor's numbers, and its storage, which has as many."""
    size = tensor.numel() * tensor.element_size()
    stored = tensor.layout is torch.strided and tensor.device.type != "meta"
    if not stored or size > tensor.untyped_storage().nbytes():
        raise UsageError(
            f"{file} has a tensor {[*tensor.shape]} whose numbers are not all in the file; give "
            "one with each number of each tensor"
        )
    return size, tensor.untyped_storage()


def check_contents(file: str, state: Mapping[str, Any]) -> None:
    """Raise UsageError, which names the file and what in it, unless a checkpoint holds a model."""
    problem = next(_find_problems(state), None)
    if problem is not None:
        raise UsageError(
            f"{file} is no whole checkpoint: {problem}; give one that fairseq-train saved"
        )
    if not is_given("--allow-nan"):
        _check_finite(file, state["model"])


def _check_finite(file: str, parameters: Mapping[str, Any]) -> None:
    for name, value in parameters.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            bad = value.numel() - int(torch.isfinite(value).sum())
            if bad:
                raise UsageError(
                    f"{file} holds parameters that are not finite, first {bad} of {value.numel()} "
                    f"in {name}; its training went wrong: take an earlier checkpoint, or give "
                    "--allow-nan to look at it"
                )


def _find_problems(state: Mapping[str, Any]) -> Iterator[str]:
    """Yield problems, of which the first is shown; what comes after one relies on that."""
    yield from _check_parameters(state.get("model"))
    if state.get("args") is not None:
        yield from _check_old_settings(state["args"])
    else:
        yield from _check_settings(state.get("cfg"))
    history = state.get("optimizer_history", [{}])  # older ones have none
    if not (isinstance(history, list) and history and _all(Mapping, history)):
        yield f"optimizer_history is {_show(history)} instead of a list of records"
    for name in ("extra_state", "task_state"):
        if not isinstance(state.get(name), Mapping | None):
            yield f"{name} is {_show(state[name])} instead of entries by name"
    iterator = (state.get("extra_state") or {}).get("train_iterator")
    if not isinstance(iterator, Mapping | None):
        yield f"train_iterator is {_show(iterator)} instead of entries by name"


def _check_parameters(model: Any) -> Iterator[str]:
    if not isinstance(model, Mapping) or not model:
        yield f"model is {_show(model)} instead of parameters by name"
    yield from _check_keys("model", model)
    for name, value in model.items():
        if not (isinstance(value, torch.Tensor) or name.endswith("_extra_state")):
            yield f"the parameter {name} is {_show(value)}"


def _check_keys(part: str, values: Mapping) -> Iterator[str]:
    for key in values:
        if not isinstance(key, str):
            yield f"{part} has an entry named {_show(key)}, and names are text"


def _check_old_settings(args: Any) -> Iterator[str]:
    """Check the settings of a checkpoint from before fairseq 0.11."""
    if not isinstance(args, Namespace):
        yield f"args is {_show(args)} instead of a Namespace"
    elif not isinstance(name := getattr(args, "arch", None), str):
        yield f"arch in its args is {_show(name)} instead of a name"
    else:
        yield from _check_sizes("args", vars(args))


def _check_settings(cfg: Any) -> Iterator[str]:
    if not isinstance(cfg, Mapping):
        yield f"its settings, cfg, are {_show(cfg)} instead of entries by name"
    yield from _check_keys("cfg", cfg)
    for part, names in NAMES.items():
        options = cfg.get(part)
        options = vars(options) if isinstance(options, Namespace) else options
        if not isinstance(options, Mapping):
            yield f"cfg.{part} is {_show(options)} instead of entries by name"
        yield from _check_keys(f"cfg.{part}", options)
        given = [options[name] for name in names if options.get(name) is not None]
        if not given or not isinstance(given[0], str):
            yield f"cfg.{part} has {_show(given[0]) if given else 'nothing'} as its _name"
        yield from _check_sizes(f"cfg.{part}", options)


def _check_sizes(part: str, options: Mapping[str, Any]) -> Iterator[str]:
    """Check the sizes of a Transformer; other models have numbers as text, such as "[(512, 3)]"."""
    for side in SIDES:
        if options.get(f"{side}_attention_heads") is None:
            continue
        for size in SIZES:
            value = options.get(f"{side}_{size}")
            least = int(size != "layers")
            if isinstance(value, str | float | bool) or (isinstance(value, int) and value < least):
                yield f"{part}.{side}_{size} is {_show(value)} instead of a number from {least}"


def _all(kind: Any, values: list) -> bool:
    return all(isinstance(value, kind) for value in values)


def _show(value: Any) -> str:
    """Return a short description of what stands where something else belongs."""
    if value is None or isinstance(value, str | int | float):
        return repr(value)[:60]
    empty = isinstance(value, Mapping | list | tuple) and not value
    return f"{'an empty' if empty else 'a'} {type(value).__name__}"
