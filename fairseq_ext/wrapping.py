"""Replacement and wrapping of functions of fairseq."""

import functools
import importlib
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

    Args:
        path: of the owner; see `find_owner`.
    """
    owner = find_owner(path)
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    setattr(owner, name, wrapped)
