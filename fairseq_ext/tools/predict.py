"""Predict labels, scores, tags or answers with a fine-tuned model.

Text is read line by line from files or standard input. Each line holds what the model's task
needs: a sentence, or two separated by a tab; words separated by spaces; passage, question and
choices separated by tabs; passage and question separated by a tab. With --examples, lines are JSON
objects as in the task's train.jsonl. Each line of the output holds, separated by a tab, the label,
score, tags or answer, and its probability if it has one; with --json an object with all
probabilities, or entities; --right adds the answers that examples have, for `fairseq-ext table`.

A model of --task vqa answers the questions of a prepared split instead, SPLIT.jsonl of its data. It
writes the JSON list that VQA's evaluation server takes: [{"question_id": 1, "answer": "red"}, ...].

Example:
  fairseq-ext predict checkpoints/sst-2/checkpoint_best.pt --json --input new.txt
  fairseq-ext predict checkpoints/ner/checkpoint_best.pt --input new.txt --output tagged.txt
  fairseq-ext predict checkpoints/vqa/checkpoint_best.pt --split test --output results.json
"""

import argparse
import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from tqdm import tqdm

from fairseq_ext.data.examples import Example, parse
from fairseq_ext.errors import UsageError
from fairseq_ext.files import (
    batched,
    check_place,
    decode_lines,
    numbered_lines,
    read_lines,
    write_lines,
)
from fairseq_ext.models.pretrained import read_task_name, saved_options
from fairseq_ext.models.role_options import roles_with_parses
from fairseq_ext.safe_loading import read_checkpoint
from fairseq_ext.tasks.labelled_task import LabelledTask
from fairseq_ext.tasks.text_columns import Lines, parse_text

SORTED = 32  # batches whose lines are sorted by length before they are batched

SPLIT_PREDICTORS: dict[str, Callable[[argparse.Namespace, torch.device], Iterator[str]]] = {}
"""Functions that answer a prepared split instead of text, by the name of the task.

A room above this one adds its own. They yield the lines of the output."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fairseq-ext predict`."""
    add, default = parser.add_argument, "default: standard input"
    add("checkpoint", type=Path, metavar="CHECKPOINT")
    add("--input", type=Path, nargs="+", default=[], metavar="FILE", help=default)
    add("--json", action="store_true", help="print JSON objects, one a line")
    add("--examples", action="store_true", help="read JSON objects, one a line")
    add("--right", action="store_true", help="with --examples --json: add the right answers")
    add("--output", type=Path, metavar="FILE", help="default: standard output")
    add("--batch-size", type=int, default=32, metavar="N", help="default: 32")
    add("--split", metavar="SPLIT", help="of questions about pictures")
    add("--data", type=Path, metavar="DATA", help="with SPLIT; default: what the checkpoint names")
    add("--strict", action="store_true", help="refuse what is too long")
    add("--cpu", action="store_true", help="do not use a GPU")


def run(args: argparse.Namespace) -> None:
    """Write an answer for each line."""
    if not 1 <= args.batch_size <= sys.maxsize:
        raise UsageError(
            f"--batch-size is {args.batch_size} and must be at least 1 and at most {sys.maxsize}"
        )
    if args.output:
        check_place(args.output, "--output")
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    device = torch.device("cuda" if torch.cuda.is_available() and not args.cpu else "cpu")
    if predict_split := SPLIT_PREDICTORS.get(read_task_name(args.checkpoint) or ""):
        write_answers(args.output, predict_split(args, device))
        return
    if args.split is not None or args.data is not None:
        raise UsageError(
            f"--split and --data are of questions about pictures, and {args.checkpoint} reads "
            "text; leave them out"
        )
    if args.right and not (args.examples and args.json):
        raise UsageError("--right adds to JSON objects what examples say; give --examples --json")
    model, task = load_model(args.checkpoint)
    task.cfg.strict = args.strict
    model.to(device)
    parse_lines = partial(parse_json, right=args.right) if args.examples else parse_text
    examples = show_progress(args.input, parse_lines(task, read_input(args.input)))
    format_answer = partial(json.dumps, ensure_ascii=False) if args.json else format_text
    answers = predict(model, task, examples, args.batch_size, device)
    write_answers(args.output, map(format_answer, answers))


