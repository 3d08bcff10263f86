"""Register with fairseq when it is loaded after this package.

fairseq registers what a user directory defines by importing it, and takes a package that is in
`sys.modules` already for registered. A package that was imported before fairseq was loaded, by a
notebook or by a process that unpickles something of ours, has to be registered all the same: when
fairseq is loaded, its `import_user_module` is wrapped to import the registry first.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

TARGET = "fairseq.utils"


class _AfterImport(MetaPathFinder):
    """Calls `_wrap_import_user_module` when fairseq.utils has been loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != TARGET:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        if spec and spec.loader:
            execute = spec.loader.exec_module

            def execute_and_wrap(module: ModuleType) -> None:
                execute(module)
                _wrap_import_user_module(module)

            spec.loader.exec_module = execute_and_wrap  # type: ignore[method-assign]
        return spec


def register_on_user_dir() -> None:
    """Import the registry when fairseq, which is not loaded yet, first imports a user directory."""
    sys.meta_path.insert(0, _AfterImport())


def _wrap_import_user_module(utils: Any) -> None:
    original = utils.import_user_module

    def import_user_module(args: Any) -> None:
        if getattr(args, "user_dir", None) is not None:
            import_module("fairseq_ext.registry")
        original(args)

    utils.import_user_module = import_user_module
