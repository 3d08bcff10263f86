"""Mechanisms: what can stand in the slots of attention, one file or folder each.

Every file here is found by itself, and registers its parts when this package is imported.
"""

from importlib import import_module
from pkgutil import iter_modules


def _import_all() -> None:
    for found in iter_modules(__path__, f"{__name__}."):
        try:
            import_module(found.name)
        except Exception as error:
            error.add_note(f"{found.name} cannot be imported, and has to register its mechanism")
            raise


_import_all()
