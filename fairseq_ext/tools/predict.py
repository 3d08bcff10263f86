"""What a fine-tuned model says of new text.

Text is read line by line from files or standard input, as it is asked by the model's task: a
sentence, or two parted by a tab; words parted by spaces; passage, question and choices parted by
tabs; passage and question parted by a tab. With --examples lines are JSON objects as in the task's
train.jsonl. What is printed is, parted by tabs, the label, score, tags or answer, and its
probability if it has one; with --json an object with all probabilities, or entities.
"""

import argparse
import json
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from tqdm import tqdm

from fairseq_ext.data.examples import Example, Values, parse
from fairseq_ext.errors import UsageError
from fairseq_ext.files import decode_line, read_lines, write_lines
from fairseq_ext.models.pretrained import read_model_options
from fairseq_ext.models.role_heads import roles_with_parses
from fairseq_ext.tasks.labelled_task import LabelledTask
from fairseq_ext.tasks.multiple_choice import MultipleChoiceTask
from fairseq_ext.tasks.sentences import SentenceTask
from fairseq_ext.tasks.sequence_tagging import SequenceTaggingTask
from fairseq_ext.tasks.span_extraction import SpanExtractionTask

EXAMPLE = """\
  fairseq-ext predict checkpoints/sst-2/checkpoint_best.pt --json --input new.txt
  fairseq-ext predict checkpoints/ner/checkpoint_best.pt --input new.txt --output tagged.txt"""

SORTED = 32  # batches whose lines are sorted by length before they are batched


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT")
    parser.add_argument(
        "--input",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="default: standard input",
    )
    parser.add_argument("--json", action="store_true", help="print JSON objects, one a line")
    parser.add_argument("--examples", action="store_true", help="read JSON objects, one a line")
    parser.add_argument("--output", type=Path, metavar="FILE", help="default: standard output")
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="default: 32")
    parser.add_argument("--strict", action="store_true", help="refuse what is too long")
    parser.add_argument("--cpu", action="store_true", help="do not use a GPU")


def run(given: argparse.Namespace) -> None:
    if given.batch_size < 1:
        raise UsageError(f"--batch-size is {given.batch_size} and must be at least 1")
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    device = torch.device("cuda" if torch.cuda.is_available() and not given.cpu else "cpu")
    model, task = load(given.checkpoint)
    task.cfg.strict = given.strict
    model.to(device)
    read = parse_json if given.examples else parse_text
    examples = progress(given.input, read(task, lines(given.input)))
    say = json_line if given.json else text_line
    answers = predict(model, task, examples, given.batch_size, device)
    write(given.output, (say(answer) for answer in answers))


def load(checkpoint: Path) -> tuple[Any, LabelledTask]:
    """A fine-tuned model and its task, from the checkpoint alone."""
    if not checkpoint.is_file():
        raise UsageError(f"there is no checkpoint {checkpoint}; give one of fairseq-train")
    check_unparsed(checkpoint)
    (model,), _, task = load_model_ensemble_and_task([str(checkpoint)])
    if not isinstance(task, LabelledTask):
        raise UsageError(
            f"{checkpoint} was trained for --task {task.cfg._name}, which has no labels; give a "
            "checkpoint of fine-tuning"
        )
    return model.eval(), task


def check_unparsed(checkpoint: Path) -> None:
    """Raise UsageError if its model needs what new text does not have."""
    if parsed := roles_with_parses(read_model_options(str(checkpoint))):
        raise UsageError(
            f"{checkpoint} was trained with roles that need parses ({', '.join(parsed)}), which "
            "new text does not have; validate it on an annotated split with fairseq-validate, or "
            "train one with --encoder-roles rare,separator,relative"
        )


