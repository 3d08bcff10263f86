"""Finished runs in one table: scores, length and cost of training.

VARIANT/seed-N and VARIANT/fold-N are repetitions of VARIANT: one row, mean ± standard error over
n of them; they may differ in --seed, folds in their data too, and in nothing else. --metric takes
what `fairseq-ext score` has, of RUN/generate-SUBSET.txt, and any value that was logged, from the
validation in which training found its best checkpoint. Updates and time are of the whole training,
tokens/s is the median over its log.

--test compares each variant with --baseline by the first metric: t, over matched repetitions;
bootstrap and randomisation, over the sentences of each matched pair of outputs. p-values are
two-sided and corrected for their number (Holm).
"""

import argparse
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fairseq_ext.data.check import check_writable
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation import metrics
from fairseq_ext.evaluation.comparisons import FEWEST, TESTS, Measure, compare, match
from fairseq_ext.evaluation.layout import FORMATS, Column, column, means, ranges
from fairseq_ext.evaluation.runs import Run, read_runs, speed, validated
from fairseq_ext.evaluation.score import add_options, language
from fairseq_ext.evaluation.translation import (
    Texts,
    check_same_references,
    pair,
    read_output,
    read_reference,
)

EXAMPLE = """\
  fairseq-ext table checkpoints/study/*/seed-* --reference test.de --output results.md
  fairseq-ext table checkpoints/study/*/seed-* --metric accuracy --baseline una --test t
  fairseq-ext table a b --reference test.de --metric chrf --test bootstrap"""

ENDINGS = {".md": "markdown", ".csv": "csv"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run")
    add_options(parser)
    parser.add_argument(
        "--metric",
        nargs="+",
        metavar="METRIC",
        help=f"of {', '.join(metrics.METRICS)}, or as named in the log, or SUBSET.NAME for another "
        f"than the first --valid-subset; default: {' '.join(metrics.DEFAULT)} with --reference, "
        "else loss",
    )
    parser.add_argument("--gen-subset", default="test", metavar="SUBSET", help="default: test")
    parser.add_argument("--baseline", metavar="VARIANT", help="for --test; default: the first")
    parser.add_argument("--test", choices=TESTS)
    parser.add_argument(
        "--resamples", type=int, metavar="N", help="default: 1000 for bootstrap, else 10000"
    )
    parser.add_argument("--format", choices=FORMATS, help="default: by --output, else text")
    parser.add_argument("--output", type=Path, metavar="FILE", help=".md, .csv or other")


def run(given: argparse.Namespace) -> None:
    _check(given)
    runs = read_runs(given.runs)
    pairs = match(given.test, runs, given.baseline or next(iter(runs))) if given.test else {}
    measures, notes = measure(given, [each for group in runs.values() for each in group])
    if max(map(len, runs.values())) > 1:
        notes.append("±: standard error of the mean over n repetitions")
    if pairs:
        notes += compare(given.test, pairs, measures[0], given.resamples)
    form = given.format or ENDINGS.get(given.output and given.output.suffix, "text")
    text = FORMATS[form](columns(runs, measures), notes)
    if given.output is None:
        print(text, end="")
    else:
        write(text, given.output)


def _check(given: argparse.Namespace) -> None:
    if given.resamples is not None and given.resamples < FEWEST:
        raise UsageError(f"--resamples is {given.resamples} and must be at least {FEWEST}")
    if given.baseline and not given.test:
        raise UsageError("--baseline is for --test; give both or none")
    if given.output:
        check_writable(given.output.parent, 0)
        if given.output.is_dir():
            raise UsageError(f"--output is the folder {given.output}; give a file")


def measure(given: argparse.Namespace, runs: Sequence[Run]) -> tuple[list[Measure], list[str]]:
    """The columns of results, and the notes that belong to them."""
    names = given.metric or ([] if given.reference else ["loss"])
    scored = [name for name in names if name in metrics.METRICS]
    found, notes = {}, []
    if scored or not names:
        texts, lang = read_texts(given, runs), language(given)
        scores = metrics.score(scored, texts, given.lowercase, lang)
        found = {name: Measure(s.title, 2, s.values, s) for name, s in scores.items()}
        notes = metrics.notes(scores.values(), texts, lang)
    for name in names:
        if name not in found:
            found[name] = Measure(name, 3, {run.folder: validated(run, name) for run in runs})
            notes.append(f"{name}: from the log, of the validation with the best checkpoint")
    return [found[name] for name in names or found], notes


def read_texts(given: argparse.Namespace, runs: Sequence[Run]) -> dict[Path, Texts]:
    """The translations of each run; those of the same repetition have the same reference."""
    lang, name = language(given), f"generate-{given.gen_subset}.txt"
    if missing := next((run.folder for run in runs if not (run.folder / name).is_file()), None):
        raise UsageError(
            f"{missing} has no {name}; keep the output of fairseq-generate there, or give a "
            "--metric of the log"
        )
    reference = read_reference(given.reference, lang) if given.reference else None
    texts = {run.folder: pair(read_output(run.folder / name), reference, lang) for run in runs}
    for repetition in {run.repetition for run in runs}:
        check_same_references(
            {run.folder: texts[run.folder] for run in runs if run.repetition == repetition}
        )
    return texts


def columns(runs: Mapping[str, Sequence[Run]], measures: Sequence[Measure]) -> list[Column]:
    def each(value: Callable[[Run], float]) -> list[list]:
        return [[value(run) for run in repetitions] for repetitions in runs.values()]

    seconds = map(statistics.mean, each(lambda run: run.facts.seconds))
    speeds = map(statistics.mean, each(speed))
    return [
        column("variant", runs),
        column("n", map(len, runs.values())),
        ranges("parameters", each(lambda run: run.facts.parameters)),
        ranges("updates", each(lambda run: run.facts.updates)),
        *(means(m.title, each(lambda run, m=m: m.values[run.folder]), m.digits) for m in measures),
        column("training time", seconds, duration, "training seconds"),
        column("tokens/s", speeds, lambda value: "–" if math.isnan(value) else f"{value:,.0f}"),
    ]


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"


def write(text: str, output: Path) -> None:
    """A file that has its name only when it is complete."""
    part = output.with_name(f".{output.name}.part")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, "utf-8")
        part.replace(output)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UsageError(f"{output} cannot be written ({error.strerror}); give another") from error
