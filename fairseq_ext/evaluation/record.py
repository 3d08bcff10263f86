"""Write a record of finished runs: where their numbers come from, and the results of each run.

The file is TOML, of the form that docs/records.py describes. Fields that runs cannot know (the
question, what it means, what is claimed) are there and empty. Runs, --metric and --baseline are as
for `fairseq-ext table`; the first metric decides. Commit, hardware and versions are those of this
machine now; correct them if the runs are of another one. Intervals, tests and verdicts are not
written: they follow from the runs.

Example:
  fairseq-ext record checkpoints/study/*/seed-* --metric valid.nll_loss --out study.toml
  fairseq-ext record checkpoints/study/*/seed-* --reference test.de --baseline una --out study.toml
"""

import argparse
import datetime
import json
import math
import platform
import subprocess
from collections.abc import Iterator, Sequence
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any

from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.measures import SUBSET, measure_runs
from fairseq_ext.evaluation.run_values import FALLING
from fairseq_ext.evaluation.runs import CHECKPOINT, Run, read_runs
from fairseq_ext.evaluation.score import add_scoring_options
from fairseq_ext.files import check_writable, write_lines

TO_FILL = ("title", "question", "paper", "page", "meaning", "change", "searched")
CLAIM = {"claim": "", "paper": "", "place": "", "verdict": "open", "sentence": ""}
DONE = "train.done"  # where a sweep keeps the command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fairseq-ext record`."""
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run")
    add("--out", type=Path, required=True, metavar="FILE", help="the record, .toml")
    add_scoring_options(parser)
    add("--metric", nargs="+", metavar="METRIC", help="as for `fairseq-ext table`")
    add("--baseline", metavar="VARIANT", help="what others are compared with; default: the first")
    add("--gen-subset", metavar="SUBSET", help=f"default: {SUBSET}")
    add("--mixed", action="store_true", help="also of runs on different data or dictionaries")
    parser.set_defaults(test=None, by=None)


def run(args: argparse.Namespace) -> None:
    """Write the record of these runs."""
    if args.out.suffix != ".toml" or args.out.exists():
        reason = "there already" if args.out.exists() else "no .toml file"
        raise UsageError(f"--out {args.out} is {reason}; give a new file that ends with .toml")
    check_writable(args.out.parent, 0)
    runs = read_runs(args.runs)
    baseline = args.baseline or next(iter(runs))
    if baseline not in runs:
        raise UsageError(f"--baseline is {baseline}; give one of {', '.join(runs)}")
    all_runs = [*chain.from_iterable(runs.values())]
    measures, notes = measure_runs(args, all_runs, runs[baseline])
    values = [each.values for each in measures.values()]
    rows = [[*_name(each), *(found[each.folder] for found in values)] for each in all_runs]
    abouts = {
        name: f"{{title = {show(measure.title)}, digits = {measure.digits}, "
        f'better = "{"lower" if any(part in name for part in FALLING) else "higher"}"}}'
        for name, measure in measures.items()
    }
    lines = [
        *write_fields(describe_runs(all_runs, notes)),
        f"columns = {show(['side', 'repetition', *measures])}",
        *("runs = [", *(f"    {show(row)}," for row in rows), "]"),
        *("", "[measures]", *(f"{show(name)} = {about}" for name, about in abouts.items())),
        *("", "[[comparisons]]", f"baseline = {show(baseline)}"),
        *("", "[[claims]]", *write_fields(CLAIM)),
    ]
    write_lines(args.out, lines)
    print(f"{args.out} is ready; fill in {', '.join(TO_FILL)}, and the claim")


def _name(run: Run) -> tuple[str, str]:
    """Return a run's side, and its repetition as "seed 1"."""
    return run.variant, run.repetition.replace("-", " ") or "seed 1"


def describe_runs(runs: Sequence[Run], notes: Sequence[str]) -> dict[str, Any]:
    """Return the fields that runs and this machine know."""
    settings = [run.facts.settings for run in runs]
    ended = max((run.folder / CHECKPOINT).stat().st_mtime for run in runs)
    commands = dict.fromkeys(filter(None, map(_read_command, runs)))
    known = {
        "date": datetime.date.fromtimestamp(ended),
        "order": 10,
        "data": ", ".join(dict.fromkeys(str(each.get("task.data")) for each in settings)),
        "command": "\n".join(commands),
        "commit": find_commit(),
        "hardware": f"{platform.machine()}, {platform.system()}",
        "versions": f"Python {platform.python_version()}, torch {metadata.version('torch')}",
        "seeds": sorted({each["common.seed"] for each in settings if "common.seed" in each}),
        "remarks": list(notes),
    }
    return dict.fromkeys(TO_FILL, "") | {key: each for key, each in known.items() if each}


def _read_command(run: Run) -> str:
    path = run.folder / DONE
    return path.read_text("utf-8").strip() if path.is_file() else ""


def find_commit() -> str:
    """Return the commit of this package, or "" if it was not installed from a clone."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except OSError:  # no git
        return ""


def write_fields(fields: dict[str, Any]) -> Iterator[str]:
    """Yield a line of TOML for each field."""
    return (f"{name} = {show(value)}" for name, value in fields.items())


def show(value: Any) -> str:
    """Return a value as TOML has it."""
    if isinstance(value, list):
        return f"[{', '.join(map(show, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # inf, -inf, nan
    if isinstance(value, datetime.date):
        return value.isoformat()
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