def lines(files: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """Each line with where it stands."""
    if not files:
        for number, line in enumerate(sys.stdin.buffer, 1):
            where = f"standard input:{number}"
            yield decode_line(line, where).rstrip("\r\n"), where
    for file in files:
        for number, line in enumerate(read_lines(file), 1):
            yield line, f"{file}:{number}"


def progress(files: Sequence[Path], examples: Iterable[Example]) -> Iterable[Example]:
    """With a bar, if files say how much there is; what is no file can be read only once."""
    if not (files and all(file.is_file() for file in files)):
        return examples
    total = sum(1 for file in files for _ in read_lines(file))
    return tqdm(examples, "predicting", total, unit=" examples")


def parse_json(task: LabelledTask, given: Iterable[tuple[str, str]]) -> Iterator[Example]:
    asked = {key: field for key, field in task.fields.items() if not field.target}
    for line, where in given:
        name, _, number = where.rpartition(":")
        for example in parse([line], name, asked, first=int(number)):
            yield example._replace(values={k: x for k, x in example.values.items() if k in asked})


def parse_text(task: LabelledTask, given: Iterable[tuple[str, str]]) -> Iterator[Example]:
    kind = next(kind for kind in COLUMNS if isinstance(task, kind))
    columns, says = COLUMNS[kind]
    for line, where in given:
        parts = line.split("\t")
        try:
            values = columns(parts)
        except (TypeError, ValueError):
            raise UsageError(
                f"{where} has {len(parts)} columns; give {says}, parted by tabs"
            ) from None
        yield Example(values, where)


def _sentences(parts: list[str]) -> Values:
    text, *pair = parts
    if len(pair) > 1:
        raise ValueError
    return {"text": text, **({"pair": pair[0]} if pair else {})}


def _words(parts: list[str]) -> Values:
    (text,) = parts
    return {"words": text.split(" ")}


def _choices(parts: list[str]) -> Values:
    text, question, *choices = parts
    return {"text": text, "question": question, "choices": choices}


def _question(parts: list[str]) -> Values:
    text, question = parts
    return {"text": text, "question": question}


COLUMNS = {
    SentenceTask: (_sentences, "one or two sentences"),
    SequenceTaggingTask: (_words, "one column of words parted by spaces"),
    MultipleChoiceTask: (_choices, "passage, question (maybe empty) and choices"),
    SpanExtractionTask: (_question, "passage and question"),
}
"""What the columns of a line are, by task."""


def predict(
    model: Any, task: LabelledTask, examples: Iterable[Example], size: int, device: Any
) -> Iterator[dict[str, Any]]:
    """Answers in the order of the examples, `size` at a time in batches of like length; at the
    end it says on standard error how many were not read whole."""
    examples, count, rows = iter(examples), 0, task.rows()
    while chunk := list(islice(examples, size * SORTED)):
        count += len(chunk)
        dataset = task.dataset_of(chunk, rows)
        order = sorted(range(len(chunk)), key=dataset.size)
        found: dict[int, dict[str, Any]] = {}
        for first in range(0, len(order), size):
            places = order[first : first + size]
            batch = dataset.collater([dataset[place] for place in places])
            found |= zip(places, answers(model, task, batch, device), strict=True)
        yield from (found[place] for place in range(len(chunk)))
    if rows.lost:
        print(rows.report(count), file=sys.stderr)


def answers(
    model: Any, task: LabelledTask, batch: Mapping[str, Any], device: Any
) -> list[dict[str, Any]]:
    inputs = utils.apply_to_sample(lambda tensor: tensor.to(device), batch["net_input"])
    with torch.no_grad():
        scores, _ = model(**inputs, task_head=True)
    return task.answers(scores, batch)


def json_line(answer: Mapping[str, Any]) -> str:
    return json.dumps(answer, ensure_ascii=False)


def text_line(answer: Mapping[str, Any]) -> str:
    said = next(answer[key] for key in ("answer", "tags", "label", "score") if key in answer)
    if isinstance(said, list):
        said = " ".join(said)
    elif isinstance(said, float):
        said = f"{said:.4f}"
    shares = [f"{answer['probability']:.4f}"] if "probability" in answer else []
    return "\t".join([" ".join(str(said).split()), *shares])


def write(output: Path | None, said: Iterable[str]) -> None:
    """To standard output line by line, or to a file, which gets its name when it is complete."""
    if output is None:
        try:
            for line in said:
                print(line, flush=True)
        except BrokenPipeError:  # whoever reads has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    if not output.parent.is_dir() or output.is_dir():
        raise UsageError(f"--output is {output}, which cannot be a file; give one in a folder")
    write_lines(output, said)
