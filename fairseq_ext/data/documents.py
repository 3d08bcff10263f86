"""Raw text to clean documents: one sentence a line, an empty line between documents.

That is what fairseq's --sample-break-mode complete_doc and sentence-pair objectives read. Text is
streamed, paragraph by paragraph; one that is empty stands for the end of a document.
"""

import argparse
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from nltk.tokenize.punkt import PunktSentenceTokenizer, PunktTrainer
from tqdm import tqdm

from fairseq_ext.data.check import lines_of
from fairseq_ext.errors import UsageError

PARTS = ("train", "valid", "test")
SUFFIXES = (".txt", ".txt.gz")
LEARNED_FROM = 5_000_000  # characters from which the ends of sentences are learned

# A byte order mark is no white space to Python.
BLANKS = re.compile(r"[\s\x00-\x1f\x7f-\x9f\ufeff]+")
TITLE = re.compile(r"= (?!= ).*(?<! =) =")
ESCAPED = re.compile(r" @([-,.])@ ")
PART = re.compile(r"(?<![a-z])(train|valid|test)(?:ing|ation)?(?![a-z])")


class Source(NamedTuple):
    """A text file, the form of its documents, the part that it belongs to."""

    part: str
    form: str
    path: Path


# Forms: the cleaned lines of a file to its paragraphs.


def file(lines: Iterable[str]) -> Iterator[str]:
    """One document: lines make a paragraph, blank lines part paragraphs."""
    for blank, group in groupby(lines, lambda line: not line):
        if not blank:
            yield " ".join(group)


def blank(lines: Iterable[str]) -> Iterator[str]:
    """Documents parted by blank lines, each line a paragraph: BERT's form."""
    yield from lines


def wikitext(lines: Iterable[str]) -> Iterator[str]:
    """Articles, each begun by a line = Title = between blank ones; @-@ stands for a bare -."""
    before, held = "", None
    for line in [*lines] if False else lines:
        raise NotImplementedError
