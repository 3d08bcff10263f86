"""Registration as soon as both this package and fairseq are loaded, in any order.

If fairseq is loaded first, as it is when it imports a --user-dir, `fairseq_ext/__init__.py` imports
the registry. If this package is loaded first, by a notebook, by `fairseq-ext` or by a process that
unpickles something of ours, fairseq may follow later or never. Then a finder watches the imports of
fairseq and of our own modules, and imports the registry after fairseq.

It waits until no watched module is being executed. `import fairseq_ext.models.config` imports
fairseq half-way through that module, and the registry would then find it without its names. So the
outermost watched import ends first, then the registry is imported.
"""

import logging
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class RegistrationFinder(MetaPathFinder):
    """Finder that lets others find the watched modules and runs code after they are executed."""

    def __init__(self) -> None:
        self.executing = 0  # watched modules, one within the other

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a watched module, and None for any other."""
        if name != "fairseq" and not name.startswith("fairseq_ext."):
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec and spec.loader:
            execute = partial(self.execute, spec.loader.exec_module)
            spec.loader.exec_module = execute  # type: ignore[method-assign]
        return spec

    def execute(self, original: Callable[[ModuleType], None], module: ModuleType) -> None:
        """Execute a watched module; after the outermost one register, if fairseq is loaded."""
        self.executing += 1
        try:
            original(module)
        finally:
            self.executing -= 1
        if not self.executing and "fairseq" in sys.modules and self in sys.meta_path:
            sys.meta_path.remove(self)
            import_module("fairseq_ext.registry")


def register_after_fairseq() -> None:
    """Import the registry when fairseq, which is not loaded yet, is loaded."""
    logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)  # logs on import
    sys.meta_path.insert(0, RegistrationFinder())
