"""Reading of files that strangers wrote: nothing in a checkpoint, or in its settings, runs.

torch's `weights_only` unpickler builds only the types of an explicit list, and `parse_literal`
reads the settings that fairseq hands to `eval`. `patches.checkpoints` puts both into fairseq.
Before torch 2.10 that unpickler itself can be made to corrupt memory (CVE-2026-24747).
"""

import argparse
import ast
import collections
import io
import operator
import re
import threading
import types
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch

from fairseq_ext.bounds import check_regular, check_unpacked
from fairseq_ext.checkpoint_contents import check_bounds, check_contents
from fairseq_ext.errors import UsageError
from fairseq_ext.files import check_not_pointer
from fairseq_ext.old_settings import upgrade_checkpoint


class _Dtype:
    """Stand-in for `numpy.dtype` in a file: one type of number and its byte order."""

    def __init__(self, code: str, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: tuple) -> None:
        self.number = np.dtype(state[1] + self.code)
        if self.number.kind not in "biuf":
            raise UnpicklingError(f"but got numpy.dtype({self.code!r})")


class _Array(np.ndarray):
    """Stand-in for `numpy.ndarray` in a file: empty until it is filled, once, with numbers.

    The real classes cannot be on the list, since `ndarray(shape, "O", buffer)` and the state of a
    dtype turn bytes of the file into object pointers. A stand-in is pickled as a plain array.
    """

    def __new__(cls, *_: object) -> "_Array":
        return super().__new__(cls, (0,))

    def __setstate__(self, state: tuple) -> None:
        version, shape, dtype, fortran, data = state
        if self.size:  # a tensor may share this memory by now
            raise UnpicklingError("an array is filled twice")
        super().__setstate__((version, shape, dtype.number, fortran, data))

    def __reduce__(self) -> str | tuple:
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
    """Return the types of a checkpoint that the first process sends to others, settings parsed."""
    import omegaconf
    from fairseq.distributed.utils import _TensorPlaceholder

    return [
        *FILE_TYPES,
        *(omegaconf.DictConfig, omegaconf.ListConfig, omegaconf.nodes.AnyNode),
        *(omegaconf.base.ContainerMetadata, omegaconf.base.Metadata),
        *(Any, dict, list, int, collections.defaultdict, _TensorPlaceholder),
    ]


_lock = threading.RLock()


@contextmanager
def _allowed(types_: list) -> Iterator[None]:
    """Make `types_` torch's whole list in this context; it is one list for all threads."""
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
    """Return the error that a user sees for torch's."""
    forbidden = re.search(r"GLOBAL (\S+) w|unrecognized function (.+)|but got (.+)", str(error))
    if forbidden and isinstance(error, UnpicklingError):
        return UsageError(
            f"{source} asks for {next(filter(None, forbidden.groups()))}, which could run code, so "
            "it was not loaded (accepted: tensors, numbers, text, plain containers and "
            "argparse.Namespace); ask its author for a file without it or convert it in a sandbox"
        )
    reason = re.sub(r"(?s).*WeightsUnpickler error:\s*", "", str(error)).partition("\n")[0]
    return UsageError(
        f"{source} cannot be read as a PyTorch file ({reason or type(error).__name__}): it is "
        "damaged, incomplete or something else; give another file, or copy this one again"
    )


def load(file: Any, *args: Any, allow: Callable[[], list] | None = None, **kwargs: Any) -> Any:
    """Load a file by `torch.load`, always `weights_only`, with `FILE_TYPES` (or `allow()`) alone.

    Raises:
        UsageError: the file, which the message names, has another type or cannot be read.
    """
    kwargs["weights_only"] = True  # an explicit value beats TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD
    try:
        is_stored = _check_file(file)
        kwargs["mmap"] = bool(kwargs.get("mmap")) and is_stored
        with _allowed(allow() if allow else FILE_TYPES):
            content = torch.load(file, *args, **kwargs)
    except UsageError:
        raise
    except Exception as error:
        check_not_pointer(Path(str(_name(file))))
        raise _refusal(_name(file), error) from None
    check_bounds(_name(file), content)
    return content


def _check_file(file: Any) -> bool:
    """Return whether a file is a zip whose entries are not packed, so that they can be mapped.

    Raises:
        UsageError: it is a device or a pipe, or would be unpacked to much more than it has.
    """
    if isinstance(file, str | Path):
        check_regular(Path(file))
    entries: list[zipfile.ZipInfo] = []
    if zipfile.is_zipfile(file):  # not from before torch 1.6
        with zipfile.ZipFile(file) as zipped:
            entries = zipped.infolist()
            size = zipped.fp.seek(0, io.SEEK_END)  # type: ignore[union-attr]
        check_unpacked(_name(file), size, sum(entry.file_size for entry in entries))
    if not isinstance(file, str | Path):
        file.seek(0)
    return bool(entries) and all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)


