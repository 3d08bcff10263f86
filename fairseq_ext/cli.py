"""`fairseq-ext VERB`: what fairseq has no command for.

A verb is a module: its docstring is the help, `EXAMPLE` ends it, `add_arguments` and `run` do the
rest. What it refuses is a UsageError: one sentence, exit code 1.
"""

import argparse
import sys
from collections.abc import Collection, Sequence
from importlib import import_module

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
    "probe": "fairseq_ext.analysis.probes",
    "align": "fairseq_ext.analysis.alignment",
    "collapse": "fairseq_ext.analysis.collapse",
    "boxes": "fairseq_ext.analysis.boxes",
}


def build_parser(verbs: Collection[str] = VERBS) -> argparse.ArgumentParser:
    """That of all verbs, or of some, whose modules alone are imported."""
    parser = argparse.ArgumentParser(
        prog="fairseq-ext", description="Commands beside those of fairseq."
    )
    parsers = parser.add_subparsers(required=True, metavar="VERB")
    for name in verbs:
        module = import_module(VERBS[name])
        text = module.__doc__.strip()
        verb = parsers.add_parser(
            name,
            help=text.split("\n")[0].rstrip("."),
            description=text,
            epilog=f"example:\n{module.EXAMPLE}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        module.add_arguments(verb)
        verb.set_defaults(run=module.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    asked = [verb for verb in arguments[:1] if verb in VERBS]
    given = build_parser(asked or VERBS).parse_args(arguments)
    given.run(given)


if __name__ == "__main__":
    main()
