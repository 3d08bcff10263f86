"""Put finished runs into one table: scores, length and cost of training.

VARIANT/seed-N and VARIANT/fold-N are repetitions of VARIANT. They share one row: mean ± standard
error (with --spread deviation: standard deviation) over n repetitions. They may differ in --seed,
folds in their data too, and in nothing else. --metric takes the metrics of `fairseq-ext score`,
computed from RUN/generate-SUBSET.txt, and any value that was logged: train.NAME from the last epoch
of training, last.NAME (last.SUBSET.NAME) from the last validation, any other from the best one by
--best-checkpoint-metric. analysis.SITE.NAME is the mean over heads of what `fairseq-ext analyse
--out RUN/analysis` wrote, as in analysis.encoder.entropy. predicted.SUBSET.NAME is a score of
RUN/predict-SUBSET.txt, the answers of `fairseq-ext predict --right` (`sweep --predict`). Two more
compare each run with the --baseline's run of the same number: updates-to.NAME is the first
validation with a loss as low as that run's best one (inf: never), and time-ratio the time of a
token by the medians of tokens/s. Updates and time are of the whole training, tokens/s is the median
over its log. A file that ends with .toml is a record of `fairseq-ext record`: its sides are
variants, its measures are metrics (by default all of them).

--test compares each variant with --baseline by the first metric, or by each metric of --by: t
compares matched repetitions; bootstrap and randomisation compare the sentences of each matched pair
of outputs; bootstrap-seeds resamples matched repetitions and their sentences at once. p-values are
two-sided and corrected for the number of comparisons by a metric (Holm).
--bars draws the first metric: a point for each variant with its standard error, and a line at the
baseline. Its numbers are written beside it, as CSV.

Example:
  fairseq-ext table checkpoints/study/*/seed-* --reference test.de --output results.md
  fairseq-ext table checkpoints/study/*/seed-* --metric accuracy --baseline una --test t
  fairseq-ext table checkpoints/study/*/seed-* --metric bleu train.nll_loss --sort highest
  fairseq-ext table a b --reference test.de --metric chrf --test bootstrap
"""

import argparse
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation import comparisons, layout, metrics, pictures
from fairseq_ext.evaluation.comparisons import Measure, Pairs
from fairseq_ext.evaluation.layout import SPREADS, Column, format_duration, make_column
from fairseq_ext.evaluation.measures import SUBSET, Measures, measure_all
from fairseq_ext.evaluation.recorded import read_results
from fairseq_ext.evaluation.run_values import needs_baseline
from fairseq_ext.evaluation.runs import Run, measure_speed, sort_variants
from fairseq_ext.evaluation.score import add_scoring_options
from fairseq_ext.files import atomic_writer, check_writable

ENDINGS = {".md": "markdown", ".csv": "csv"}

Runs = Mapping[str, Sequence[Run]]
"""The runs of each variant."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fairseq-ext table`."""
    add_table_options(parser)
    parser.add_argument("--format", choices=layout.FORMATS, help="default: by --output, else text")
    parser.add_argument("--output", type=Path, metavar="FILE", help=".md, .csv or other")
    parser.add_argument("--bars", type=Path, metavar="FILE", help=".png, .svg, .pdf")