def load_checkpoint(file: Any, *args: Any, **kwargs: Any) -> dict:
    """Load a checkpoint that `fairseq-train` saved, with settings as they are called now.

    Raises:
        UsageError: it is any other file, or has parameters that are not finite.
    """
    state = load(file, *args, **kwargs)
    keys = set(state) if isinstance(state, dict) else set()
    if not ("model" in keys and {"optimizer_history", "best_loss"} & keys):
        raise UsageError(
            f"{_name(file)} is a PyTorch file but no fairseq checkpoint (no 'model' with its "
            "'optimizer_history'); give a file that fairseq-train saved"
        )
    check_contents(_name(file), state)
    upgrade_checkpoint(state)
    return state


def read_checkpoint(file: Path) -> dict:
    """Return a checkpoint whose tensors stay in the file until they are used.

    Raises:
        UsageError: there is no such file, or it is no checkpoint; see `load_checkpoint`.
    """
    check_regular(file)
    if not file.is_file():
        raise UsageError(f"there is no checkpoint {file}; give what fairseq-train saved")
    return load_checkpoint(str(file), map_location="cpu", mmap=True)


def _name(file: Any) -> str:
    if isinstance(file, str):
        return file
    return getattr(file, "name", "the state sent by the first process")


class SafeTorch(types.ModuleType):
    """Module in the place of torch for one module of fairseq: another `load`, the rest as it is."""

    def __init__(self, loader: Callable) -> None:
        super().__init__("torch")
        self.load = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


LOADERS: dict[str, Callable] = {
    "fairseq.checkpoint_utils": load_checkpoint,
    "fairseq.distributed.utils": partial(load, allow=broadcast_types),
    "fairseq.data.codedataset": load,
    "fairseq.models.speech_to_text.xm_transformer": load,
    "fairseq.models.text_to_speech.vocoder": load,
    "fairseq.modules.quantization.pq.em": load,
}
"""Every module of fairseq (examples aside) that calls torch.load, and the function it gets."""


def parse_literal(text: str) -> Any:
    """Evaluate the text of a setting like `eval`, without running anything.

    fairseq hands settings such as "[(512, 10, 5)] * 4 + [(512, 2, 2)]" (layers of a convolution) or
    "(0.9, 0.98)" to `eval`, and a checkpoint brings settings of its own. `ast.literal_eval` takes
    no + and * between lists, so `_evaluate` walks the syntax tree: sums, products, lists and tuples
    are put together here, and every other node goes to `literal_eval`, which builds numbers, text
    and dicts and refuses names, calls and attributes.

    Raises:
        UsageError: the text is anything else.
        TypeError: it is no text; `eval` raises it too.
    """
    if not isinstance(text, str):
        raise TypeError(f"a setting must be text, not {type(text).__name__}")
    try:
        if len(text) > MOST_PARTS:
            raise ValueError
        return _evaluate(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise UsageError(
            f"the setting {text[:80]!r} is no plain value (numbers, text, lists, tuples and "
            "dicts, with + and *), so it was not evaluated; correct it, or do not use the "
            "checkpoint it comes from"
        ) from None


_OPERATORS: dict[type, Callable] = {ast.Add: operator.add, ast.Mult: operator.mul}
MOST_PARTS = 100_000  # characters of a setting, and parts of its value


def _evaluate(node: ast.expr) -> Any:
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        values = _evaluate(node.left), _evaluate(node.right)
        times = [value for value in values if isinstance(value, int)]
        repeats = isinstance(node.op, ast.Mult) and len(times) == 1
        if sum(map(_count_parts, values)) * (times[0] if repeats else 1) > MOST_PARTS:
            raise ValueError
        return _OPERATORS[type(node.op)](*values)
    if isinstance(node, ast.List):
        return [_evaluate(element) for element in node.elts]
    if isinstance(node, ast.Tuple):
        return tuple(_evaluate(element) for element in node.elts)
    return ast.literal_eval(node)


def _count_parts(value: Any) -> int:
    """Return how many characters and values a value holds, those of its values included."""
    if isinstance(value, dict):
        return _count_parts([*value.items()])
    if isinstance(value, list | tuple | set):
        return 1 + sum(map(_count_parts, value))
    return len(value) if isinstance(value, str | bytes) else 1
