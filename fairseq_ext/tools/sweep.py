"""Train variants x seeds: what is done is skipped, what was interrupted goes on.

After `--` come the data and the flags of fairseq-train that all runs share. Each run is a folder
OUT/VARIANT/seed-N with its checkpoints, train.log and, with --generate, generate-SUBSET.txt; with
--folds it is fold-N, or seed-N-fold-M of several seeds. --save-dir and --seed are added, and
--user-dir and --log-format if not given; $RUN in a flag stands for the folder of the run and $SEED
for its seed. A run that was begun with other flags is refused; another way to
generate replaces the output of the former. Side by side, each run gets its share of the cores
(unless OMP_NUM_THREADS is set) and one GPU.
"""

import argparse
import re
import shlex
from itertools import product
from pathlib import Path

from fairseq_ext.errors import UsageError
from fairseq_ext.files import check_writable
from fairseq_ext.tools.jobs import Run, Step, work_off

EXAMPLE = """\
  fairseq-ext sweep --out checkpoints/study --seeds 1 2 3 --jobs 2 \\
    --variant una='--arch transformer_una_tiny' \\
    --variant hna='--arch transformer_hna_tiny --hna-init 0.1' \\
    --generate '--gen-subset test --beam 5 --remove-bpe' -- data-bin/multi30k.en-de \\
    --max-tokens 1024 --optimizer adam --lr 3e-3 --lr-scheduler inverse_sqrt \\
    --criterion label_smoothed_cross_entropy --max-update 1800"""

AVERAGED, LAST = "averaged.pt", "checkpoint_last.pt"
DEFAULTS = {"--user-dir": "$PLUGIN", "--log-format": "simple"}
OURS = ("--save-dir", "--seed", "--folds", "--fold", "--path", "--results-path")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, help="folder of all runs")
    parser.add_argument(
        "--variant",
        action="append",
        required=True,
        metavar="NAME='FLAGS'",
        help="flags of fairseq-train that make this variant; once for each",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], metavar="N", help="default: 1")
    parser.add_argument(
        "--folds",
        type=int,
        default=0,
        metavar="K",
        help="cross-validation in K parts, for tasks on labelled text",
    )
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side; default: 1")
    parser.add_argument(
        "--generate", metavar="'FLAGS'", help="then run fairseq-generate with these flags"
    )
    parser.add_argument(
        "--checkpoint",
        help=f"the one of each run that generates; default: {LAST}, since runs of the same length "
        "are then compared after the same number of updates",
    )
    parser.add_argument(
        "--average",
        type=int,
        metavar="N",
        help="generate with the average of the last N checkpoints of each run instead (of all, if "
        "there are fewer)",
    )
    parser.add_argument("--dry-run", action="store_true", help="only print what would be run")
    parser.add_argument("data", metavar="-- DATA", help="as for fairseq-train")
    parser.add_argument("flags", nargs="*", metavar="FLAG", help="of fairseq-train, for all runs")


def run(given: argparse.Namespace) -> None:
    runs = plan(given)
    for each in runs:
        each.check()
    todo = [each for each in runs if each.missing()]
    if given.dry_run:
        print("\n".join(step.command() for each in todo for step in each.missing()))
        return
    check_writable(given.out, 0)
    if len(todo) < len(runs):
        print(f"{len(runs) - len(todo)} of {len(runs)} runs in {given.out} are done already")
    if failed := work_off(todo, given.jobs):
        reasons = "; ".join(f"{name}: {reason}" for name, reason in failed.items())
        raise UsageError(f"{len(failed)} of {len(runs)} runs are not done ({reasons})")


