"""Break the package in many small ways, one at a time, and see whether the tests notice.

A seed chooses the places: at least one in each room, and no two in one module before every module
had one. Each mutation is made in a copy of the repository. There the tests run that reach the line,
which a measurement of coverage knows, then the files that they are in (not with --named) and those
that name the module, up to the first failure; slow ones last. Without a measurement files of tests
run that name the module or what it defines, those first that do so most often, and then, without
--named, all others. Results are lines of JSON; a second run continues, and tries again what no test
has noticed.

Example:
  COVERAGE_PROCESS_START=$PWD/pyproject.toml bash scripts/test.sh --all; coverage combine
  python tests/mutations.py --count 60 --seed 1 --coverage .coverage --out mutations.jsonl
  python tests/mutations.py --count 60 --seed 1 --out mutations.jsonl
  python tests/mutations.py --list --count 5 --rooms attention mechanisms
"""

import argparse
import ast
import copy
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pytest import ExitCode

if TYPE_CHECKING:
    from coverage import CoverageData

ROOT = Path(__file__).parent.parent
ROOMS = sorted(path.parent.name for path in (ROOT / "fairseq_ext").glob("*/__init__.py"))
SWAPS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
NONE = ast.Constant(None)
FAST, SLOW = ["-m", "not slow"], ["-m", "slow"]
FEW = 40  # tests that run before whole files
FILES = 4  # that run before others which name the module less often


class Mutation(NamedTuple):
    """A change of a module: its path in the repository, place, and text before and after."""

    path: str
    line: int
    start: int
    end: int
    before: str
    after: str

    def key(self) -> str:
        return f"{self.path}:{self.line}: {self.before} -> {self.after}"


def changed(node: ast.AST) -> ast.AST | None:
    """Return a node that means something else, or None if this kind of node is left alone."""
    new = copy.deepcopy(node)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        new.ops = [SWAPS[type(node.ops[0])]()]
    elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPS:
        new.op = SWAPS[type(node.op)]()
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        new = node.operand
    elif isinstance(node, ast.IfExp):
        new.body, new.orelse = node.orelse, node.body
    elif isinstance(node, ast.Constant) and type(node.value) in (bool, int):
        new.value = not node.value if isinstance(node.value, bool) else node.value + 1
    elif isinstance(node, ast.Return) and ast.dump(node.value or NONE) != ast.dump(NONE):
        new.value = NONE
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        new = ast.Pass()
    else:
        return None
    return new


def left_alone(node: ast.AST) -> bool:
    """Return whether nothing inside is changed: annotations, decorators, texts of errors."""
    return isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Assert)


def walk(node: ast.AST) -> Iterator[ast.AST]:
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not left_alone(child):
                yield child
                yield from walk(child)


def mutations_of(path: Path) -> list[Mutation]:
    text = path.read_text("utf-8")
    lines = [0]
    for line in text.encode().split(b"\n"):
        lines.append(lines[-1] + len(line) + 1)
    found = []
    for node in walk(ast.parse(text)):
        new = changed(node)
        if new is not None and hasattr(node, "lineno"):
            start = lines[node.lineno - 1] + node.col_offset
            end = lines[node.end_lineno - 1] + node.end_col_offset
            before, after = text.encode()[start:end].decode(), ast.unparse(new)
            nested = isinstance(node, ast.expr) and not isinstance(node, ast.Constant)
            after = f"({after})" if nested else after
            name = str(path.relative_to(ROOT))
            found.append(Mutation(name, node.lineno, start, end, before, after))
    return found


def choose(count: int, seed: int, rooms: Sequence[str]) -> list[Mutation]:
    """Return mutations: one of a module of each room, then one of each other module, then more."""
    rng = random.Random(seed)
    files = {room: sorted((ROOT / "fairseq_ext" / room).rglob("*.py")) for room in rooms}
    modules = {path: mutations_of(path) for paths in files.values() for path in paths}
    for found in modules.values():
        rng.shuffle(found)
    for paths in files.values():
        rng.shuffle(paths)
    turns = max(map(len, files.values()))
    order = [paths[turn] for turn in range(turns) for paths in files.values() if turn < len(paths)]
    chosen: list[Mutation] = []
    while len(chosen) < count:
        before = len(chosen)
        for path in order:
            if modules[path] and len(chosen) < count:
                chosen.append(modules[path].pop())
        if len(chosen) == before:
            break
    return chosen


def read_coverage(path: Path) -> "CoverageData":
    from coverage import CoverageData

    data = CoverageData(str(path))
    data.read()
    return data


def find_tests(coverage: "CoverageData", mutation: Mutation) -> list[str]:
    """Return tests that reach a line or, if it runs when its module is imported, the module."""
    lines = coverage.contexts_by_lineno(mutation.path)
    last = mutation.line + mutation.before.count("\n")
    reached = {test for at in range(mutation.line, last + 1) for test in lines.get(at, ())}
    if not any(reached):
        reached = {test for tests in lines.values() for test in tests}
    return sorted({test.rpartition(" (")[0] for test in reached} - {""})


