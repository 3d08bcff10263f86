"""Heads of fine-tuning in the form of Hugging Face: …ForSequenceClassification and others."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from fairseq_ext.interchange.hf_deberta import FIRST_VERSION, KINDS

LINEAR = {"sequence_tagging": "TokenClassification", "span_extraction": "QuestionAnswering"}
"""Task whose head is one linear map -> the end of a class's name there."""

POOLED = {
    "sentence_classification": "SequenceClassification",
    "sentence_regression": "SequenceClassification",
    "multiple_choice": "MultipleChoice",
}
"""Task whose head reads the first token through two linear maps -> the same."""

PREFIX = "task_head."
UNANSWERED = "the score of task_head.out_proj that tells whether there is an answer"


class Head(NamedTuple):
    """A head as Hugging Face has it.

    Attributes:
        architecture: the end of the class's name, as in ForTokenClassification.
        config: its settings.
        tensors: its parameters by their whole names there.
        used: the names of its parameters here.
        left_out: what has no place there.
    """

    architecture: str
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    used: set[str]
    left_out: list[str]


def convert_head(
    kind: str,
    task: Mapping[str, Any],
    labels: list[str],
    model: Mapping[str, Any],
    parameters: Mapping[str, Tensor],
) -> Head | None:
    """Return the head of a checkpoint, or None if it has none or transformers has not its like.

    Args:
        kind: the kind of the encoder there.
        task: the options of the task.
        labels: the names of the classes.
        model: the options of the model.
        parameters: all parameters of the checkpoint.
    """
    own = {n.removeprefix(PREFIX): x for n, x in parameters.items() if n.startswith(PREFIX)}
    name = str(task.get("_name"))
    shapes = {"output.dense.weight", "output.dense.bias"}
    shapes |= {"output.out_proj.weight", "output.out_proj.bias"}
    activation = model.get("pooler_activation_fn") or "tanh"
    if name in LINEAR and own.keys() == {"out_proj.weight", "out_proj.bias"}:
        tensors, suffix = _convert_linear(name, own), LINEAR[name]
    elif name in POOLED and own.keys() == shapes and _reads_first(task) and activation == "tanh":
        suffix = POOLED[name]
        if kind == FIRST_VERSION and suffix == "MultipleChoice":
            return None
        tensors = _convert_pooled(kind, suffix, own)
    else:
        return None
    config = _name_labels(name, labels)
    if kind in KINDS:
        config |= {"pooler_hidden_act": "tanh", "pooler_dropout": model.get("pooler_dropout") or 0}
    left_out = [UNANSWERED] if name == "span_extraction" else []
    return Head(f"For{suffix}", config, tensors, {PREFIX + each for each in own}, left_out)


def _name_labels(task: str, labels: list[str]) -> dict[str, Any]:
    """Return what config.json says of classes; none if these are places or rows."""
    if task in ("span_extraction", "multiple_choice"):
        return {}
    regression = {"problem_type": "regression"} if task == "sentence_regression" else {}
    names = labels or ["score"]
    numbers = {name: number for number, name in enumerate(names)}
    return {"id2label": dict(enumerate(names)), "label2id": numbers, **regression}


def _reads_first(task: Mapping[str, Any]) -> bool:
    """Return whether a head reads the first token of one row."""
    apart = task.get("pairs") == "apart"
    return task.get("pooling", "first") == "first" and not apart


def _convert_linear(task: str, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a linear map; the third score of spans, whether there is an answer, is left out."""
    module, rows = ("qa_outputs", 2) if task == "span_extraction" else ("classifier", None)
    return {f"{module}.{part}": own[f"out_proj.{part}"][:rows] for part in ("weight", "bias")}


def _convert_pooled(kind: str, suffix: str, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return two linear maps, of which the first is the pooler but in RoBERTa's classifier."""
    dense, output = f"{kind}.pooler.dense", "classifier"
    if kind in KINDS:
        dense = "pooler.dense"
    elif kind == "roberta" and suffix == "SequenceClassification":
        dense, output = "classifier.dense", "classifier.out_proj"
    return {
        f"{theirs}.{part}": own[f"output.{ours}.{part}"]
        for theirs, ours in ((dense, "dense"), (output, "out_proj"))
        for part in ("weight", "bias")
    }