def load_model(checkpoint: Path) -> tuple[Any, LabelledTask]:
    """Return a fine-tuned model and its task, from the checkpoint alone.

    Raises:
        UsageError: there is no such model, or it needs parses, which new text does not have.
    """
    if parsed := roles_with_parses(saved_options(read_checkpoint(checkpoint))):
        raise UsageError(
            f"{checkpoint} was trained with roles that need parses ({', '.join(parsed)}), which "
            "new text does not have; validate it on an annotated split with fairseq-validate, or "
            "train one with --encoder-roles rare,separator,relative"
        )
    (model,), _, task = load_model_ensemble_and_task([str(checkpoint)])
    if not isinstance(task, LabelledTask):
        raise UsageError(
            f"{checkpoint} is of --task {task.cfg._name}, without labels; give one of fine-tuning"
        )
    return model.eval(), task


def read_input(files: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """Yield each line of the files, or of standard input, after its place."""
    if not files:
        for number, line in enumerate(decode_lines(sys.stdin.buffer, "standard input"), 1):
            yield f"standard input:{number}", line
    for file in files:
        yield from numbered_lines(file)


def show_progress(files: Sequence[Path], examples: Iterable[Example]) -> Iterable[Example]:
    """Return the examples with a progress bar, if the input can be read twice to count them."""
    if not (files and all(file.is_file() for file in files)):
        return examples
    total = sum(1 for file in files for _ in read_lines(file))
    return tqdm(examples, "predicting", total, unit=" examples")


def parse_json(task: LabelledTask, lines: Lines, right: bool = False) -> Iterator[Example]:
    """Yield the examples in lines of JSON, without their labels unless `right` answers count."""
    fields = {key: field for key, field in task.fields.items() if right or not field.target}
    for example in parse(lines, fields):
        values = {key: value for key, value in example.values.items() if key in fields}
        yield example._replace(values=values)


def predict(
    model: Any, task: LabelledTask, examples: Iterable[Example], size: int, device: torch.device
) -> Iterator[dict[str, Any]]:
    """Yield answers in the order of the examples.

    Examples of similar length are batched, `size` at a time. At the end, the number of examples
    that were shortened is printed on standard error.
    """
    count, rows = 0, task.build_rows()
    for chunk in batched(examples, min(size * SORTED, sys.maxsize)):
        count += len(chunk)
        dataset = task.build_dataset(chunk, rows)
        order = sorted(range(len(chunk)), key=dataset.size)
        answers: dict[int, dict[str, Any]] = {}
        for first in range(0, len(order), size):
            places = order[first : first + size]
            batch = dataset.collater([dataset[place] for place in places])
            answers |= zip(places, answer_batch(model, task, batch, device), strict=True)
        yield from (answers[place] | read_right(task, each) for place, each in enumerate(chunk))
    if rows.lost:
        print(rows.report(count), file=sys.stderr)


def read_right(task: LabelledTask, example: Example) -> dict[str, Any]:
    """Return the right answer of an example under "right", nothing if it has none."""
    targets = [key for key, field in task.fields.items() if field.target and key in example.values]
    return {"right": example.values[targets[0]]} if targets else {}


def answer_batch(
    model: Any, task: LabelledTask, batch: Mapping[str, Any], device: torch.device
) -> list[dict[str, Any]]:
    """Return the model's answer to each example of a batch."""
    inputs = utils.apply_to_sample(lambda tensor: tensor.to(device), batch["net_input"])
    with torch.no_grad():
        scores, _ = model(**inputs, task_head=True)
    return task.read_answers(scores, batch)


def format_text(answer: Mapping[str, Any]) -> str:
    """Return an answer as text, with its probability behind a tab."""
    value = next(answer[key] for key in ("answer", "tags", "label", "score") if key in answer)
    if isinstance(value, list):
        value = " ".join(value)
    elif isinstance(value, float):
        value = f"{value:.4f}"
    columns = [" ".join(str(value).split())]
    if "probability" in answer:
        columns.append(f"{answer['probability']:.4f}")
    return "\t".join(columns)


def write_answers(output: Path | None, lines: Iterable[str]) -> None:
    """Write lines to standard output as they come, or to a file that appears when complete."""
    if output is None:
        for line in lines:
            print(line, flush=True)
        return
    write_lines(output, lines)
