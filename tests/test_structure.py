"""The house rules hold: order of imports, words of docstrings, names and sizes of files."""

import ast
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "fairseq_ext"
MODULES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted(Path(__file__).parent.rglob("*.py"))
FRAGMENTS = "What Of Those As That Which How Where In From By For".split()
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
TWO_LEVELS = {  # one thing as a task and as a criterion, as a library and as a step, ...
    "__init__",
    "__main__",
    "options",
    "sentences",
    "sequence_tagging",
    "span_extraction",
    "wordpiece",
}


def test_order_of_imports():
    """The contracts stand in pyproject.toml."""
    lint = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([lint, "--no-cache"], cwd=PACKAGE.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_docstrings_begin_with_a_sentence(path):
    """Their first word begins none of the fragments that make riddles."""
    tree = ast.parse(path.read_text("utf-8"))
    nodes = [node for node in ast.walk(tree) if isinstance(node, DOCUMENTED)]
    texts = [text for node in nodes if (text := ast.get_docstring(node))]
    assert not [text for text in texts if text.split()[0].rstrip(",") in FRAGMENTS]


def test_files_have_300_lines_at_most():
    sizes = {path: path.read_text("utf-8").count("\n") for path in MODULES}
    assert not {str(path): size for path, size in sizes.items() if size > 300}


def test_files_have_names_of_their_own():
    """Two files share a name only if they are the same thing on two levels."""
    named = defaultdict(list)
    for path in MODULES:
        named[path.stem].append(path)
    assert {name for name, paths in named.items() if len(paths) > 1} <= TWO_LEVELS


def test_tests_do_not_import_each_other():
    """Tests share modules that hold no tests, and fixtures of conftest.py."""
    imported = {}
    for path in TESTS:
        nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
        names = [
            alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names
        ]
        names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        imported[path.name] = [name for name in names if name.startswith("test_")]
    assert not {name: modules for name, modules in imported.items() if modules}
