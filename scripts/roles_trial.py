"""The search of roles_trial.sh beside this, its choice, and the comparison of all its corpora.

    python scripts/roles_trial.py draw SEED TRIES
    python scripts/roles_trial.py choose FOLDER NAME='FLAGS'...
    python scripts/roles_trial.py compare FOLDER...

Each prints the lines of a function of STEPS.
"""

import random
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from fairseq_ext.errors import plain_errors
from fairseq_ext.evaluation import layout
from fairseq_ext.evaluation.comparisons import match_runs
from fairseq_ext.evaluation.runs import LAST, Run, find_logged_value, read_run, read_runs
from fairseq_ext.evaluation.significance import holm, paired_t

SHARED = {
    "--encoder-attention-heads": ("6", "8"),
    "--dropout": (".3", ".5"),
    "--lr": ("3e-4", "5e-4", "1e-3"),
}
ROLES, MIN_COUNT = "--encoder-roles", "--role-rare-min-count"
SIDES: dict[str, dict[str, Sequence[str]]] = {
    "plain": {ROLES: ["none"]},
    "roles": {
        ROLES: [
            "rare,separator,dependency,major,relative",
            "separator,dependency,major,relative",
            "rare,separator,relative",
        ],
        MIN_COUNT: ["0", "10"],
    },
}
"""The values of each flag that a side's search draws from, beside those of SHARED."""
METRIC = "accuracy"


def draw_settings(words: Sequence[str]) -> Iterator[str]:
    """Print settings drawn at random, none of them twice: SIDE-N=FLAGS of fairseq-train.

    Args:
        words: the seed, and how many settings a side gets.
    """
    seed, tries = map(int, words)
    for side, own in SIDES.items():
        space = SHARED | own
        settings = [
            _write_flags(dict(zip(space, x, strict=True))) for x in product(*space.values())
        ]
        random.Random(seed).shuffle(settings)
        for number, flags in enumerate([*dict.fromkeys(settings)][:tries], 1):
            yield f"{side}-{number}={flags}"


def _write_flags(values: Mapping[str, str]) -> str:
    """Return values as flags; the count of rare words means nothing without the role."""
    unused = () if "rare" in values[ROLES].split(",") else (MIN_COUNT,)
    return " ".join(f"{flag} {value}" for flag, value in values.items() if flag not in unused)


def choose_settings(words: Sequence[str]) -> Iterator[str]:
    """Print the setting of each side with the highest accuracy at the last epoch: SIDE=FLAGS.

    Lines with # in front say how each setting did. Of equal ones the first counts.

    Args:
        words: the folder of the search's runs, and the settings that `draw_settings` printed.

    Raises:
        UsageError: a run is not finished.
    """
    folder, *settings = words
    sides: dict[str, dict[str, float]] = defaultdict(dict)
    for name, _, flags in (setting.partition("=") for setting in settings):
        run = read_run(Path(folder, name, "seed-1"), name)
        sides[name.rpartition("-")[0]][flags] = find_logged_value(run, f"{LAST}.{METRIC}")
    for side, scores in sides.items():
        yield from (f"# {side} {score:.2f}: {flags}" for flags, score in scores.items())
        yield f"{side}={max(scores, key=scores.__getitem__)}"


class Corpus(NamedTuple):
    """The scores of a corpus: those of each repetition without roles, and with them."""

    name: str
    plain: list[float]
    roles: list[float]


def compare_corpora(folders: Sequence[str]) -> Iterator[str]:
    """Print two tables, of the last epoch and of the best: roles against none on each corpus.

    The second subset for validation is scored; on the first one, the best epoch is best.

    Args:
        folders: of the corpora, with the runs of each side.

    Raises:
        UsageError: a run is not finished.
    """
    corpora = [(path.name, _read_sides(path)) for path in map(Path, folders)]
    for title, moment in (("last epoch", f"{LAST}."), ("best epoch", "")):
        scores = [
            Corpus(name, *([_score(run, moment) for run in runs] for runs in sides))
            for name, sides in corpora
        ]
        yield from tabulate(title, scores).split("\n")


def _read_sides(folder: Path) -> list[list[Run]]:
    """Return the runs of each side, those of one number at the same place."""
    runs = read_runs([run for side in SIDES for run in sorted((folder / side).glob("*-*"))])
    plain, roles = SIDES
    pairs = match_runs(["t"], runs, plain)[roles]
    return [[base for _, base in pairs], [ours for ours, _ in pairs]]


def _score(run: Run, moment: str) -> float:
    subset = run.facts.settings["dataset.valid_subset"].split(",")[1]
    return find_logged_value(run, f"{moment}{subset}.{METRIC}")


def tabulate(title: str, corpora: Sequence[Corpus]) -> str:
    """Return a table of corpora with paired t-tests, corrected for their number (Holm)."""
    tests = [paired_t(corpus.roles, corpus.plain) for corpus in corpora]
    columns = [
        layout.make_column(title, (corpus.name for corpus in corpora)),
        layout.make_column("n", (len(corpus.plain) for corpus in corpora)),
        layout.make_mean_column("plain", (corpus.plain for corpus in corpora), 2, "deviation"),
        layout.make_mean_column("roles", (corpus.roles for corpus in corpora), 2, "deviation"),
        layout.make_column("difference", (test.difference for test in tests), "{:+.2f}".format),
        layout.make_column("95% interval", (test.interval for test in tests), _show_interval),
        layout.make_column("p", (test.p for test in tests), "{:.4f}".format),
        layout.make_column("corrected p", holm(test.p for test in tests), "{:.4f}".format),
    ]
    notes = [
        f"{METRIC}, mean ± standard deviation over n folds or seeds; paired t-test, two-sided,",
        f"corrected for {len(corpora)} corpora (Holm). Folds share training data, so that their",
        "p is too small.",
    ]
    return layout.as_text(columns, notes)


def _show_interval(interval: tuple[float, float] | None) -> str:
    return "–" if interval is None else "{:+.2f} to {:+.2f}".format(*interval)


STEPS = {"draw": draw_settings, "choose": choose_settings, "compare": compare_corpora}

if __name__ == "__main__":
    plain_errors()
    print("\n".join(STEPS[sys.argv[1]](sys.argv[2:])))
