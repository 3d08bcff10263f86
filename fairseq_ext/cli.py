"""`fairseq-ext VERB`: commands that fairseq lacks.

A verb is a module: its docstring is the help, with "Example:" at the end of both, and
`add_arguments` and `run` do the rest. A verb refuses its input with a UsageError: one sentence,
exit code 1.
"""

import argparse
import ast
import os
import sys
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path

from fairseq_ext import __version__
from fairseq_ext.errors import UsageError, plain_errors
from fairseq_ext.permissions import add_permissions
from fairseq_ext.places import hold
from fairseq_ext.standard_output import guard_standard_output
from fairseq_ext.suggestions import refuse_unknown, suggest
from fairseq_ext.tools.command_lines import resolve_user_dir

# The verbs by the room of their modules, which have their names but for a few.
ROOMS = {
    "tools": "doctor recipe launch sweep average prune predict annotate",
    "interchange": "import-hf export-hf export-fairseq export-graph export-vectors",
    "evaluation": "score table record",
    "analysis": "curves masking map analyse report columns heads weights align",
    "analysis.coreference": "probe",
    "analysis.demos": "collapse",
}
MODULES = {"recipe": "run_recipe", "map": "maps"}
VERBS = {
    verb: f"fairseq_ext.{room}.{MODULES.get(verb, verb.replace('-', '_'))}"
    for room, verbs in ROOMS.items()
    for verb in verbs.split()
}

# Verbs that build no model of fairseq, and so start without it.
QUICK = ("doctor", "recipe", "launch", "sweep", "score", "table", "record", "curves", "masking")

# Verbs that read no checkpoint.
NO_READERS = (
    *("doctor", "recipe", "launch", "sweep", "annotate", "import-hf"),
    *("score", "curves", "masking", "collapse"),
)

# Verbs that read a package without importing it, or hand all arguments on.
OWN_USER_DIR = ("doctor", "recipe")

# Verbs of whose outputs each is held by itself, as a run of a sweep is.
NOT_HELD = ("sweep", "import-hf", "export-hf", "export-graph")


def build_parser(verbs: Collection[str] = VERBS) -> argparse.ArgumentParser:
    """Return the parser of all verbs; modules of verbs not asked for are not imported."""
    about = "Commands beside those of fairseq."
    parser = argparse.ArgumentParser(prog="fairseq-ext", description=about)
    parser.add_argument("--version", action="version", version=describe_versions())
    parsers = parser.add_subparsers(required=True, metavar="VERB")
    for name, module in VERBS.items():
        text, _, example = _read_docstring(module).partition("\n\nExample:\n")
        verb = parsers.add_parser(
            name,
            help=text.partition("\n")[0].rstrip("."),
            description=text,
            epilog=f"example:\n{example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if name in verbs:
            _add_verb(verb, name)
    return parser


def describe_versions() -> str:
    """Return the versions of this package, fairseq and torch, without importing them."""
    versions = []
    for package in ("fairseq-fixed", "torch"):
        try:
            versions.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            versions.append(f"no {package}")
    return f"fairseq_ext {__version__} ({', '.join(versions)})"


def _read_docstring(module: str) -> str:
    """Return the docstring of a module without importing it."""
    spec = find_spec(module)
    assert spec and spec.origin
    return ast.get_docstring(ast.parse(Path(spec.origin).read_text("utf-8"))) or ""


def _add_verb(parser: argparse.ArgumentParser, verb: str) -> None:
    if verb not in QUICK:
        import_module("fairseq_ext.registry")
    module = import_module(VERBS[verb])
    module.add_arguments(parser)
    if verb not in OWN_USER_DIR:
        parser.add_argument(
            "--user-dir",
            metavar="FOLDER",
            help="your package with mechanisms that models need, as for fairseq-train",
        )
    if verb not in NO_READERS:
        add_permissions(parser)
    parser.set_defaults(run=module.run, parser_of_verb=parser)  # annotate has --parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the verb of a command line; exit with an error of the verb's parser if it is wrong."""
    plain_errors()
    guard_standard_output()
    if not sys.stderr.isatty():  # progress bars are for terminals
        os.environ.setdefault("TQDM_DISABLE", "1")
    arguments = sys.argv[1:] if arguments is None else arguments
    check_verb(*arguments[:1])
    args, unknown = build_parser(arguments[:1]).parse_known_args(arguments)
    parser = vars(args).pop("parser_of_verb")
    if unknown:
        refuse_unknown(parser, unknown, parser.prog)
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")  # with the usage of the verb
    if getattr(args, "user_dir", None) is not None:
        import_user_dir(args.user_dir, arguments[0] not in QUICK)
    with ExitStack() as held:
        for name in () if arguments[0] in NOT_HELD else ("output", "out", "bars", "mismatches"):
            if path := getattr(args, name, None):
                held.enter_context(hold(path, f"--{name}"))
        args.run(args)


def check_verb(verb: str = "--help") -> None:
    """Raise UsageError for an unknown verb, with those that are like it."""
    if not verb.startswith("-") and verb not in VERBS:
        advice = suggest(verb, VERBS, "'fairseq-ext --help' lists them")
        raise UsageError(f"there is no verb {verb!r} of fairseq-ext; {advice}")


def import_user_dir(given: str, needed: bool = True) -> None:
    """Import a user's package as fairseq's commands do; raise UsageError if there is none.

    Args:
        given: its folder, or the name of this package.
        needed: whether the verb uses it by itself; sweep and launch hand it on.
    """
    folder = resolve_user_dir(given)
    if folder and not Path(folder).is_dir():
        raise UsageError(f"--user-dir is {folder}, and there is no such folder; give a package's")
    if needed:
        import_module("fairseq.utils").import_user_module(argparse.Namespace(user_dir=folder))


if __name__ == "__main__":
    main()
