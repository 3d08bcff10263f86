"""How fairseq's own functions are replaced or wrapped."""

import functools
import importlib
from collections.abc import Callable
from typing import Any


def replace(modules: list[str], name: str, value: Any) -> None:
    """Give each of fairseq's `modules` its own `name`: a module's globals beat the builtins."""
    for module in modules:
        setattr(importlib.import_module(module), name, value)


def holder(owner: str) -> Any:
    """The module, or with "module:Class" the class."""
    module, _, cls = owner.partition(":")
    place = importlib.import_module(module)
    return getattr(place, cls) if cls else place


def around(owner: str, name: str, wrapper: Callable) -> None:
    """Replace `owner.name` by a function that calls `wrapper(original, ...)`."""
    place = holder(owner)
    original = getattr(place, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    setattr(place, name, wrapped)
