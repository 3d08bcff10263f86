"""Results of runs by the names of metrics: scores of outputs, logged values, and of records."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation import comparisons, metrics
from fairseq_ext.evaluation.checkpoint_notes import name_checkpoints
from fairseq_ext.evaluation.comparable import check_comparable
from fairseq_ext.evaluation.comparisons import Measure
from fairseq_ext.evaluation.recorded import is_record, measure_recorded
from fairseq_ext.evaluation.run_values import measure_named
from fairseq_ext.evaluation.runs import Run, name_older
from fairseq_ext.evaluation.score import check_comet, choose_language, read_texts
from fairseq_ext.evaluation.translation import Texts, check_same_references, list_shards

SUBSET = "test"  # whose translations are scored

Measures = Mapping[str, Measure]
"""By name of the metric, the results of all runs."""


def measure_all(
    args: argparse.Namespace, runs: Sequence[Run], baseline: Sequence[Run]
) -> tuple[Measures, list[str]]:
    """Return what `measure_runs` does, of runs in folders and in records."""
    recorded = [run for run in runs if run.results]
    trained = [run for run in runs if not run.results]
    if not recorded:
        return measure_runs(args, runs, baseline)
    if not trained and (args.reference or args.gen_subset):
        flag = "--reference" if args.reference else "--gen-subset"
        raise UsageError(f"{flag} is for outputs of runs, which records do not have; leave it out")
    names = metrics.expand_groups(args.metric or recorded[0].results)
    if not args.mixed:
        check_comparable(runs, names)
    comparisons.choose_metrics(args.by, names)
    measures = {name: measure_recorded(name, recorded) for name in names}
    notes: list[str] = []
    if trained:
        named = argparse.Namespace(**{**vars(args), "metric": names})
        others, notes = measure_runs(named, trained, baseline)
        for name, other in others.items():
            values = {**other.values, **measures[name].values}
            measures[name] = other._replace(values=values, scores=None)
    files = ", ".join(map(str, filter(is_record, args.runs)))
    return measures, [*notes, f"{', '.join(names)}: as recorded in {files}"]


def measure_runs(
    args: argparse.Namespace, runs: Sequence[Run], baseline: Sequence[Run]
) -> tuple[Measures, list[str]]:
    """Return the results of all runs by the names of their metrics, and the notes about them."""
    names = metrics.expand_groups(args.metric or ([] if args.reference else ["loss"]))
    if not args.mixed:
        check_comparable(runs, names)
    scored = [name for name in names if name in metrics.METRICS]
    check_comet(args, scored)
    comparisons.choose_metrics(args.by, names or metrics.DEFAULTS)
    if args.gen_subset:  # also if nothing is scored
        find_outputs(args.gen_subset, runs)
    mixed, others = _may_differ(args), [name for name in names if name not in scored]
    named = {name: measure_named(name, runs, baseline, mixed) for name in others}
    measures: dict[str, Measure] = {}
    notes: list[str] = []
    if scored or not names:
        texts, language = read_run_texts(args, runs), choose_language(args)
        scores = metrics.score_outputs(scored, texts, args.lowercase, language, args.comet_model)
        measures = {name: Measure(s.title, 2, s.values, s) for name, s in scores.items()}
        notes = metrics.list_notes(scores.values(), texts, language, scored)
        name = find_outputs(args.gen_subset, runs)
        notes += filter(None, [name_checkpoints(name, runs), name_older(name, runs)])
    for name, (measure, note) in named.items():
        measures[name] = measure
        notes.append(note)
    return {name: measures[name] for name in names or measures}, notes


def _may_differ(args: argparse.Namespace) -> bool:
    """Return whether runs may be tested on different sentences, which no test may resample."""
    return args.mixed and not set(args.test or ()).intersection(comparisons.OF_SENTENCES)


def read_run_texts(args: argparse.Namespace, runs: Sequence[Run]) -> dict[Path, Texts]:
    """Return the translations of each run with their reference.

    Raises:
        UsageError: a run has none, or runs (folds of one number) have different references.
    """
    name = find_outputs(args.gen_subset, runs)
    texts = read_texts(args, {run.folder: run.folder / name for run in runs})
    if _may_differ(args):
        return texts
    folds = [run.repetition if "fold" in run.repetition else "" for run in runs]
    for fold in set(folds):
        matched = [run.folder for run, each in zip(runs, folds, strict=True) if each == fold]
        check_same_references({folder: texts[folder] for folder in matched})
    return texts


def find_outputs(subset: str | None, runs: Sequence[Run]) -> str:
    """Return the name of the file of translations, which each run has, or raise UsageError."""
    name = f"generate-{subset or SUBSET}.txt"
    for run in runs:
        if not all(path.is_file() for path in list_shards(run.folder / name)):
            others = sorted(file.name for file in run.folder.glob("generate-*.txt"))
            raise UsageError(
                f"{run.folder} has no {name} (it has {', '.join(others) or 'none'}); put "
                "fairseq-generate's output there, give another --gen-subset, or leave it out and "
                "use a logged --metric"
            )
    return name
