"""Uses of old import paths in a user's package, found without running it."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fairseq_ext.moved import MOVED, find_new, write_out


class OldName(NamedTuple):
    """An old import path in a file.

    Attributes:
        line: its number.
        old: the path, as Python has it.
        new: the path in its place.
    """

    line: int
    old: str
    new: str


def find_old_names(file: Path) -> list[OldName]:
    """Return the old paths that a file imports or uses, in the order of its lines.

    Raises:
        SyntaxError: it is no Python.
    """
    found = {}
    for line, module, name in _list_uses(ast.parse(file.read_bytes())):
        package, _, place = module.partition(".")
        if package == "fairseq_ext" and (new := find_new(place, name)):
            path = f"{module}.{name}" if name else module
            found[line, path] = OldName(line, path, write_out(new))
    return sorted(found.values())


def _list_uses(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield line, module and name of what is imported of ours, and of attributes of modules."""
    bound = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, ""
                root = alias.name.partition(".")[0]
                bound[alias.asname or root] = alias.name if alias.asname else root
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield node.lineno, node.module, alias.name
                bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            root, dot, rest = ast.unparse(node.value).partition(".")
            module = f"{bound.get(root, '')}{dot}{rest}"
            if module.partition(".")[2] not in MOVED:  # whose import is named
                yield node.lineno, module, node.attr
