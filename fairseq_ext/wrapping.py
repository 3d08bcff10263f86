"""Replace or wrap functions of fairseq."""

import functools
import importlib
from collections.abc import Callable
from typing import Any


def replace(modules: list[str], name: str, value: Any) -> None:
    """Set `name` in each of fairseq's `modules`; a module's globals beat the builtins."""
    for module in modules:
        setattr(importlib.import_module(module), name, value)


def owner_of(path: str) -> Any:
    """Return the module "module", or the class "module:Class"."""
    module, _, cls = path.partition(":")
    owner = importlib.import_module(module)
    return getattr(owner, cls) if cls else owner


def wrap(path: str, name: str, wrapper: Callable) -> None:
    """Replace `path.name` by a function that calls `wrapper(original, ...)`."""
    owner = owner_of(path)
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    setattr(owner, name, wrapped)
