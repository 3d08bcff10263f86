"""`fairseq-ext VERB`: what fairseq has no command for.

A verb is a module: its docstring is the help, `EXAMPLE` ends it, `add_arguments` and `run` do the
rest. What it refuses is a UsageError: one sentence, exit code 1.
"""

import argparse
import ast
import sys
from collections.abc import Collection, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from fairseq_ext.errors import plain_errors

VERBS = {
    "doctor": "fairseq_ext.tools.doctor",
    "launch": "fairseq_ext.tools.launch",
    "sweep": "fairseq_ext.tools.sweep",
    "average": "fairseq_ext.tools.average",
    "predict": "fairseq_ext.tools.predict",
    "annotate": "fairseq_ext.tools.annotate",
    "import-hf": "fairseq_ext.tools.import_hf",
    "export-hf": "fairseq_ext.tools.export_hf",
    "score": "fairseq_ext.evaluation.score",
    "table": "fairseq_ext.evaluation.table",
    "curves": "fairseq_ext.analysis.curves",
    "masking": "fairseq_ext.analysis.masking",
    "map": "fairseq_ext.analysis.maps",
    "analyse": "fairseq_ext.analysis.analyse",
    "report": "fairseq_ext.analysis.report",
    "columns": "fairseq_ext.analysis.columns",
    "heads": "fairseq_ext.analysis.heads",
    "weights": "fairseq_ext.analysis.weights",
    "probe": "fairseq_ext.analysis.coreference.probe",
    "align": "fairseq_ext.analysis.align",
    "collapse": "fairseq_ext.analysis.demos.collapse",
    "boxes": "fairseq_ext.analysis.demos.boxes",
}

# Those that build no model of fairseq, and so start without it.
QUICK = ("doctor", "launch", "sweep", "score", "table", "curves")


def build_parser(verbs: Collection[str] = VERBS) -> argparse.ArgumentParser:
    """That of all verbs; those not asked for are listed, and their modules not imported."""
    parser = argparse.ArgumentParser(
        prog="fairseq-ext", description="Commands beside those of fairseq."
    )
    parsers = parser.add_subparsers(required=True, metavar="VERB")
    for name, module in VERBS.items():
        text = _docstring(module)
        verb = parsers.add_parser(
            name,
            help=text.partition("\n")[0].rstrip("."),
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if name in verbs:
            _fill(verb, name)
    return parser


def _docstring(module: str) -> str:
    """That of a module which need not be imported for it."""
    spec = find_spec(module)
    assert spec and spec.origin
    return ast.get_docstring(ast.parse(Path(spec.origin).read_text("utf-8"))) or ""


def _fill(parser: argparse.ArgumentParser, verb: str) -> None:
    if verb not in QUICK:
        import_module("fairseq_ext.registry")
    module = import_module(VERBS[verb])
    parser.epilog = f"example:\n{module.EXAMPLE}"
    module.add_arguments(parser)
    parser.set_defaults(run=module.run, refuse=parser.error)


def main(arguments: Sequence[str] | None = None) -> None:
    plain_errors()
    arguments = sys.argv[1:] if arguments is None else arguments
    given, unknown = build_parser(arguments[:1]).parse_known_args(arguments)
    refuse = vars(given).pop("refuse")  # with the usage of the verb
    if unknown:
        refuse(f"unrecognized arguments: {' '.join(unknown)}")
    given.run(given)


if __name__ == "__main__":
    main()
