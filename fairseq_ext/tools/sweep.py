r"""Train variants x seeds: finished runs are skipped, interrupted runs are resumed.

After `--` come the data and the flags of fairseq-train that all runs share. Each run is a folder
OUT/VARIANT/seed-N with its checkpoints, train.log and, with --generate, generate-SUBSET.txt, or,
with --predict, predict-SUBSET.txt: the last checkpoint's answers to labelled text. With
--folds the folder is fold-N, or seed-N-fold-M for several seeds. The sweep adds --save-dir and
--seed, and --user-dir and --log-format if not given. fairseq-generate gets the --task of a run with
its flags, and what it would refuse is said before any training. In a flag, $RUN stands for the
folder of the run and $SEED for its seed. A run that was begun with other flags is refused; other
flags of --generate replace its earlier output. Side by side, each run gets its share of the cores
(unless OMP_NUM_THREADS is set) and one GPU; alone too, unless --distributed-world-size is given.

Example:
  fairseq-ext sweep --out checkpoints/study --seeds 1 2 3 --jobs 2 \
    --variant una='--arch transformer_una_tiny' \
    --variant hna='--arch transformer_hna_tiny --hna-init 0.1' \
    --generate '--gen-subset test --beam 5 --remove-bpe' -- data-bin/multi30k.en-de \
    --max-tokens 1024 --optimizer adam --lr 3e-3 --lr-scheduler inverse_sqrt \
    --criterion label_smoothed_cross_entropy --max-update 1800
"""

import argparse
import re
import shlex
from collections.abc import Mapping
from itertools import chain, product
from pathlib import Path

from fairseq_ext.errors import UsageError
from fairseq_ext.files import check_writable
from fairseq_ext.tools.command_lines import parse_flags, resolve_user_dir
from fairseq_ext.tools.generation_flags import check_generation, take_over
from fairseq_ext.tools.jobs import Job, Step, run_jobs

