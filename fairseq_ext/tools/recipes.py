"""Steps that recipes run before and after their trainings.

    python -m fairseq_ext.tools.recipes dry-run DATA NAME='FLAGS'... -- FLAG...
    python -m fairseq_ext.tools.recipes check-references DATA/SPLIT.SOURCE-TARGET.TARGET
    python -m fairseq_ext.tools.recipes check-labels TASK TRAIN.jsonl OTHER.jsonl
    python -m fairseq_ext.tools.recipes encoder-flags CHECKPOINT
    python -m fairseq_ext.tools.recipes period-ids DATA/bpe/encoder.json
    python -m fairseq_ext.tools.recipes training-times RUN...
    python -m fairseq_ext.tools.recipes converged RUN...

What a step refuses is said in one sentence, and the exit code is 1.
"""

import argparse
import json
import logging
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import NoReturn

from fairseq_ext.bounds import MOST_BYTES, check_regular
from fairseq_ext.data.examples import read
from fairseq_ext.errors import UsageError, plain_errors
from fairseq_ext.evaluation.runs import CHECKPOINT, read_facts
from fairseq_ext.standard_output import guard_standard_output
from fairseq_ext.tools.convergence import count_converged

TAKEN_OVER = ("hna_init", "hna_weight")  # by fine-tuning, from its checkpoint
UNLIKE = ("asa_", "doubly_kernel")  # of options that the encoder does not depend on

PERIODS = (".", "\u0120.")  # after a letter, after a space

BASELINE = "mean"


def check_variants(words: Sequence[str]) -> list[str]:
    """Build the models and criterions of training variants, and train nothing.

    Flags that fairseq-train would refuse end it, so that a recipe refuses them before its first
    training.

    Args:
        words: the folder that all variants train on; each variant's name, "=" and flags of
            fairseq-train in one string, as in una='--arch …'; "--"; and flags of all variants,
            which stand before their own.

    Raises:
        UsageError: fairseq-train would refuse a variant.
    """
    from fairseq import options, tasks
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    import fairseq_ext.registry  # noqa: F401
    from fairseq_ext.training.training_checks import check_training

    end = words.index("--")
    for variant in words[1:end]:
        parser = options.get_training_parser()
        parser.error = _refuse
        flags = [words[0], *words[end + 1 :], *shlex.split(variant.partition("=")[2])]
        cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, flags))
        task = tasks.setup_task(cfg.task)
        check_training(task.build_model(cfg.model), task.build_criterion(cfg.criterion), cfg)
    return []


def _refuse(message: str) -> NoReturn:
    """Raise UsageError with the reason that argparse gives, without its list of choices."""
    raise UsageError(f"fairseq-train cannot take these flags: {message.split(' (choose')[0]}")


def check_references(path: str) -> list[str]:
    """Check that binarised sentences can be references of a score.

    Words that the dictionary lacks are lost in binarised data. Where the text is not beside them,
    nothing can be scored; this is said before anything is trained.

    Raises:
        UsageError: a sentence of PREFIX.idx and PREFIX.bin has unknown words.
    """
    from fairseq.data import Dictionary, data_utils

    prefix = Path(path)
    split, language = prefix.name.split(".")[0], prefix.suffix[1:]
    words = Dictionary.load(str(prefix.parent / f"dict.{language}.txt"))
    sentences = data_utils.load_indexed_dataset(path, words)
    if lossy := sum(bool((sentence == words.unk()).any()) for sentence in sentences):
        raise UsageError(
            f"{lossy} of the {len(sentences)} sentences of {prefix} have words that are not in the "
            f"dictionary, so nothing can be scored against them; put their text into "
            f"{prefix.parent}/text/{split}.{language}"
        )
    return []


def check_labels(words: Sequence[str]) -> list[str]:
    """Check that a model can answer examples of another corpus: it must have all their labels.

    Args:
        words: the task, and the files of its training examples and of the others.

    Raises:
        UsageError: a label of the others is not among those of training, or a file is not as the
            task reads it.
    """
    from fairseq.tasks import TASK_REGISTRY

    import fairseq_ext.registry  # noqa: F401

    task, *files = words
    fields = TASK_REGISTRY[task].fields
    trained, other = (
        {
            str(label)
            for example in read(Path(file), fields)
            for label in example.values.get("tags") or [example.values.get("label")]
        }
        for file in files
    )
    if strange := sorted(other - trained):
        raise UsageError(
            f"{files[1]} has the label '{strange[0]}', which {files[0]} does not have (it has "
            f"{', '.join(sorted(trained)[:20])}); give a corpus with the same labels"
        )
    return []


