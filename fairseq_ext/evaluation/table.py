"""Finished runs in one table: scores, length and cost of training.

VARIANT/seed-N and VARIANT/fold-N are repetitions of VARIANT: one row, mean ± standard error (with
--spread deviation standard deviation) over n of them; they may differ in --seed, folds in their
data too, and in nothing else. --metric takes what `fairseq-ext score` has, of
RUN/generate-SUBSET.txt, and any value that was logged: train.NAME is that of the last epoch of
training, any other from the validation that is best by --best-checkpoint-metric. Updates and time
are of the whole training, tokens/s is the median over its log.

--test compares each variant with --baseline, metric by metric if --by names several: t, over
matched repetitions; bootstrap and randomisation, over the sentences of each matched pair of
outputs. p-values are two-sided and corrected for the number of comparisons by a metric (Holm).
--bars draws the first metric: a bar for each variant with its standard error, a line at the
baseline; its numbers go beside it, as CSV.
"""

import argparse
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation import metrics
from fairseq_ext.evaluation.comparisons import FEWEST, TESTS, Measure, Pairs, compare, match
from fairseq_ext.evaluation.layout import FORMATS, SPREADS, Column, column, means, ranges
from fairseq_ext.evaluation.pictures import check_picture, draw_bars, save, save_numbers
from fairseq_ext.evaluation.runs import EPOCH, Run, logged, read_runs, speed
from fairseq_ext.evaluation.score import add_options, language, texts_of
from fairseq_ext.evaluation.translation import Texts, check_same_references
from fairseq_ext.files import atomic_writer, check_writable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXAMPLE = """\
  fairseq-ext table checkpoints/study/*/seed-* --reference test.de --output results.md
  fairseq-ext table checkpoints/study/*/seed-* --metric accuracy --baseline una --test t
  fairseq-ext table checkpoints/study/*/seed-* --metric bleu train.nll_loss --sort highest
  fairseq-ext table a b --reference test.de --metric chrf --test bootstrap"""

ENDINGS = {".md": "markdown", ".csv": "csv"}
SORTS = ("highest", "lowest")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_contents(parser)
    parser.add_argument("--format", choices=FORMATS, help="default: by --output, else text")
    parser.add_argument("--output", type=Path, metavar="FILE", help=".md, .csv or other")
    parser.add_argument("--bars", type=Path, metavar="FILE", help=".png, .svg, .pdf")


