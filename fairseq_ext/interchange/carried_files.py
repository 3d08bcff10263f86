"""Files of this package that others carry: what a file imports here, and copies in one folder."""

import ast
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path

from fairseq_ext.errors import UsageError

ROOT = Path(__file__).parents[1]
PACKAGE = __name__.partition(".")[0]
VERSION = import_module(PACKAGE).__version__  # no import, as if its first file were a room
REMOTE_CODE = f"{PACKAGE}.interchange.remote_code."
CARRIED = f"{REMOTE_CODE}carried"
HEAD = f"# {PACKAGE} {VERSION}, under the MIT licence; see LICENSE\n"


def find_license() -> str:
    """Return the text of the licence: in the installed package, or in the checkout around it."""
    for folder in (ROOT, ROOT.parent):
        if (folder / "LICENSE").is_file():
            return (folder / "LICENSE").read_text("utf-8")
    raise UsageError(f"{ROOT} has no LICENSE, which goes with the code; install {PACKAGE} again")


def find_file(module: str) -> Path | None:
    """Return the file of a module of this package, or None if there is no such module."""
    path = ROOT.parent.joinpath(*module.split("."))
    files = (path.with_name(f"{path.name}.py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None)


def list_imports(tree: ast.Module) -> Iterator[tuple[ast.ImportFrom, list[str]]]:
    """Yield imports from this package, with the module that each of their names is or is in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"{PACKAGE}."):
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield node, [name if find_file(name) else str(node.module) for name in inner]


def collect(modules: Iterable[str], texts: Mapping[str, str]) -> dict[str, str]:
    """Return these modules and all that they import here: name -> text.

    Args:
        texts: name -> text of modules that are not read.
    """
    found: dict[str, str] = {}
    waiting = list(modules)
    while waiting:
        if (name := waiting.pop()) in found:
            continue
        file = find_file(name)
        assert file is not None, name
        found[name] = texts.get(name) or file.read_text("utf-8")
        for _, imported in list_imports(ast.parse(found[name])):
            waiting += imported
    return dict(sorted(found.items()))


def flatten_name(module: str) -> str:
    """Return the name of a module among the files of one folder."""
    return module.removeprefix(REMOTE_CODE).removeprefix(f"{PACKAGE}.").replace(".", "_")


def flatten_imports(text: str) -> str:
    """Return the text of a file that imports from files beside it what it imports from here."""
    lines = text.splitlines(keepends=True)
    imports = list_imports(ast.parse(text))
    for node, modules in sorted(imports, key=lambda pair: -pair[0].lineno):
        written = []
        for alias, module in zip(node.names, modules, strict=True):
            flat, name = flatten_name(module), alias.asname or alias.name
            if module == node.module:
                written.append(f"from .{flat} import {ast.unparse(alias)}\n")
            else:
                written.append(f"from . import {flat} as {name}\n")
        indent = " " * node.col_offset
        lines[node.lineno - 1 : node.end_lineno] = [indent + line for line in written]
    return "".join(lines)


def write_flat(main: str, mechanisms: Iterable[str], folder: Path) -> None:
    """Write a module, the mechanisms it is to know, and all they need here into one folder.

    transformers copies a file if another one names it in an import.
    """
    used = sorted(mechanisms)
    files = collect([main, *used], {CARRIED: _import_used(used, [])})
    files[CARRIED] = _import_used(used, files)
    for module, text in files.items():
        flat = text if module == CARRIED else flatten_imports(text)
        (folder / f"{flatten_name(module)}.py").write_text(HEAD + flat, "utf-8")
    (folder / "LICENSE").write_text(find_license(), "utf-8")


def _import_used(mechanisms: Iterable[str], files: Iterable[str]) -> str:
    """Return the text of the file that imports mechanisms, and names all files."""
    named = [flatten_name(name) for name in files if name != CARRIED]
    lines = [
        '"""Imports of the mechanisms of this model, and names of the files beside this one."""',
        "",
        "from typing import TYPE_CHECKING",
        "",
        *(f"from . import {flatten_name(name)}" for name in mechanisms),
        "",
        "if TYPE_CHECKING:  # transformers copies what is imported from",
        *(f"    from .{name} import __name__" for name in named),
        "    pass",
        "",
    ]
    return "\n".join(lines)