def plan(given: argparse.Namespace) -> list[Run]:
    """The runs, seed by seed, so that early results compare all variants."""
    if given.jobs < 1:
        raise UsageError(f"--jobs is {given.jobs} and must be at least 1")
    if given.average is not None and (given.average < 1 or given.generate is None):
        raise UsageError(
            f"--average is {given.average} and is how many checkpoints, from 1, --generate is to "
            "take; give both"
        )
    if given.average and given.checkpoint:
        raise UsageError(
            f"--checkpoint is {given.checkpoint} and --average {given.average}, and one of them is "
            "to generate; give one"
        )
    if given.data.startswith("-"):
        raise UsageError(f"'{given.data}' stands where the data belong; give -- DATA FLAG ...")
    common = [given.data, *_accepted("after --", given.flags)]
    variants = dict(map(_variant, given.variant))
    if len(variants) < len(given.variant):
        raise UsageError("two variants have the same name; give each its own")
    runs = []
    repetitions = _repetitions(list(dict.fromkeys(given.seeds)), given.folds)
    for (name, own), (variant, flags) in product(repetitions.items(), variants.items()):
        folder = given.out / variant / name
        seed = _value(own, "--seed")
        chosen = _seeded([*common, *flags], seed)
        train = [*chosen, *own, "--save-dir", "$RUN"]
        steps = [Step(folder, "train", "train", _completed(train))]
        checkpoint = given.checkpoint or LAST
        if given.average:
            steps.append(_averaging(folder, given.average, chosen))
            checkpoint = AVERAGED
        if given.generate is not None:
            steps.append(_generation(steps[0], checkpoint, given.generate, seed))
        runs.append(Run(f"{variant}/{name}", folder, steps))
    return runs


def _repetitions(seeds: list[int], folds: int) -> dict[str, list[str]]:
    """The name of each repetition, with the flags that make it."""
    if not folds:
        return {f"seed-{seed}": ["--seed", str(seed)] for seed in seeds}
    if folds < 2:
        raise UsageError(f"--folds is {folds} and must be at least 2")
    return {
        (f"seed-{seed}-" if len(seeds) > 1 else "") + f"fold-{fold}": [
            *("--folds", str(folds), "--fold", str(fold), "--seed", str(seed))
        ]
        for seed, fold in product(seeds, range(1, folds + 1))
    }


def _variant(text: str) -> tuple[str, list[str]]:
    name, equals, flags = text.partition("=")
    if not equals or not re.fullmatch(r"\w[\w.+-]*", name):
        raise UsageError(
            f"--variant is '{text}' and must be a name (letters, digits, _ . + -), =, and flags in "
            "quotes: una='--arch transformer_una'"
        )
    return name, _split(f"--variant {name}", flags)


def _seeded(flags: list[str], seed: str | None) -> list[str]:
    return [re.sub(r"\$SEED\b", str(seed), flag) for flag in flags]


def _completed(train: list[str]) -> list[str]:
    missing = [flag for flag in DEFAULTS if _value(train, flag) is None]
    return train + [part for flag in missing for part in (flag, DEFAULTS[flag])]


def _averaging(folder: Path, last: int, train: list[str]) -> Step:
    flags = ["$RUN", "--last", str(last), "--at-most", "--output", f"$RUN/{AVERAGED}", "--force"]
    if "--no-epoch-checkpoints" not in train and _value(train, "--save-interval-updates"):
        flags += ["--by", "epoch"]  # there are those of updates too
    return Step(folder, "average", "average", flags)


def _generation(train: Step, checkpoint: str, text: str, seed: str | None) -> Step:
    flags = _seeded(_split("--generate", text), seed)
    subset = _value(flags, "--gen-subset") or "test"
    needed = ["--path", f"$RUN/{checkpoint}", "--user-dir", _value(train.flags, "--user-dir")]
    flags = [train.flags[0], *needed, *flags]
    return Step(train.folder, f"generate-{subset}", "generate", flags, keeps=True)


def _split(where: str, text: str) -> list[str]:
    try:
        flags = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{where} is '{text}', which cannot be split ({error})") from None
    return _accepted(f"in {where}", flags)


def _accepted(where: str, flags: list[str]) -> list[str]:
    for flag in OURS:
        if _value(flags, flag) is not None:
            raise UsageError(f"{flag} stands {where}, but the sweep sets it; leave it out")
    return flags


def _value(flags: list[str], name: str) -> str | None:
    """The value that a command line gives to a flag."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(name, dest="value", nargs="?", const="")
    return parser.parse_known_args(flags)[0].value
