"""Run a recipe: data from raw text to data-bin/, trainings that repeat a paper's experiment.

Recipes are the scripts of scripts/, which an installed package brings along. Without a NAME they
are listed. They leave what they make in data-bin/ and checkpoints/ of the current folder, and use
the environment of this command; what stands behind NAME is handed to the recipe.

Example:
  fairseq-ext recipe
  fairseq-ext recipe quickstart --corpus builtin
  fairseq-ext recipe prepare_parallel --help
"""

import argparse
import os
import sys
from itertools import takewhile
from pathlib import Path

from fairseq_ext.errors import UsageError
from fairseq_ext.suggestions import suggest

PACKAGE = Path(__file__).parent.parent
# the folder of an installed package, or of a checkout
SCRIPTS = next(each for each in (PACKAGE / "recipes", PACKAGE.parent / "scripts") if each.exists())
NEEDS_CHECKOUT = ("test", "fairseq_tests", "soak")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fairseq-ext recipe`."""
    add = parser.add_argument
    add("name", nargs="?", metavar="NAME", help="name of a recipe")
    add("arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the recipe")


def run(args: argparse.Namespace) -> None:
    """List the recipes, or become one of them."""
    if args.name is None:
        for name, path in find_recipes().items():
            print(f"{name:20}  {describe(path)}")
        return
    script = find_recipes().get(args.name)
    if script is None:
        advice = suggest(args.name, find_recipes(), "'fairseq-ext recipe' lists them")
        raise UsageError(f"there is no recipe {args.name!r}; {advice}")
    environment = {
        "FAIRSEQ_EXT_SKIP_INSTALL": "1",
        "FAIRSEQ_EXT_PLACE": str(Path.cwd()),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    os.execvpe("bash", ["bash", str(script), *args.arguments], os.environ | environment)


def find_recipes() -> dict[str, Path]:
    """Return the scripts by name, those first that prepare nothing but train."""
    paths = sorted(SCRIPTS.glob("*.sh"), key=lambda path: (path.stem.startswith("prepare"), path))
    return {path.stem: path for path in paths if path.stem not in NEEDS_CHECKOUT}


def describe(script: Path) -> str:
    """Return the first sentence of the comment at the top of a script."""
    lines = script.read_text("utf-8").splitlines()[1:]
    comment = takewhile(lambda line: line != "#", lines)
    return " ".join(line.removeprefix("# ") for line in comment).partition(". ")[0].rstrip(".")
