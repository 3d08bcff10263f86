"""Replacement and wrapping of functions of fairseq."""

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any


def replace(modules: list[str], name: str, value: Any) -> None:
    """Set `name` in each of these modules; a module's globals take precedence over the builtins."""
    for module in modules:
        setattr(importlib.import_module(module), name, value)


def find_owner(path: str) -> Any:
    """Return the module named "module", or the class named "module:Class"."""
    module, _, cls = path.partition(":")
    owner = importlib.import_module(module)
    return getattr(owner, cls) if cls else owner


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

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **{names.get(k, k): v for k, v in kwargs.items()})

    setattr(owner, name, wrapped)


def _named(function: Callable) -> list[str]:
    """Return the names of the parameters that can be given by position."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
