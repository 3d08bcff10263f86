"""Import paths of earlier versions, and where their modules and names are now.

`finder` keeps the old paths importable, with a DeprecationWarning. `python -m fairseq_ext.moved`
prints the table for docs/upgrading.md, and `fairseq-ext doctor --user-dir` looks for old paths in a
package. Whoever moves a module or a name adds a line to paths.txt, and corrects those that ended
where it was.
"""

from pkgutil import get_data

MOVED = dict(
    line.split() for line in (get_data(__name__, "paths.txt") or b"").decode().splitlines()
)
"""Old -> new path in this package: of a module, or as "module:name" of a name in a module."""


def find_new(module: str, name: str = "") -> str | None:
    """Return the new path of a module, or of a name in it; None if it has not moved.

    Args:
        module: its old path in this package, or "" for the package itself.
        name: of a module or anything else in it; "" for the module itself.
    """
    if not name:
        return MOVED.get(module)
    new = MOVED.get(f"{module}:{name}") or MOVED.get(f"{module}.{name}".lstrip("."))
    if new is None and module in MOVED and not name.startswith("__"):
        return f"{MOVED[module]}:{name}"
    return new


def write_out(path: str) -> str:
    """Return a path of the table as Python has it."""
    return f"fairseq_ext.{path.replace(':', '.')}"


def as_text() -> str:
    """Return the table of all old paths, a line for each with the new one."""
    width = max(len(write_out(old)) for old in MOVED)
    return "".join(f"{write_out(old):{width}} {write_out(new)}\n" for old, new in MOVED.items())
