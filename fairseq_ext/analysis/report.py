r"""Write one page about runs: scores, significance, curves, weights, settings, attention maps.

The options are those of `fairseq-ext table`, whose table is on the page. Curves are those of
--curves that any run has logged. The maps are of one sentence, in the best checkpoint of the first
run of each variant (the last one if there is no best): site, layer, head and token are chosen on
the page. It is one HTML file that needs no network.
A record (.toml) gives its results, and where they come from.

Example:
  fairseq-ext report checkpoints/study/*/seed-* --reference test.de --test t --out report.html
  fairseq-ext report checkpoints/study/{una,hna}/seed-* --metric loss --curves loss nll_loss \
    --sentence 'a man in an orange hat .' --out report.html
"""

import argparse
import base64
import platform
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from fairseq_ext.analysis import arguments, curves, masking, weights
from fairseq_ext.analysis.arguments import title_distinctly
from fairseq_ext.analysis.inspector import ModelInspector
from fairseq_ext.analysis.sentence_maps import maps_part, read_maps, write_page
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation import recorded, table
from fairseq_ext.evaluation.layout import records_as_csv
from fairseq_ext.evaluation.pictures import render
from fairseq_ext.evaluation.runs import (
    CHECKPOINT,
    MACHINE_SETTINGS,
    REPETITION_SETTINGS,
    Run,
    read_facts,
)
from fairseq_ext.files import check_writable
from fairseq_ext.training_logs import MASKED_SHARE, name_variants, read_log

CURVES = ("loss", "nll_avg", "loss_avg", "accuracy", "ag_loss", "ag_alpha", "asa_divergence")
BEST = "checkpoint_best.pt"
PAGE = ".html"
SOFTWARE = ("torch", "fairseq-fixed", "fairseq_ext")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `fairseq-ext report`."""
    table.add_table_options(parser)
    arguments.add(parser, "--out", metavar="FILE", help=".html")
    parser.add_argument("--title", default="Runs compared", help="default: Runs compared")
    logged = f"as logged; default: {' '.join(CURVES)}, of those that there are"
    parser.add_argument("--curves", nargs="+", metavar="NAME", help=logged)
    arguments.add(parser, "--data", help="for maps; default: what checkpoints name")
    arguments.add_sentence(parser, "valid")


def run(args: argparse.Namespace) -> None:
    """Write the page."""
    if args.out.suffix.lower() != PAGE:
        raise UsageError(f"--out is {args.out} and must end with {PAGE}")
    arguments.check_sentence(args)
    check_writable(args.out.parent, 0)
    runs = recorded.read_results(args.runs)
    scores = scores_part(table.build_table(args, runs))
    records = [path for path in args.runs if recorded.is_record(path)]
    args.runs = [path for path in args.runs if path not in records]  # of which there is more
    trained = {variant: each for variant, each in runs.items() if not each[0].results}
    check_curves(args)
    parts = chain(
        scores,
        trained_parts(args, trained) if trained else (),
        records_part(records) if records else (),
        provenance_part(),
    )
    write_page(args.out, args.title, parts)
    print(f"{args.out} is ready")


def trained_parts(args: argparse.Namespace, runs: Mapping[str, Sequence[Run]]) -> Iterator[str]:
    """Yield what logs and checkpoints of trainings have."""
    yield from curves_part(args)
    yield from weights_part(args.runs)
    yield from attention_part(args, runs)
    yield from settings_part(runs)


def records_part(records: Sequence[Path]) -> Iterator[str]:
    """Yield where the numbers of records come from."""
    yield "<h2>Records</h2>"
    fields = [recorded.read_record(path) for path in records]
    names = [name for name in recorded.PROVENANCE if any(each.get(name) for each in fields)]
    rows = [(name, *(str(each.get(name, "–")).strip() for each in fields)) for name in names]
    yield as_html(("", *map(str, records)), rows)


def check_curves(args: argparse.Namespace) -> None:
    """Raise UsageError if no run has logged one of --curves."""
    for metric in args.curves or ():
        if not any(curves.read_points(run, metric) for run in args.runs):
            names = {name for run in args.runs for each in read_log(run) for name in each.values}
            raise UsageError(
                f"--curves has {metric}, which no run has logged; they have "
                f"{', '.join(sorted(names))}"
            )


def scores_part(scores: table.Table) -> Iterator[str]:
    """Yield the table of scores with its notes, and a picture if there are several variants."""
    yield "<h2>Scores</h2>"
    yield as_html(
        [column.title for column in scores.columns],
        zip(*(column.shown for column in scores.columns), strict=True),
    )
    yield "<ul>" + "".join(f"<li>{escape(note)}</li>" for note in scores.notes) + "</ul>"
    if len(scores.values) > 1:
        caption = "The scores of the table, by variant"
        yield embed_picture(table.draw_table(scores), caption, scores.records())


def curves_part(args: argparse.Namespace) -> Iterator[str]:
    """Yield a picture of each metric that was logged."""
    yield "<h2>Over training</h2>"
    for metric in args.curves or CURVES:
        logged = [run for run in args.runs if curves.read_points(run, metric)]
        if logged:
            every = curves.read_curves(logged, metric)
            points = curves.list_points(every, metric)
            yield embed_picture(curves.draw_curves(every, metric), f"{metric}, as logged", points)


def weights_part(runs: Sequence[Path]) -> Iterator[str]:
    """Yield pictures of logged weights of heads, and of what adversaries mask."""
    names = zip(runs, name_variants(runs), strict=True)
    logged = [weight for run, name in names for weight in weights.read_logged(run, name)]
    for kind, own in weights.group_by_kind(logged).items():
        title = weights.TITLES[kind]
        caption = f"{title}, mean over repetitions"
        yield embed_picture(weights.draw(own, title), caption, [each._asdict() for each in own])
    masked = [run for run in runs if curves.read_points(run, MASKED_SHARE)]
    if masked:
        shares = masking.read_shares(masked)
        title = "Units masked in the second pass"
        yield embed_picture(masking.draw(shares), title, masking.list_shares(shares))


def attention_part(args: argparse.Namespace, runs: Mapping[str, Sequence[Run]]) -> Iterator[str]:
    """Yield the maps of each variant's first run, or why there are none."""
    yield "<h2>Attention</h2>"
    maps = []
    files = {variant: find_checkpoint(first.folder) for variant, (first, *_) in runs.items()}
    for variant, file in files.items():
        try:
            inspector = title_distinctly(ModelInspector(file, args.data), files.values())
            maps.append(read_maps(inspector, args))
            updates = f"{read_facts(file).updates:,} updates"
            yield f"<p>Maps of {escape(variant)}: {escape(str(file))}, after {updates}.</p>"
        except UsageError as error:  # a page without maps is better than none
            print(f"No maps of {variant}: {error}.", file=sys.stderr)
            yield f"<p>No maps of {escape(variant)}: {escape(str(error))}.</p>"
    if maps:
        yield maps_part(maps)


