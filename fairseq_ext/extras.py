"""Packages that not everybody needs, imported when somebody asks for them."""

from importlib import import_module, metadata
from types import ModuleType

from fairseq_ext.errors import UsageError


def import_extra(module: str, extra: str, asked: str) -> ModuleType:
    """Import a module of a package that one of the extras of setup.py installs.

    Args:
        module: its name.
        extra: the name of the extra.
        asked: the flag, or file, that needs it, as a sentence begins with it.

    Raises:
        UsageError: the package is not installed, or too old.
    """
    package, install = module.partition(".")[0], f"pip install 'fairseq_ext[{extra}]'"
    try:
        imported = import_module(module)
    except ImportError:
        raise UsageError(f"{asked} needs {package}, which is not installed; {install}") from None
    if outdated := find_outdated(package, extra):
        raise UsageError(f"{asked} needs {outdated}; {install}")
    return imported


def find_outdated(package: str, extra: str) -> str:
    """Return which version of a package an extra asks for and which one is here, or "" if right.

    Without our own installation, as in a folder, nothing says what is right.
    """
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    try:
        requirements = map(Requirement, metadata.requires("fairseq_ext") or [])
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
    for required in requirements:
        same = canonicalize_name(required.name) == canonicalize_name(package)
        wanted = required.marker is not None and required.marker.evaluate({"extra": extra})
        if same and wanted and not required.specifier.contains(version, prereleases=True):
            return f"{required.name}{required.specifier}, and {version} is installed"
    return ""
