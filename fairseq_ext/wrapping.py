"""Replacement and wrapping of functions of fairseq, and of what they raise."""

import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

from fairseq_ext.errors import UsageError

TRAINER = "fairseq.trainer:Trainer"
FULL_KEY = "\n    full_key:"  # from here on a message of omegaconf repeats itself

_applied: set[Callable[[], None]] = set()


STOCK = "FAIRSEQ_EXT_STOCK_NUMBERS"
"""Environment variable: 1 leaves out what changes numbers, or speed, of fairseq's own models."""


def apply_once(
    changes: Iterable[Callable[[], None]], numbers: Collection[Callable[[], None]] = ()
) -> None:
    """Make every change that has not been made in this process, but `numbers` if `STOCK` is 1.

    An inner call is harmless: a change may be the first to import fairseq, which registers
    everything (see `deferred`) and so calls this again.
    """
    left_out = numbers if os.environ.get(STOCK) == "1" else ()
    for change in changes:
        if change not in _applied and change not in left_out:
            _applied.add(change)
            change()


def replace(modules: list[str], name: str, value: Any) -> None:
    """Set `name` in each of these modules; a module's globals take precedence over the builtins."""
    for module in modules:
        setattr(importlib.import_module(module), name, value)


def find_owner(path: str) -> Any:
    """Return the module named "module", or the class named "module:Class"."""
    module, _, cls = path.partition(":")
    owner = importlib.import_module(module)
    return getattr(owner, cls) if cls else owner


def list_copies(command: str) -> list[str]:
    """Return the names under which the module of a command is loaded: `python -m` makes another."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    as_main = ["__main__"] if spec is not None and spec.name == command else []
    return [name for name in (command, *as_main) if name in sys.modules]


def wrap(path: str, name: str, wrapper: Callable) -> None:
    """Replace the function `name` of an owner by one that calls `wrapper(original, ...)`.

    The wrapper has names of its own for the original's first parameters, in their order; callers
    use the original's.

    Args:
        path: of the owner; see `find_owner`.
    """
    owner = find_owner(path)
    original = getattr(owner, name)
    names = dict(zip(_named(original), _named(wrapper)[1:], strict=False))

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **{names.get(k, k): v for k, v in kwargs.items()})

    # TorchScript compiles the original, whose names it looks for among those of what replaces it
    known = getattr(original, "__globals__", globals())
    moved = FunctionType(wrapped.__code__, known, name, None, wrapped.__closure__)
    setattr(owner, name, functools.update_wrapper(moved, original))


def wrapper_of(path: str, name: str) -> Callable[[Callable], Callable[[], None]]:
    """Return a decorator that makes a change of a wrapper: calling it wraps a function once.

    The change has the wrapper's name and docstring; arguments are those of `wrap`.
    """

    def decorate(wrapper: Callable) -> Callable[[], None]:
        change = functools.partial(wrap, path, name, wrapper)
        return functools.update_wrapper(change, wrapper)

    return decorate


def _named(function: Callable) -> list[str]:
    """Return the names of the parameters that can be given by position."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


@contextmanager
def as_usage_error(start: str, sentence: str, argument: Any) -> Iterator[None]:
    """Turn an exception whose text begins with `start` into a UsageError.

    Args:
        sentence: the message, with places for "{argument}" and for "{reason}", which the exception
            gives.
    """
    try:
        yield
    except Exception as error:
        if not str(error).startswith(start):
            raise
        cause = error.__context__ or error
        reason = " ".join(str(cause).split(FULL_KEY)[0].split())[:200]
        raise UsageError(sentence.format(argument=argument, reason=reason)) from error