def find_checkpoint(folder: Path) -> Path:
    """Return the best checkpoint of a run, or the last one."""
    best = folder / BEST
    return best if best.is_file() else folder / CHECKPOINT


def settings_part(runs: Mapping[str, Sequence[Run]]) -> Iterator[str]:
    """Yield the settings that differ between variants, then all of them."""
    yield "<h2>Settings</h2>"
    settings = {variant: each[0].facts.settings for variant, each in runs.items()}
    folds = any("fold" in run.repetition for each in runs.values() for run in each)
    left_out = {*MACHINE_SETTINGS, *REPETITION_SETTINGS["fold" if folds else "seed"]}
    names = sorted({name for each in settings.values() for name in each})
    shown = [name for name in names if name.rpartition(".")[2] not in left_out]
    differing = [n for n in shown if len({str(each.get(n)) for each in settings.values()}) > 1]

    def as_rows(names: Sequence[str]) -> str:
        rows = [(n, *(str(each.get(n, "–")) for each in settings.values())) for n in names]
        return as_html(("setting", *settings), rows)

    if len(settings) > 1:
        yield as_rows(differing)
    yield f"<details><summary>All {len(shown)}</summary>{as_rows(shown)}</details>"


def provenance_part() -> Iterator[str]:
    """Yield the command and the versions of software."""
    yield "<h2>How this page was made</h2>"
    yield f"<pre>fairseq-ext {escape(shlex.join(sys.argv[1:]))}</pre>"
    versions = ", ".join(map(name_version, SOFTWARE))
    yield f'<p class="quiet">Python {platform.python_version()}, {versions}</p>'


def name_version(package: str) -> str:
    """Return a package with its version, which one that is not installed does not have."""
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"{package}, not installed"


def as_html(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table of texts."""
    header = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>" for cells in rows
    )
    return f'<div class="wide"><table><tr>{header}</tr>{body}</table></div>'


def embed_picture(figure: Figure, caption: str, records: Sequence[Mapping[str, Any]]) -> str:
    """Return a picture with a link that saves its numbers."""
    text, drawing = escape(caption), embed_file("image/svg+xml", render(figure, "svg"))
    numbers = embed_file("text/csv", records_as_csv(records).encode())
    return (
        f'<figure><img alt="{text}" src="{drawing}"><figcaption>{text} '
        f'(<a download="{text}.csv" href="{numbers}">CSV</a>)</figcaption></figure>'
    )


def embed_file(kind: str, content: bytes) -> str:
    """Return a URL that holds a file of this MIME type."""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"
