"""`fairseq-ext VERB`: what fairseq has no command for.

A verb is a module: its docstring is the help, `EXAMPLE` ends it, `add_arguments` and `run` do the
rest. What it refuses is a UsageError: one sentence, exit code 1.
"""

import argparse
import sys
from collections.abc import Sequence
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
}


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fairseq-ext", description="Commands beside those of fairseq."
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for name, path in VERBS.items():
        module = import_module(path)
        text = module.__doc__.strip()
        verb = verbs.add_parser(
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
    given = build_parser().parse_args(sys.argv[1:] if arguments is None else arguments)
    given.run(given)


if __name__ == "__main__":
    main()
