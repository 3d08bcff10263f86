"""Patch fairseq and register with it when it is loaded after this package.

fairseq takes a user directory whose package is in `sys.modules` already for registered. A package
that was imported before fairseq, by a notebook or by a process that unpickles something of ours,
must work all the same. So fairseq is patched when it has been loaded, and everything is registered
when fairseq first looks for a user directory or sets up a task. It cannot be registered sooner: one
of our own modules may be the one that loads fairseq, and is not complete at that time.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

ENTRY_POINTS = (("fairseq.utils", "import_user_module"), ("fairseq.tasks", "setup_task"))


class _FairseqFinder(MetaPathFinder):
    """Finder that calls `_patch_fairseq` after the first import of fairseq, and finds nothing."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "fairseq":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec and spec.loader:
            execute = spec.loader.exec_module

            def execute_and_patch(module: ModuleType) -> None:
                execute(module)
                _patch_fairseq()

            spec.loader.exec_module = execute_and_patch  # type: ignore[method-assign]
        return spec


def await_fairseq() -> None:
    """Patch fairseq, which is not loaded yet, as soon as it is."""
    sys.meta_path.insert(0, _FairseqFinder())


def _patch_fairseq() -> None:
    from fairseq_ext import patches
    from fairseq_ext.wrapping import wrap

    patches.apply()
    for module, name in ENTRY_POINTS:
        wrap(module, name, _register_first)


def _register_first(original: Callable, *args: Any, **kwargs: Any) -> Any:
    from fairseq_ext import registry  # noqa: F401

    return original(*args, **kwargs)
