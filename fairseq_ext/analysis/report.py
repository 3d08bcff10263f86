"""Write one page about runs: scores, significance, curves, weights, settings, attention maps.

The options are those of `fairseq-ext table`, whose table the page has; curves are those of --curves
that any run has logged. The maps are of one sentence, in the best checkpoint of the first run of
each variant (the last one if there is no best): choose site, layer, head and token on the page. It
is one HTML file that needs no network.
"""

import argparse
import base64
import math
import platform
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_ext.analysis import curves, maps, masking, weights
from fairseq_ext.analysis.pages import maps_part, write_page
from fairseq_ext.analysis.subjects import Subject
from fairseq_ext.criterions.adversarial.masking_rates import SHARE
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation import table
from fairseq_ext.evaluation.layout import records_as_csv
from fairseq_ext.evaluation.pictures import drawn
from fairseq_ext.evaluation.runs import (
    CHECKPOINT,
    MACHINE_SETTINGS,
    REPETITION_SETTINGS,
    Run,
    read_runs,
)
from fairseq_ext.files import check_writable
from fairseq_ext.training_logs import name_variants, read_log

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fairseq_ext.evaluation.layout import Column

EXAMPLE = """\
  fairseq-ext report checkpoints/study/*/seed-* --reference test.de --test t --out report.html
  fairseq-ext report checkpoints/study/{una,hna}/seed-* --metric loss --curves loss nll_loss \\
    --sentence 'a man in an orange hat .' --out report.html"""

CURVES = ("loss", "nll_avg", "loss_avg", "accuracy", "ag_loss", "ag_alpha", "asa_divergence")
BEST = "checkpoint_best.pt"
SOFTWARE = ("torch", "fairseq-fixed", "fairseq_ext")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    table.add_table_options(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help=".html")
    parser.add_argument("--title", default="Runs compared", help="default: Runs compared")
    parser.add_argument(
        "--curves",
        nargs="+",
        metavar="NAME",
        help=f"as logged; default: {' '.join(CURVES)}, of those that there are",
    )
    parser.add_argument(
        "--data", type=Path, metavar="DATA_BIN", help="for maps; default: what checkpoints name"
    )
    maps.add_sentence(parser, "valid")


def run(given: argparse.Namespace) -> None:
    if given.out.suffix.lower() != maps.PAGE:
        raise UsageError(f"--out is {given.out} and must end with {maps.PAGE}")
    maps.check_sentence(given)
    check_writable(given.out.parent, 0)
    runs = read_runs(given.runs)
    check_curves(given)
    parts = chain(
        scores(table.build_table(given, runs)),
        over_training(given),
        trained_weights(given),
        attention(given, runs),
        settings(runs),
        provenance(),
    )
    write_page(given.out, given.title, parts)
    print(f"{given.out} is ready")


def check_curves(given: argparse.Namespace) -> None:
    for metric in given.curves or ():
        if not any(has(run, metric) for run in given.runs):
            names = {name for run in given.runs for each in read_log(run) for name in each.values}
            raise UsageError(
                f"--curves has {metric}, which no run has logged; they have "
                f"{', '.join(sorted(names))}"
            )


def scores(found: table.Table) -> Iterator[str]:
    yield "<h2>Scores</h2>"
    yield as_html(found.columns)
    yield "<ul>" + "".join(f"<li>{escape(note)}</li>" for note in found.notes) + "</ul>"
    if len(found.runs) > 1:
        caption = "Mean and standard error; the line is the baseline"
        yield picture(table.draw_table(found), caption, found.records())


def over_training(given: argparse.Namespace) -> Iterator[str]:
    yield "<h2>Over training</h2>"
    for metric in given.curves or CURVES:
        logged = [run for run in given.runs if has(run, metric)]
        if logged:
            every = curves.read_curves(logged, metric)
            figure = curves.draw_curves(every, metric)
            yield picture(figure, f"{metric}, as logged", curves.records(every, metric))