def add_contents(parser: argparse.ArgumentParser) -> None:
    """What a table is about."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run")
    add_options(parser)
    parser.add_argument(
        "--metric",
        nargs="+",
        metavar="METRIC",
        help=f"of {', '.join(metrics.known_names())}, or as named in the log, or SUBSET.NAME for "
        "another than the first --valid-subset, or train.NAME; default: "
        f"{' '.join(metrics.DEFAULT)} with --reference, else loss",
    )
    parser.add_argument(
        "--sort", choices=SORTS, help="the variant with this value of the first metric on top"
    )
    parser.add_argument(
        "--spread", choices=SPREADS, default="error", help="what stands behind ±; default: error"
    )
    parser.add_argument("--gen-subset", default="test", metavar="SUBSET", help="default: test")
    parser.add_argument(
        "--baseline", metavar="VARIANT", help="for --test and --bars; default: the first"
    )
    parser.add_argument("--test", choices=TESTS)
    parser.add_argument(
        "--by", nargs="+", metavar="METRIC", help="what --test compares; default: the first"
    )
    parser.add_argument(
        "--resamples", type=int, metavar="N", help="default: 1000 for bootstrap, else 10000"
    )


def run(given: argparse.Namespace) -> None:
    _check(given)
    found = tabulate(given, read_runs(given.runs))
    form = given.format or ENDINGS.get(given.output and given.output.suffix, "text")
    text = FORMATS[form](found.columns, found.notes)
    if given.output is None:
        print(text, end="")
    else:
        with atomic_writer(given.output) as file:
            file.write(text)
    if given.bars:
        save(bars(found), given.bars)
        save_numbers(found.records(), given.bars)


class Table(NamedTuple):
    """What a table says, and what it says it of: the runs of each variant, in its order."""

    columns: list[Column]
    notes: list[str]
    runs: Mapping[str, Sequence[Run]]
    measures: Mapping[str, Measure]
    baseline: str

    @property
    def first(self) -> Measure:
        """That of the first metric, which --sort, --test and --bars go by."""
        return next(iter(self.measures.values()))

    def records(self) -> list[dict[str, object]]:
        """What the bars are of, a row for each run."""
        return [
            {"variant": variant, "run": run.folder, "value": self.first.values[run.folder]}
            for variant, runs in self.runs.items()
            for run in runs
        ]


def tabulate(given: argparse.Namespace, runs: Mapping[str, Sequence[Run]]) -> Table:
    """The table of runs that the options of `add_contents` ask for."""
    _check_test(given)
    baseline = given.baseline or next(iter(runs))
    pairs = match(given.test, runs, baseline) if given.test else {}
    if baseline not in runs:
        raise UsageError(f"--baseline is {baseline}; give one of {', '.join(runs)}")
    measures, notes = measure(given, [each for group in runs.values() for each in group])
    if max(map(len, runs.values())) > 1:
        notes.append(f"±: {SPREADS[given.spread].title}")
    if pairs:
        notes += compared(given, pairs, measures)
    shown = ranked(given.sort, runs, measures)
    found = columns(shown, measures.values(), given.spread)
    return Table(found, notes, shown, measures, baseline)


def bars(table: Table) -> "Figure":
    """Of the first metric."""
    scores, title = table.first.values, table.first.title
    values = {name: [scores[run.folder] for run in runs] for name, runs in table.runs.items()}
    return draw_bars(values, title, table.baseline)


def _check_test(given: argparse.Namespace) -> None:
    if given.resamples is not None and given.resamples < FEWEST:
        raise UsageError(f"--resamples is {given.resamples} and must be at least {FEWEST}")
    if given.by and not given.test:
        raise UsageError("--by is for --test; give both or none")


def _check(given: argparse.Namespace) -> None:
    if given.baseline and not (given.test or given.bars):
        raise UsageError("--baseline is for --test and --bars; give one of them, or leave it out")
    if given.bars:
        check_picture(given.bars)
    if given.output:
        check_writable(given.output.parent, 0)
        if given.output.is_dir():
            raise UsageError(f"--output is the folder {given.output}; give a file")
        if given.bars and given.bars.with_suffix(".csv") == given.output:
            raise UsageError(
                f"--output is {given.output}, where the numbers of --bars {given.bars} go; give "
                "one of them another name"
            )


def measure(given: argparse.Namespace, runs: Sequence[Run]) -> tuple[dict[str, Measure], list[str]]:
    """The columns of results by the names of their metrics, and the notes that belong to them."""
    names = metrics.expand(given.metric or ([] if given.reference else ["loss"]))
    scored = [name for name in names if name in metrics.METRICS]
    found, notes = {}, []
    if scored or not names:
        texts, lang = read_texts(given, runs), language(given)
        scores = metrics.score(scored, texts, given.lowercase, lang, given.comet_model)
        found = {name: Measure(s.title, 2, s.values, s) for name, s in scores.items()}
        notes = metrics.notes(scores.values(), texts, lang)
    for name in names:
        if name not in found:
            found[name] = Measure(name, 3, {run.folder: logged(run, name) for run in runs})
            notes.append(f"{name}: from the log, of {_moment(name)}")
    return {name: found[name] for name in names or found}, notes


def _moment(name: str) -> str:
    trained = name.startswith(f"{EPOCH}.")
    return "the last epoch of training" if trained else "the best validation"


def compared(given: argparse.Namespace, pairs: Pairs, measures: Mapping[str, Measure]) -> list[str]:
    """What --test found, metric by metric; what its p-values mean stands once, at the end."""
    names = metrics.expand(given.by or [next(iter(measures))])
    if unknown := [name for name in names if name not in measures]:
        raise UsageError(
            f"--by names {unknown[0]}, which is no metric of this table; choose from "
            f"{', '.join(measures)}"
        )
    found = [compare(given.test, pairs, measures[name], given.resamples) for name in names]
    return [line for *lines, _ in found for line in lines] + found[-1][-1:]


def ranked(
    sort: str | None, runs: Mapping[str, Sequence[Run]], measures: Mapping[str, Measure]
) -> Mapping[str, Sequence[Run]]:
    """The variants in the order of their means by the first metric, those that diverged last; or
    as they were given."""
    if not sort:
        return runs
    values = next(iter(measures.values())).values

    def place(variant: str) -> tuple[bool, float]:
        mean = statistics.mean(values[run.folder] for run in runs[variant])
        return not math.isfinite(mean), -mean if sort == "highest" else mean

    return {name: runs[name] for name in sorted(runs, key=place)}


def read_texts(given: argparse.Namespace, runs: Sequence[Run]) -> dict[Path, Texts]:
    """The translations of each run; those of the same repetition have the same reference."""
    name = f"generate-{given.gen_subset}.txt"
    if missing := next((run.folder for run in runs if not (run.folder / name).is_file()), None):
        raise UsageError(
            f"{missing} has no {name}; keep the output of fairseq-generate there, or give a "
            "--metric of the log"
        )
    texts = texts_of(given, {run.folder: run.folder / name for run in runs})
    for repetition in {run.repetition for run in runs}:
        check_same_references(
            {run.folder: texts[run.folder] for run in runs if run.repetition == repetition}
        )
    return texts


def columns(
    runs: Mapping[str, Sequence[Run]], measures: Iterable[Measure], spread: str = "error"
) -> list[Column]:
    def each(value: Callable[[Run], float]) -> list[list]:
        return [[value(run) for run in repetitions] for repetitions in runs.values()]

    seconds = map(statistics.mean, each(lambda run: run.facts.seconds))
    speeds = map(statistics.mean, each(speed))
    return [
        column("variant", runs),
        column("n", map(len, runs.values())),
        ranges("parameters", each(lambda run: run.facts.parameters)),
        ranges("updates", each(lambda run: run.facts.updates)),
        *(
            means(m.title, each(lambda run, m=m: m.values[run.folder]), m.digits, spread)
            for m in measures
        ),
        column("training time", seconds, duration, "training seconds"),
        column("tokens/s", speeds, lambda value: "–" if math.isnan(value) else f"{value:,.0f}"),
    ]


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