def add_table_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose the contents of a table; `build_table` reads them."""
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run, or a record (.toml)")
    add_scoring_options(parser)
    logged = (
        "SUBSET.NAME for another than the first --valid-subset, train.NAME, last.NAME, "
        "analysis.SITE.NAME, predicted.SUBSET.NAME, updates-to.NAME, or time-ratio"
    )
    default = f"{' '.join(metrics.DEFAULTS)} with --reference, else loss"
    names = f"of {', '.join(metrics.NAMES)}, or as named in the log, or {logged}"
    add("--metric", nargs="+", metavar="METRIC", help=f"{names}; default: {default}")
    first = "the variant with this value of the first metric on top"
    add("--sort", choices=("highest", "lowest"), help=first)
    add("--spread", choices=SPREADS, default="error", help="what stands behind ±; default: error")
    mixed = "also of runs on different data, references (unless a test resamples) or dictionaries"
    add("--mixed", action="store_true", help=mixed)
    add("--gen-subset", metavar="SUBSET", help=f"default: {SUBSET}")
    add("--baseline", metavar="VARIANT", help="what others are compared with; default: the first")
    add("--test", choices=comparisons.TESTS, action="append", help="may be given several times")
    add("--by", nargs="+", metavar="METRIC", help="what --test compares; default: the first")
    default = "default: 1000 for bootstrap, else 10000"
    add("--resamples", type=int, metavar="N", help=default)


def run(args: argparse.Namespace) -> None:
    """Print or write a table, and draw its first score."""
    _check_files(args)
    table = build_table(args, read_results(args.runs))
    form = args.format or ENDINGS.get(args.output and args.output.suffix, "text")
    text = layout.FORMATS[form](table.columns, table.notes)
    if args.output is None:
        print(text, end="")
    else:
        with atomic_writer(args.output) as file:
            file.write(text)
        print(f"{args.output} is ready")
    if args.bars:
        pictures.save(draw_table(table), args.bars, table.records())
        pictures.announce(args.bars)


class Table(NamedTuple):
    """A table of runs.

    Attributes:
        columns: its columns, with a row for each variant.
        notes: the lines below it.
        title: the name of the first metric.
        values: by variant in the order of the rows and by folder, the results by the first metric.
        baseline: the variant that others are compared with.
    """

    columns: list[Column]
    notes: list[str]
    title: str
    values: Mapping[str, Mapping[Path, float]]
    baseline: str

    def records(self) -> list[dict[str, object]]:
        """Return the numbers that the bars show, a record for each run."""
        return [
            {"variant": variant, "run": folder, "value": value}
            for variant, values in self.values.items()
            for folder, value in values.items()
        ]


def build_table(args: argparse.Namespace, runs: Runs) -> Table:
    """Return the table of runs that the options of `add_table_options` ask for.

    Raises:
        UsageError: the runs do not allow what the options ask for.
    """
    _check_test(args)
    baseline = args.baseline or next(iter(runs))
    pairs = comparisons.match_runs(args.test, runs, baseline) if args.test else {}
    if baseline not in runs:
        raise UsageError(f"--baseline is {baseline}; give one of {', '.join(runs)}")
    measures, notes = measure_all(args, [*chain.from_iterable(runs.values())], runs[baseline])
    if max(map(len, runs.values())) > 1:
        notes.append(f"±: {SPREADS[args.spread].title}")
    if pairs:
        notes += compare_measures(args, pairs, measures)
    title, _, first, _ = next(iter(measures.values()))
    if args.sort:
        runs = sort_variants(runs, first, args.sort == "highest")
    columns = build_columns(runs, measures.values(), args.spread)
    values = {name: {run.folder: first[run.folder] for run in each} for name, each in runs.items()}
    return Table(columns, notes, title, values, baseline)


def draw_table(table: Table) -> "pictures.Figure":
    """Draw a point for each variant by the first metric."""
    values = {name: [*each.values()] for name, each in table.values.items()}
    return pictures.draw_means(values, table.title, table.baseline)


def _check_test(args: argparse.Namespace) -> None:
    if args.resamples is not None and args.resamples < comparisons.FEWEST_RESAMPLES:
        raise UsageError(
            f"--resamples is {args.resamples} and must be at least {comparisons.FEWEST_RESAMPLES}"
        )
    if args.resamples is not None and args.test in (None, ["t"]):
        raise UsageError(
            f"--resamples is for --test {' or '.join(comparisons.OF_SENTENCES)}; give one of them"
        )
    if args.by and not args.test:
        raise UsageError("--by is for --test; give both or none")


def _check_files(args: argparse.Namespace) -> None:
    relative = any(map(needs_baseline, args.metric or ()))
    if args.baseline and not (args.test or args.bars or relative):
        raise UsageError(
            "--baseline is for --test, --bars, and metrics that compare with it (time-ratio, "
            "updates-to.NAME); give one of them, or leave it out"
        )
    if args.bars:
        pictures.check_picture(args.bars)
    if args.output:
        check_writable(args.output.parent, 0)
        if args.output.is_dir():
            raise UsageError(f"--output is the folder {args.output}; give a file")
        if args.bars and args.bars.with_suffix(".csv") == args.output:
            raise UsageError(
                f"--output is {args.output}, where the numbers of --bars {args.bars} go; rename one"
            )


def compare_measures(args: argparse.Namespace, pairs: Pairs, measures: Measures) -> list[str]:
    """Return the results of each --test, metric by metric, and at its end the meaning of p."""
    lines = []
    for test in args.test:
        for name in comparisons.choose_metrics(args.by, measures):
            *results, meaning = comparisons.compare(test, pairs, measures[name], args.resamples)
            lines += results
        lines.append(meaning)
    return lines


def build_columns(runs: Runs, measures: Iterable[Measure], spread: str = "error") -> list[Column]:
    """Return the columns of a table, with a row for each variant."""

    def collect(value: Callable[[Run], float]) -> list[list]:
        return [[value(run) for run in repetitions] for repetitions in runs.values()]

    def show_speed(speed: float) -> str:
        return "–" if math.isnan(speed) else f"{speed:,.0f}"

    counts = [make_column("variant", runs), make_column("n", map(len, runs.values()))]
    scores = [
        layout.make_mean_column(
            measure.title,
            [[measure.values[run.folder] for run in each] for each in runs.values()],
            measure.digits,
            spread,
        )
        for measure in measures
    ]
    if any(run.results for run in chain.from_iterable(runs.values())):
        return [*counts, *scores]  # records do not have what trainings took
    seconds = map(statistics.mean, collect(lambda run: run.facts.seconds))
    speeds = map(statistics.mean, collect(measure_speed))
    sizes = [
        layout.make_range_column("parameters", collect(lambda run: run.facts.parameters)),
        layout.make_range_column("updates", collect(lambda run: run.facts.updates)),
    ]
    times = make_column("training time", seconds, format_duration, "training seconds")
    return [*counts, *sizes, *scores, times, make_column("tokens/s", speeds, show_speed)]