def trained_weights(given: argparse.Namespace) -> Iterator[str]:
    names = name_variants(given.runs)
    pairs = zip(given.runs, names, strict=True)
    found = [weight for run, name in pairs for weight in weights.logged(run, name)]
    for kind in dict.fromkeys(weight.kind for weight in found):
        title, own = weights.TITLES[kind], [weight for weight in found if weight.kind == kind]
        caption = f"{title}, mean over repetitions"
        yield picture(weights.draw(own, title), caption, [weight._asdict() for weight in own])
    masked = [run for run in given.runs if has(run, SHARE)]
    if masked:
        shares = masking.read_shares(masked)
        title = "Units masked in the second pass"
        yield picture(masking.draw(shares), title, masking.records(shares))


def attention(given: argparse.Namespace, runs: Mapping[str, Sequence[Run]]) -> Iterator[str]:
    yield "<h2>Attention</h2>"
    found = []
    for variant, (first, *_) in runs.items():
        best = first.folder / BEST
        try:
            file = best if best.is_file() else first.folder / CHECKPOINT
            found.append(maps.maps_of(Subject(file, given.data), given))
        except UsageError as error:  # a page without maps is better than none
            yield f"<p>No maps of {escape(variant)}: {escape(str(error))}.</p>"
    if found:
        yield maps_part(found)


def settings(runs: Mapping[str, Sequence[Run]]) -> Iterator[str]:
    """What differs between variants, then all."""
    yield "<h2>Settings</h2>"
    first = {variant: each[0].facts.settings for variant, each in runs.items()}
    left_out = {*MACHINE_SETTINGS, *REPETITION_SETTINGS["fold"]}
    names = sorted({name for each in first.values() for name in each})
    shown = [name for name in names if name.rpartition(".")[2] not in left_out]
    differing = [n for n in shown if len({str(each.get(n)) for each in first.values()}) > 1]
    if len(first) > 1:
        yield setting_rows(first, differing)
    yield f"<details><summary>All {len(shown)}</summary>{setting_rows(first, shown)}</details>"


def setting_rows(settings: Mapping[str, Mapping[str, object]], names: Sequence[str]) -> str:
    header = "".join(f"<th>{escape(variant)}</th>" for variant in settings)
    rows = [
        f"<tr><td>{escape(name)}</td>"
        + "".join(f"<td>{escape(str(each.get(name, '–')))}</td>" for each in settings.values())
        for name in names
    ]
    return (
        f'<div class="wide"><table><tr><th>setting</th>{header}</tr>{"".join(rows)}</table></div>'
    )


def provenance() -> Iterator[str]:
    yield "<h2>How this page was made</h2>"
    yield f"<pre>fairseq-ext {escape(shlex.join(sys.argv[1:]))}</pre>"
    versions = ", ".join(f"{name} {version(name)}" for name in SOFTWARE)
    yield f'<p class="quiet">Python {platform.python_version()}, {versions}</p>'


def has(run: Path, metric: str) -> bool:
    """Whether a curve can be drawn of it."""
    return any(math.isfinite(record.values.get(metric, math.nan)) for record in read_log(run))


def as_html(columns: "Sequence[Column]") -> str:
    header = "".join(f"<th>{escape(column.title)}</th>" for column in columns)
    rows = [
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
        for cells in zip(*(column.shown for column in columns), strict=True)
    ]
    return f'<div class="wide"><table><tr>{header}</tr>{"".join(rows)}</table></div>'


def picture(figure: "Figure", caption: str, records: Sequence[Mapping[str, Any]]) -> str:
    """With a link that saves its numbers."""
    text, drawing = escape(caption), embedded("image/svg+xml", drawn(figure, "svg"))
    numbers = embedded("text/csv", records_as_csv(records).encode())
    return (
        f'<figure><img alt="{text}" src="{drawing}"><figcaption>{text} '
        f'(<a download="{text}.csv" href="{numbers}">CSV</a>)</figcaption></figure>'
    )


def embedded(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"
