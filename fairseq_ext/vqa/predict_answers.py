"""Answers to the questions of a prepared split, as the evaluation server of VQA takes them."""

import json
from argparse import Namespace
from collections.abc import Iterator

import torch
from fairseq import utils
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from tqdm import tqdm

from fairseq_ext.errors import UsageError

OF_TEXT = ("input", "json", "examples", "right", "strict")
"""Arguments of `fairseq-ext predict` that have no meaning for questions about pictures."""


def predict_lines(args: Namespace, device: torch.device) -> Iterator[str]:
    """Yield the lines of a JSON list of {"question_id": 1, "answer": "red"}, in the split's order.

    Raises:
        UsageError: there is no split to answer, or an argument has no meaning.
    """
    if args.split is None:
        raise UsageError(
            f"{args.checkpoint} answers questions about pictures; give --split, such as test, and "
            "--data, unless the data lie where they were in training"
        )
    if given := [f"--{name}" for name in OF_TEXT if getattr(args, name)]:
        raise UsageError(
            f"{given[0]} is for models of text, and {args.checkpoint} answers the questions of a "
            "split, as JSON; leave it out"
        )
    overrides = {} if args.data is None else {"data": str(args.data)}
    (model,), _, task = load_model_ensemble_and_task([str(args.checkpoint)], overrides)
    model.eval().to(device)
    dataset = task.read_split(args.split, annotated=False)
    yield "["
    with tqdm(total=len(dataset), desc="predicting", unit=" questions") as bar:
        for first in range(0, len(dataset), args.batch_size):
            places = list(range(first, min(first + args.batch_size, len(dataset))))
            batch = dataset.collater(places)
            inputs = utils.apply_to_sample(lambda tensor: tensor.to(device), batch["net_input"])
            with torch.no_grad():
                best = model(**inputs)[0].argmax(1).tolist()
            for place, number, answer in zip(places, batch["question_ids"], best, strict=True):
                result = {"question_id": number, "answer": task.answers[answer]}
                comma = "," if place + 1 < len(dataset) else ""
                yield json.dumps(result, ensure_ascii=False) + comma
            bar.update(len(places))
    yield "]"
