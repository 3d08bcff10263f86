"""Finder of modules and names under the paths that they had in earlier versions.

An old module is a stand-in whose attributes come from the new place. A module that is still there,
but has lost names or modules, gets a `__getattr__` that knows where they are. Nothing is imported
before it is asked for. Each use is a DeprecationWarning at the line of the user.
"""

import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import Any

from fairseq_ext.moved import MOVED, find_new, write_out

PACKAGE = "fairseq_ext"
PACKAGES = {old.rpartition(".")[0] for old in MOVED if ":" not in old}
"""Packages, still there or not, that modules have left."""

PARENTS = PACKAGES | {old.partition(":")[0] for old in MOVED if ":" in old}
"""Modules, still there or not, that modules or names have left."""

INNER = ("importlib", "fairseq_ext.moved", "fairseq_ext.deferred")
"""Beginnings of the names of modules between the line of a user and a warning."""


class MovedFinder(MetaPathFinder):
    """Finder of old modules, and of modules that names or modules have left."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of such a module, and None for any other.

        An old folder without code is no module, though Python would take it for a namespace.
        """
        old = _shorten(name)
        if not name.startswith(f"{PACKAGE}.") or old not in MOVED.keys() | PARENTS:
            return None
        spec = None if old in MOVED else PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None or not spec.has_location:
            return ModuleSpec(name, MovedLoader(), is_package=old in PACKAGES)
        execute = partial(execute_with_old_names, spec.loader.exec_module)
        spec.loader.exec_module = execute  # type: ignore[method-assign]
        return spec


class MovedLoader(Loader):
    """Loader of a stand-in for an old module."""

    def exec_module(self, module: ModuleType) -> None:
        """Import the new module, if there is one, and let the old one find its attributes."""
        old = _shorten(module.__name__)
        if new := MOVED.get(old):
            if old not in PACKAGES:  # of which a module may be imported, which warns
                _warn(old, new)
            import_module(f"{PACKAGE}.{new}")
        _offer_old_names(module)

    def get_code(self, name: str) -> CodeType | None:
        """Return the code of the new module, for `python -m` with the old name."""
        old = _shorten(name)
        _warn(old, MOVED[old])
        spec = find_spec(f"{PACKAGE}.{MOVED[old]}")
        return spec.loader.get_code(spec.name) if spec else None  # type: ignore[union-attr]


def execute_with_old_names(original: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Execute a module, and let it find what has left it."""
    original(module)
    _offer_old_names(module)


def keep_old_names() -> None:
    """Keep all old paths importable from now on."""
    sys.meta_path.insert(0, MovedFinder())
    _offer_old_names(sys.modules[PACKAGE])


def _offer_old_names(module: ModuleType) -> None:
    vars(module).setdefault("__getattr__", partial(_get_moved, module.__name__))


def _get_moved(module: str, name: str) -> Any:
    """Return what has left a module, with a warning."""
    old = _shorten(module)
    if (new := find_new(old, name)) is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name)
    path, _, attribute = new.partition(":")
    if not attribute:  # a module, whose stand-in warns
        path = f"{old}.{name}".lstrip(".")
    elif sys._getframe(1).f_code.co_name != "_handle_fromlist":  # which asks before it takes
        # what has moved with its module warns with the same words, and so once a line
        whole = new == f"{MOVED.get(old)}:{name}"
        _warn(old if whole else f"{old}.{name}", path if whole else new)
    try:
        owner = import_module(f"{PACKAGE}.{path}")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith(PACKAGE):
            raise
        raise AttributeError(
            f"{module}.{name} is now {write_out(new)}, and there is no {error.name}", name=name
        ) from error
    return getattr(owner, attribute) if attribute else owner


def _warn(old: str, new: str) -> None:
    """Warn at the line that uses an old path."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith(INNER):
        frame = frame.f_back
    warnings.warn_explicit(
        f"{write_out(old)} is now {write_out(new)}",
        DeprecationWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=frame.f_globals.get("__name__", "<unknown>"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


def _shorten(module: str) -> str:
    """Return the path of a module in this package; "" for the package itself."""
    return module.removeprefix(PACKAGE).removeprefix(".")