def read_encoder_flags(path: str) -> list[str]:
    """Print the flags of a fine-tuning that keeps the attention of its pre-trained encoder.

    These are the flags that differ from the presets of the architecture. One stands in a line, with
    its value after "="; the last two lines are --arch and an architecture without a size.
    Adversaries are left out: a fine-tuning has its own or none.

    Raises:
        UsageError: there is no such checkpoint, or it cannot be read.
    """
    from fairseq_ext.attention.presets import PRESETS
    from fairseq_ext.models.options import DEFAULTS, ENCODER_OPTIONS
    from fairseq_ext.models.pretrained import saved_options
    from fairseq_ext.safe_loading import read_checkpoint

    options = saved_options(read_checkpoint(Path(path)))
    family, *words = (options.get("_name") or options.get("arch") or "").split("_")
    mechanism = words[0] if family == "roberta" and words[:1] in (["dna"], ["hna"]) else "una"
    preset = DEFAULTS | PRESETS["roberta"][mechanism]
    flags = []
    for name, *_ in ENCODER_OPTIONS:
        value, flag = options.get(name, preset[name]), "--" + name.replace("_", "-")
        if str(value) != str(preset[name]) and not name.startswith(UNLIKE + TAKEN_OVER):
            flags.append(flag if value is True else f"{flag}={value}")
    return [*flags, "--arch", f"roberta_{mechanism}"]


def read_period_ids(encoder: str) -> list[str]:
    """Print the ids of the tokens of a byte-level BPE that are a period, for --ag-period.

    Raises:
        UsageError: the file is no JSON object.
    """
    ids = None
    check_regular(Path(encoder), MOST_BYTES)
    with suppress(OSError, ValueError, RecursionError):
        ids = json.loads(Path(encoder).read_text("utf-8"))
    if not isinstance(ids, dict):
        raise UsageError(f"{encoder} holds no JSON object; give DATA/bpe/encoder.json")
    return [" ".join(str(ids[period]) for period in PERIODS if period in ids)]


def compare_times(runs: Sequence[str]) -> Iterator[str]:
    """Print the training times of task-specific attention, as Jia 2024 compares them.

    A run is a folder CORPUS/MODE/VARIANT/seed-N. Printed are the seconds of each variant, summed
    over corpora and seeds, and their ratio to the variant `mean`. A variant that lacks a training
    which others have is left out, since its sum would not compare; a line says which one it lacks.
    """
    folders = list(map(Path, runs))
    for run in folders:
        if len(run.parts) < 4:
            raise UsageError(f"{run} is no folder CORPUS/MODE/VARIANT/seed-N of a run; give one")
    return summarise_times((run, read_facts(run / CHECKPOINT).seconds) for run in folders)


def summarise_times(seconds: Iterable[tuple[Path, float]]) -> Iterator[str]:
    """Yield a line for each mode and variant, from runs with the seconds of their training."""
    modes: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for run, duration in seconds:
        corpus, mode, variant, repetition = run.parts[-4:]
        modes[mode][variant][f"{corpus}/{repetition}"] = duration
    for mode, variants in modes.items():
        trainings = list(dict.fromkeys(chain.from_iterable(variants.values())))
        corpora = ", ".join(dict.fromkeys(name.partition("/")[0] for name in trainings))
        lacks = {
            name: [training for training in trainings if training not in times]
            for name, times in variants.items()
        }
        totals = {name: sum(variants[name].values()) for name in variants if not lacks[name]}
        for name in variants:
            if name not in totals:
                yield f"{mode} {name}: left out, without {', '.join(lacks[name])}"
                continue
            ratio = f", {totals[name] / totals[BASELINE]:.3f} of mean" if BASELINE in totals else ""
            yield f"{mode} {name}: {totals[name]:,.0f} s of training over {corpora}{ratio}"


STEPS: dict[str, tuple[Callable, str | tuple[str, ...], str | int | None]] = {
    "dry-run": (check_variants, "DATA NAME='FLAGS'... -- FLAG...", argparse.REMAINDER),
    "check-references": (check_references, "PREFIX", None),
    "check-labels": (check_labels, ("TASK", "TRAIN.jsonl", "OTHER.jsonl"), 3),
    "encoder-flags": (read_encoder_flags, "CHECKPOINT", None),
    "period-ids": (read_period_ids, "ENCODER.JSON", None),
    "training-times": (compare_times, "RUN", "+"),
    "converged": (count_converged, "RUN", "+"),
}
"""The function of each step, which says what it is, and the name and number of its words."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a step, and print its lines."""
    plain_errors()
    guard_standard_output()
    kept = argparse.RawDescriptionHelpFormatter  # its lines
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=kept)
    steps = parser.add_subparsers(required=True, metavar="STEP")
    for name, (run, metavar, nargs) in STEPS.items():
        step = steps.add_parser(name, help=(run.__doc__ or "").partition("\n")[0])
        step.add_argument("words", metavar=metavar, nargs=nargs)
        step.set_defaults(run=run)
    args = parser.parse_args(arguments)
    logging.disable()  # fairseq logs packages that it does without, and every dictionary
    try:
        for line in args.run(args.words):
            print(line)
    finally:
        logging.disable(logging.NOTSET)


if __name__ == "__main__":
    main()
