"""Reading what a stranger wrote: nothing in a checkpoint, or in the settings it carries, runs.

torch's `weights_only` unpickler builds nothing but the types of an explicit list, and
`parse_literal` reads the settings that fairseq hands to `eval`. `compat` puts both into fairseq.
Before torch 2.10 that unpickler itself can be made to corrupt memory (CVE-2026-24747).
"""

import argparse
import ast
import collections
import operator
import re
import threading
import types
import typing
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch

from fairseq_ext.errors import UsageError


class _Dtype:
    """What a file gets for `numpy.dtype`: one type of number and its byte order."""

    def __init__(self, code: str, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: tuple) -> None:
        self.number = np.dtype(state[1] + self.code)
        if self.number.kind not in "biuf":
            raise UnpicklingError(f"but got numpy.dtype({self.code!r})")


class _Array(np.ndarray):
    """What a file gets for `numpy.ndarray`: empty until it is filled, once, with numbers.

    The real classes cannot be on the list, since `ndarray(shape, "O", buffer)` and the state
    of a dtype turn bytes of the file into object pointers. It is written as a plain array.
    """

    def __new__(cls, *_: object) -> "_Array":
        return super().__new__(cls, (0,))

    def __setstate__(self, state: tuple) -> None:
        version, shape, dtype, fortran, data = state
        if self.size:  # a tensor may share this memory by now
            raise UnpicklingError("an array is filled twice")
        super().__setstate__((version, shape, dtype.number, fortran, data))

    def __reduce__(self) -> tuple:
        return self.view(np.ndarray).__reduce__()


def _scalar(dtype: _Dtype, data: bytes) -> np.generic:
    return np.frombuffer(data, dtype.number)[0]


# numpy 1 writes numpy.core, numpy 2 numpy._core: each must read the other's files.
FILE_TYPES = [
    argparse.Namespace,
    bytes,
    (_Array, "numpy.ndarray"),
    (_Dtype, "numpy.dtype"),
    *((_Array, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
    *((_scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
]


@cache
def broadcast_types() -> list:
    """What rank 0 sends to the others when it resumes: the file, with its settings parsed."""
    import omegaconf
    from fairseq.distributed.utils import _TensorPlaceholder

    return [
        *FILE_TYPES,
        *(omegaconf.DictConfig, omegaconf.ListConfig, omegaconf.nodes.AnyNode),
        *(omegaconf.base.ContainerMetadata, omegaconf.base.Metadata),
        *(typing.Any, dict, list, int, collections.defaultdict, _TensorPlaceholder),
    ]


_lock = threading.RLock()


@contextmanager
def _allowed(types_: list) -> Iterator[None]:
    """Make `types_` torch's whole list for now; it is one list for all threads."""
    with _lock:
        before = torch.serialization.get_safe_globals()
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(types_)
        try:
            yield
        finally:
            torch.serialization.clear_safe_globals()
            torch.serialization.add_safe_globals(before)


def _refusal(source: str, error: Exception) -> UsageError:
    found = re.search(r"GLOBAL (\S+) w|unrecognized function (.+)|but got (.+)", str(error))
    if found and isinstance(error, UnpicklingError):
        return UsageError(
            f"{source} asks for {next(filter(None, found.groups()))}, which could run code, so it "
            "was not loaded (accepted: tensors, numbers, text, plain containers and "
            "argparse.Namespace); ask its author for a file without it or convert it in a sandbox"
        )
    reason = re.sub(r"(?s).*WeightsUnpickler error:\s*", "", str(error)).partition("\n")[0]
    return UsageError(
        f"{source} cannot be read as a PyTorch file ({reason or type(error).__name__}): it is "
        "damaged, incomplete or something else; give another file, or copy this one again"
    )


def load(file: Any, *args: Any, allow: Callable[[], list] | None = None, **kwargs: Any) -> Any:
    """`torch.load` that is always `weights_only` and takes `FILE_TYPES` (or `allow()`) alone.

    Raises UsageError, naming the file, if it holds another type or cannot be read.
    """
    kwargs["weights_only"] = True  # an explicit value beats TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD
    try:
        with _allowed(allow() if allow else FILE_TYPES):
            return torch.load(file, *args, **kwargs)
    except Exception as error:
        raise _refusal(_name(file), error) from None


def load_checkpoint(file: Any, *args: Any, **kwargs: Any) -> dict:
    """`load` for what `fairseq-train` saved; anything else raises UsageError."""
    if kwargs.get("mmap") and not zipfile.is_zipfile(file):  # from before torch 1.6
        kwargs["mmap"] = False
    state = load(file, *args, **kwargs)
    keys = state.keys() if isinstance(state, dict) else ()
    if not ("model" in keys and {"optimizer_history", "best_loss"} & keys):
        raise UsageError(
            f"{_name(file)} is a PyTorch file but no fairseq checkpoint (no 'model' with its "
            "'optimizer_history'); give a file that fairseq-train saved"
        )
    return state


def _name(file: Any) -> str:
    if isinstance(file, str):
        return file
    return getattr(file, "name", "the state sent by the first process")


class SafeTorch(types.ModuleType):
    """torch as one fairseq module sees it: another `load`, the rest as it is."""

    def __init__(self, loader: Callable) -> None:
        super().__init__("torch")
        self.load = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


# Every module of fairseq (examples aside) that calls torch.load.
LOADERS = {
    "fairseq.checkpoint_utils": load_checkpoint,
    "fairseq.distributed.utils": partial(load, allow=broadcast_types),
    "fairseq.data.codedataset": load,
    "fairseq.models.speech_to_text.xm_transformer": load,
    "fairseq.models.text_to_speech.vocoder": load,
    "fairseq.modules.quantization.pq.em": load,
}


def parse_literal(text: str) -> Any:
    """`eval` for settings: numbers, text, lists, tuples and dicts, with + and * between them.

    Raises UsageError for anything else, and TypeError, as `eval` does, if it is no text.
    """
    if not isinstance(text, str):
        raise TypeError(f"a setting must be text, not {type(text).__name__}")
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise UsageError(
            f"the setting {text[:80]!r} is no plain value (numbers, text, lists, tuples and "
            "dicts, with + and *), so it was not evaluated; correct it, or do not use the "
            "checkpoint it comes from"
        ) from None


_OPERATORS = {ast.Add: operator.add, ast.Mult: operator.mul}
_CONTAINERS = {ast.List: list, ast.Tuple: tuple}


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    if type(node) in _CONTAINERS:
        return _CONTAINERS[type(node)](map(_value, node.elts))
    return ast.literal_eval(node)