AVERAGED, LAST = "averaged.pt", "checkpoint_last.pt"
WORLD_SIZE = "--distributed-world-size"
PLACE = "$PLUGIN"  # of this package, wherever that lies
DEFAULTS = {"--log-format": "simple"}
MOST_FOLDS = 1000
RESERVED = ("--save-dir", "--seed", "--folds", "--fold", "--path", "--results-path")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fairseq-ext sweep`."""
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder of all runs")
    flags = "flags of fairseq-train that make this variant; once for each"
    add("--variant", action="append", required=True, metavar="NAME='FLAGS'", help=flags)
    add("--seeds", type=int, nargs="+", default=[1], metavar="N", help="default: 1")
    folds = "cross-validation in K parts, for tasks on labelled text"
    add("--folds", type=int, default=0, metavar="K", help=folds)
    add("--jobs", type=int, default=1, help="runs side by side; default: 1")
    add("--generate", metavar="'FLAGS'", help="then run fairseq-generate with these flags")
    reason = "runs of the same length are then compared after the same number of updates"
    chosen = f"checkpoint of each run to generate with; default: {LAST}, since {reason}"
    add("--checkpoint", help=chosen)
    text = "then answer DATA/SUBSET.jsonl, or FILE, with the last checkpoint; once for each"
    add("--predict", action="append", default=[], metavar="SUBSET[=FILE]", help=text)
    last = "the average of the last N checkpoints of each run instead (of all, if there are fewer)"
    add("--average", type=int, metavar="N", help=f"generate with {last}")
    add("--dry-run", action="store_true", help="only print what would be run")
    add("data", metavar="-- DATA", help="as for fairseq-train")
    add("flags", nargs="*", metavar="FLAG", help="of fairseq-train, for all runs")


def run(args: argparse.Namespace) -> None:
    """Run all jobs that are not done, or print their commands."""
    jobs = plan_jobs(args)
    for job in jobs:
        job.check()
    missing = [job for job in jobs if job.missing()]
    if args.dry_run:
        print("\n".join(step.command() for job in missing for step in job.missing()))
        return
    _check_examples(missing)
    _check_generation(missing)
    check_writable(args.out, 0)
    if len(missing) < len(jobs):
        print(f"{len(jobs) - len(missing)} of {len(jobs)} runs in {args.out} are done already")
    if failed := run_jobs(missing, args.jobs):
        reasons = "; ".join(f"{name}: {reason}" for name, reason in failed.items())
        raise UsageError(f"{len(failed)} of {len(jobs)} runs are not done ({reasons})")


def plan_jobs(args: argparse.Namespace) -> list[Job]:
    """Return the runs as jobs, seed by seed, so that early results compare all variants.

    Raises:
        UsageError: the arguments contradict each other.
    """
    _check_arguments(args)
    common = [args.data, *_refuse_reserved("after --", args.flags)]
    variants = dict(map(_parse_variant, args.variant))
    if len(variants) < len(args.variant):
        raise UsageError("two variants have the same name; give each its own")
    repetitions = _make_repetitions(list(dict.fromkeys(args.seeds)), args.folds)
    taken_over = dict.fromkeys(variants, list[str]())
    for name, flags in variants.items() if args.generate is not None else ():
        train, generate = [*common, *flags], _split_flags("--generate", args.generate)
        taken_over[name] = take_over(train, generate, _choose_user_dir(args, train))
    jobs = []
    for (name, own), (variant, flags) in product(repetitions.items(), variants.items()):
        folder = args.out / variant / name
        steps = _plan_steps(args, folder, [*common, *flags], own, taken_over[variant])
        jobs.append(Job(f"{variant}/{name}", folder, steps))
    return jobs


def _check_arguments(args: argparse.Namespace) -> None:
    if args.jobs < 1:
        raise UsageError(f"--jobs is {args.jobs} and must be at least 1")
    if args.average is not None and (args.average < 1 or args.generate is None):
        raise UsageError(f"--average is {args.average}; give a number from 1, and --generate")
    if args.average and args.checkpoint:
        raise UsageError(
            f"--checkpoint is {args.checkpoint} and --average {args.average}; give one of them"
        )
    if args.checkpoint and args.generate is None:
        raise UsageError(f"--checkpoint {args.checkpoint} is for --generate; give both or none")
    names = [subset.partition("=")[0] for subset in args.predict]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise UsageError(
            f"--predict names {repeated[0]} more than once, whose answers go to one file; name "
            "each once, as in --predict test other=other.jsonl"
        )
    if args.data.startswith("-"):
        raise UsageError(f"'{args.data}' stands where the data belong; give -- DATA FLAG ...")


def _check_examples(jobs: list[Job]) -> None:
    """Raise UsageError if examples are not there that a run is to answer when it is trained."""
    for step in chain.from_iterable(job.missing() for job in jobs):
        if step.reads is not None and not step.reads.is_file():
            raise UsageError(
                f"--predict asks for answers to {step.reads}, which is not there; name a SUBSET "
                "with DATA/SUBSET.jsonl, or give SUBSET=FILE"
            )


def _check_generation(jobs: list[Job]) -> None:
    """Raise UsageError if fairseq-generate would refuse to translate when a run is trained."""
    steps = (step for job in jobs for step in job.missing() if step.program == "fairseq-generate")
    for step in {tuple(step.flags): step for step in reversed([*steps])}.values():
        if "$RUN" in step.flags[0]:  # made later
            continue
        try:
            check_generation(step.arguments())
        except UsageError as error:
            raise UsageError(
                f"fairseq-generate would refuse {step.folder} after its training: {error}"
            ) from None


def _make_repetitions(seeds: list[int], folds: int) -> dict[str, list[str]]:
    """Return the name of each repetition with its flags."""
    by_seed = {f"seed-{seed}": ["--seed", str(seed)] for seed in seeds}
    if not folds:
        return by_seed
    if not 2 <= folds <= MOST_FOLDS:
        raise UsageError(f"--folds is {folds} and must be at least 2 and at most {MOST_FOLDS}")
    return {
        (f"{name}-" if len(seeds) > 1 else "") + f"fold-{fold}": [
            *("--folds", str(folds), "--fold", str(fold), *flags)
        ]
        for (name, flags), fold in product(by_seed.items(), range(1, folds + 1))
    }


def _parse_variant(text: str) -> tuple[str, list[str]]:
    name, equals, flags = text.partition("=")
    if not equals or not re.fullmatch(r"\w[\w.+-]*", name):
        raise UsageError(
            f"--variant is '{text}' and must be a name (letters, digits, _ . + -), =, and flags in "
            "quotes: una='--arch transformer_una'"
        )
    return name, _split_flags(f"--variant {name}", flags)


def _plan_steps(
    args: argparse.Namespace,
    folder: Path,
    flags: list[str],
    own: list[str],
    taken_over: list[str],
) -> list[Step]:
    """Return the steps of one run.

    Args:
        args: the arguments of the sweep.
        folder: of the run.
        flags: of its variant, with the flags that all runs share.
        own: the flags of its repetition.
        taken_over: those of `flags` that generation needs.
    """
    seed = parse_flags(own)["--seed"]
    train = [*_insert_seed(flags, seed), *own, "--save-dir", "$RUN"]
    options = parse_flags(train)
    user_dir = _choose_user_dir(args, train)
    if user_dir != options.get("--user-dir"):
        train += ["--user-dir", user_dir]
    for flag, value in (DEFAULTS | choose_devices(args.jobs, options)).items():
        if flag not in options:
            train += [flag, value]
    steps = [Step(folder, "train", "fairseq-train", train)]
    if args.average:
        steps.append(_plan_average(folder, args.average, train))
    if args.generate is not None:
        given = _split_flags("--generate", args.generate)
        generate = _insert_seed([*taken_over, *given], seed)
        subset = check_subset(parse_flags(generate).get("--gen-subset") or "test")
        checkpoint = AVERAGED if args.average else args.checkpoint or LAST
        model = [train[0], "--path", f"$RUN/{checkpoint}", "--user-dir", user_dir]
        name, flags = f"generate-{subset}", [*model, *generate]
        steps.append(Step(folder, name, "fairseq-generate", flags, keeps=True))
    asked = _insert_seed(args.predict, seed)
    steps += [_plan_prediction(folder, subset, train) for subset in asked]
    return steps


def _choose_user_dir(args: argparse.Namespace, train: list[str]) -> str:
    """Return the --user-dir of a training: its own, or that of the sweep, or this package."""
    given = parse_flags(train).get("--user-dir") or args.user_dir or PLACE
    return resolve_user_dir(given, PLACE)


def _plan_prediction(folder: Path, subset: str, train: list[str]) -> Step:
    name, _, file = subset.partition("=")
    examples = file or f"{train[0]}/{name}.jsonl"
    flags = [f"$RUN/{LAST}", "--examples", "--json", "--right", "--input", examples]
    flags += ["--cpu"] if "--cpu" in train else []
    user_dir = parse_flags(train)["--user-dir"]
    flags += ["--user-dir", user_dir] if user_dir != PLACE else []
    name = f"predict-{check_subset(name, '--predict')}"
    reads = None if "$" in examples else Path(examples)  # in the folder of the run: made later
    return Step(folder, name, "fairseq-ext predict", flags, keeps=True, reads=reads)


def check_subset(name: str, flag: str = "--gen-subset") -> str:
    """Return the name of a subset, which becomes a part of the names of files.

    Raises:
        UsageError: it is none.
    """
    if not re.fullmatch(r"\w[\w.+-]*", name):
        raise UsageError(
            f"{flag} is '{name}' and must be a name (letters, digits, _ . + -), such as test"
        )
    return name


def choose_devices(jobs: int, options: Mapping[str, str]) -> dict[str, str]:
    """Return the flag with which a run takes one of several GPUs, however many run side by side.

    Raises:
        UsageError: a run asks for several of them, and runs side by side have one each.
    """
    import torch  # slow

    asked, gpus = options.get(WORLD_SIZE, "1"), torch.cuda.device_count()
    if gpus and jobs > 1 and asked != "1":
        raise UsageError(
            f"{WORLD_SIZE} is {asked}, and with --jobs {jobs} each run has one GPU; give --jobs 1, "
            "or leave the other out"
        )
    return {WORLD_SIZE: "1"} if gpus > 1 else {}


def _plan_average(folder: Path, last: int, train: list[str]) -> Step:
    flags = ["$RUN", "--last", str(last), "--at-most", "--output", f"$RUN/{AVERAGED}", "--force"]
    of_epochs = "--no-epoch-checkpoints" not in train
    of_updates = parse_flags(train).get("--save-interval-updates", "0") != "0"
    if not of_epochs and not of_updates:
        raise UsageError(
            f"--average is {last}, and --no-epoch-checkpoints leaves none to average; leave it "
            "out, or give --save-interval-updates"
        )
    if of_epochs and of_updates:
        flags += ["--by", "epoch"]
    return Step(folder, "average", "fairseq-ext average", flags)


def _insert_seed(flags: list[str], seed: str) -> list[str]:
    return [re.sub(r"\$SEED\b", seed, flag) for flag in flags]


def _split_flags(where: str, text: str) -> list[str]:
    try:
        flags = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{where} is '{text}', which cannot be split ({error})") from None
    return _refuse_reserved(f"in {where}", flags)


def _refuse_reserved(where: str, flags: list[str]) -> list[str]:
    """Return the flags; raise UsageError if one of them is set by the sweep itself."""
    options = parse_flags(flags)
    if reserved := next((flag for flag in RESERVED if flag in options), None):
        raise UsageError(f"{reserved} stands {where}, but the sweep sets it; leave it out")
    return flags
