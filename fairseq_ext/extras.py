"""Packages that not everybody needs, imported when somebody asks for them."""

from importlib import import_module
from types import ModuleType

from fairseq_ext.errors import UsageError


def import_extra(module: str, extra: str, asked: str) -> ModuleType:
    """Import a module of a package that one of the extras of setup.py installs.

    Args:
        module: its name.
        extra: the name of the extra.
        asked: the flag, or file, that needs it, as a sentence begins with it.

    Raises:
        UsageError: the package is not installed.
    """
    try:
        return import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise UsageError(
            f"{asked} needs {package}, which is not installed; pip install 'fairseq_ext[{extra}]'"
        ) from None
