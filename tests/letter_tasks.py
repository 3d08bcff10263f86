"""Tasks of fine-tuning on examples whose words are the letters a to h, and models for them."""

from argparse import Namespace
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import nn

from fairseq_ext.criterions.labelled import (
    MultipleChoice,
    SentenceClassification,
    SentenceRegression,
)
from fairseq_ext.criterions.tokens_and_spans import SequenceTagging, SpanExtraction
from fairseq_ext.data.examples import Example
from fairseq_ext.data.tokenisers import SYMBOLS
from fairseq_ext.data.vocabulary import Vocabulary
from fairseq_ext.tasks.multiple_choice import MultipleChoiceTask
from fairseq_ext.tasks.sentences import SentenceClassificationTask, SentenceRegressionTask
from fairseq_ext.tasks.sequence_tagging import SequenceTaggingTask
from fairseq_ext.tasks.span_extraction import SpanExtractionTask

OF = {
    SentenceClassificationTask: SentenceClassification,
    SentenceRegressionTask: SentenceRegression,
    MultipleChoiceTask: MultipleChoice,
    SequenceTaggingTask: SequenceTagging,
    SpanExtractionTask: SpanExtraction,
}


def vocabulary(words):
    """Return a tokeniser to whom words are pieces."""
    dictionary = Dictionary()
    for word in ("<mask>", *words):
        dictionary.add_symbol(word)
    numbers = {symbol: i for i, symbol in enumerate((*SYMBOLS, *words))}
    tokenizer = Tokenizer(WordLevel(numbers, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return Vocabulary(tokenizer, dictionary, by_id=False)


def task_of(kind, words, labels=(), room=64, **cfg):
    """Return a task as it is after `begin`."""
    names = {criterion.name: task for task, criterion in OF.items()}
    name = next(name for name, task in names.items() if task is kind)
    given = {"_name": name, "seed": 1, "strict": False, "pairs": "joint", "folds": 0, "fold": 1}
    task = kind(Namespace(**given | {"pretrained": None} | cfg))
    task.vocabulary, task.labels, task.room = vocabulary(words), list(labels), room
    return task


def batches(task, examples, sizes=()):
    """Make batches of these sizes of examples, or one."""
    wrapped = [Example(values, f"here:{i}") for i, values in enumerate(examples, 1)]
    dataset = task.build_dataset(wrapped, task.build_rows())
    ends = np.cumsum([0, *(sizes or [len(examples)])])
    return [dataset.collater([dataset[i] for i in range(*ends)]) for ends in pairwise(ends)]


class Model(nn.Module):
    """Looks scores of tokens up in a table; of a row it takes their sum, if `per_row`."""

    def __init__(self, table, per_row=False):
        super().__init__()
        self.table, self.per_row = nn.Parameter(table), per_row

    def forward(self, src_tokens, task_head):
        assert task_head
        x = F.embedding(src_tokens, self.table, padding_idx=1)
        if self.per_row:
            return (x * src_tokens.ne(1).unsqueeze(-1)).sum(1), {}
        return x, {}


def random_model(task, outputs, per_row=False):
    torch.manual_seed(4)
    return Model(torch.randn(len(task.source_dictionary), outputs), per_row)


# Examples of each task.

LETTERS = list("abcdefgh")
rng = np.random.default_rng(3)
TEXTS = [" ".join(rng.choice(LETTERS, n)) for n in (3, 1, 5, 2, 4, 4, 2)]
TAGS = ["O", "B-x", "I-x", "B-y"]


def classification(classes=3):
    labels = [str(i) for i in range(classes)]
    task = task_of(SentenceClassificationTask, LETTERS, labels)
    drawn = [2, 0, 1, 0, 2, 1, 1] if classes == 3 else [1, 0, 1, 0, 1, 1, 1]
    examples = [{"text": t, "label": str(n)} for t, n in zip(TEXTS, drawn, strict=True)]
    return task, random_model(task, classes, per_row=True), examples


def regression():
    task = task_of(SentenceRegressionTask, LETTERS)
    ratings = [3.5, 0, 1.25, 5, 2, 2, 4]
    examples = [{"text": t, "label": r} for t, r in zip(TEXTS, ratings, strict=True)]
    return task, random_model(task, 1, per_row=True), examples


def choice():
    task = task_of(MultipleChoiceTask, LETTERS, "012")
    examples = [
        {"text": text, "choices": ["a b", "c", "d e f g"], "label": i % 3}
        for i, text in enumerate(TEXTS)
    ]
    return task, random_model(task, 1, per_row=True), examples


def tagging():
    task = task_of(SequenceTaggingTask, LETTERS, TAGS, tag_scheme="iob2")
    words = [text.split() for text in TEXTS]
    tags = [["O", "B-x", "I-x", "B-y", "O"][: len(each)] for each in words]
    examples = [{"words": w, "tags": t} for w, t in zip(words, tags, strict=True)]
    return task, random_model(task, len(TAGS)), examples


def spans():
    cfg = {"stride": 2, "longest_question": 2, "longest_answer": 3}
    labels = ["answered", "unanswered"]
    task = task_of(SpanExtractionTask, LETTERS, labels, room=9, **cfg)
    examples = [
        {
            "text": f"h {text}",
            "question": "a b",
            "answers": [{"text": text[:3], "start": 2}] if i % 3 else [],
        }
        for i, text in enumerate(TEXTS)
    ]
    return task, random_model(task, 3), examples