def count_names(checkout: Path, module: str) -> dict[str, int]:
    """Return files of tests, and how often each names a module or what it defines.

    A file's own name counts for more than what it says.
    """
    tree = ast.parse((checkout / module).read_text("utf-8"))
    defined = [getattr(node, "name", "") for node in tree.body]
    names = [Path(module).stem, *(name for name in defined if name.strip("_"))]
    words = re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})\b")
    files = (checkout / "tests").rglob("test_*.py")
    return {
        str(file.relative_to(checkout)): len(words.findall(file.read_text("utf-8")))
        + 1000 * (Path(module).stem in file.stem)
        for file in sorted(files)
    }


def choose_tests(
    checkout: Path, module: str, tests: list[str] | None, *, named: bool = False
) -> Iterator[list[str]]:
    """Yield arguments of pytest, the most promising ones first.

    Args:
        checkout: a copy of the repository.
        module: the file that is changed.
        tests: those that reach the line, or None if nobody knows.
        named: leave out files that do not name the module.
    """
    counts = count_names(checkout, module)
    order = sorted(counts, key=lambda file: -counts[file])
    if tests is None:
        files = [file for file in order if counts[file]]
        yield from ([*FAST, *files[at : at + FILES]] for at in range(0, len(files), FILES))
        if not named:
            yield [*FAST, *(file for file in order if not counts[file])]
            yield [*SLOW, *order]
    elif tests:
        reaching = {test.partition("::")[0] for test in tests}
        # lines that a process of a command reaches count for no test
        files = [file for file in order if counts[file] or (file in reaching and not named)]
        yield [*FAST, *random.Random(1).sample(tests, min(FEW, len(tests)))]
        if files:
            yield [*FAST, *files]
            yield [*SLOW, *files]


def run_tests(checkout: Path, arguments: Sequence[str]) -> str:
    """Return the first test that fails, or an empty text."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(
        command,
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
    )
    if missing := re.findall(
        r"^ERROR: (?:file or directory )?not found: (.+)$", done.stdout + done.stderr, re.M
    ):
        # a test of the measurement is gone, or its name has another form there
        gone = [name for name in arguments if any(path.endswith(name) for path in missing)]
        rest = [name for name in arguments if name not in gone]
        return run_tests(checkout, rest) if gone and set(rest) - set(FAST + SLOW) else ""
    failures = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.M)
    passed = done.returncode in (ExitCode.OK, ExitCode.NO_TESTS_COLLECTED)
    return failures[0] if failures else "" if passed else (done.stdout + done.stderr)[-300:]


def try_out(
    checkout: Path, mutation: Mutation, coverage: "CoverageData | None", *, named: bool
) -> dict:
    """Make a mutation, and run the tests that reach it."""
    path, begin = checkout / mutation.path, time.time()
    # commands in processes of their own reach lines in the name of no test
    tests = find_tests(coverage, mutation) or None if coverage else None
    chosen = list(choose_tests(checkout, mutation.path, tests, named=named))
    text = path.read_bytes()
    path.write_bytes(text[: mutation.start] + mutation.after.encode() + text[mutation.end :])
    result = {"mutation": mutation.key(), "suite": "none", "failed": ""}
    try:
        for arguments in chosen:
            if failed := run_tests(checkout, arguments):
                suite = "fast" if arguments[: len(FAST)] == FAST else "all"
                result |= {"suite": suite, "failed": failed}
                break
    finally:
        path.write_bytes(text)
    return result | {"seconds": round(time.time() - begin)}


def main() -> None:
    kept = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=kept)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rooms", nargs="+", choices=ROOMS, default=ROOMS, metavar="ROOM")
    parser.add_argument("--coverage", type=Path, help="a measurement of which test reaches a line")
    parser.add_argument("--out", type=Path, default=Path("mutations.jsonl"))
    parser.add_argument("--named", action="store_true", help="only files that name the module")
    parser.add_argument("--list", action="store_true", help="only print the mutations")
    args = parser.parse_args()
    chosen = choose(args.count, args.seed, args.rooms)
    if args.list:
        print("\n".join(mutation.key() for mutation in chosen))
        return
    coverage = read_coverage(args.coverage) if args.coverage else None
    text = args.out.read_text("utf-8") if args.out.exists() else ""
    tried = [json.loads(line) for line in text.splitlines()]
    done = {each["mutation"] for each in tried if each["failed"] or args.named}
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder, "checkout")
        shutil.copytree(ROOT, checkout, ignore=shutil.ignore_patterns(".git", ".venv", "data-bin"))
        (checkout / "data-bin").mkdir()
        for mutation in chosen:
            if mutation.key() not in done:
                result = try_out(checkout, mutation, coverage, named=args.named)
                with args.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(result) + "\n")
                print(
                    f"{result['suite']:5}{result['seconds']:7} s  {result['mutation']}", flush=True
                )


if __name__ == "__main__":
    main()
