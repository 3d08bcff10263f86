"""Questions about pictures, of SPLIT.jsonl as scripts/prepare_vqa.sh writes it, in flat arrays.

The 658,111 questions on which models of VQA-v2 are trained take 100 MB so, and not gigabytes.
"""

import logging
import re
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from fairseq.data import Dictionary

from fairseq_ext.data.examples import TEXT, Field, is_number, is_text, parse
from fairseq_ext.errors import UsageError
from fairseq_ext.files import numbered_lines, read_lines

logger = logging.getLogger(__name__)

AGAIN = "prepare the data with scripts/prepare_vqa.sh"
NO_KIND = ""  # of a question without "answer_type"


def _is_whole(value: Any) -> bool:
    return type(value) is int and abs(value) < 2**63


def _are_shares(value: Any) -> bool:
    return isinstance(value, dict) and all(is_number(x) and 0 <= x <= 1 for x in value.values())


FIELDS = {
    "question_id": Field("a whole number", _is_whole),
    "image_id": Field("a whole number", _is_whole),
    "question": Field("words", lambda value: is_text(value) and bool(value.split())),
    "answers": Field('answers with their accuracy, as in {"red": 1.0}', _are_shares, needed=False),
    "answer_type": TEXT._replace(needed=False),
}
"""Keys of a line."""


@dataclass
class Lists:
    """Lists of numbers, one after the other in one array.

    Attributes:
        values: "i" or "d", all numbers.
        starts: where each list begins, and the end of the last one.
    """

    values: array
    starts: array = field(default_factory=lambda: array("q", [0]))

    def append(self, numbers: Any) -> None:
        """Append a list."""
        self.values.extend(numbers)
        self.starts.append(len(self.values))

    def __getitem__(self, index: int) -> np.ndarray:
        """Return a list, as an array [n]."""
        return np.asarray(self.values)[self.starts[index] : self.starts[index + 1]]


class Questions:
    """The questions of a split.

    Args:
        path: SPLIT.jsonl.
        words: the dictionary of questions.
        answers: the number of each answer that a model may give.
        max_words: words that are read of a question; the rest is not.
        annotated: questions without "answers" are refused.

    Attributes:
        numbers: [Q] int64 "question_id".
        pictures: [Q] int64 "image_id".
        words: the symbols of each question.
        answers, shares: the answers of each question that a model may give, and their accuracy.
        kinds: [Q] uint8, places in `kind_names`.
        kind_names: the values of "answer_type".
        annotated: all questions have "answers".

    Raises:
        UsageError: a line is no question, or a question comes twice.
    """

    def __init__(
        self,
        path: Path,
        words: Dictionary,
        answers: Mapping[str, int],
        *,
        max_words: int,
        annotated: bool,
    ) -> None:
        if not path.is_file():
            raise UsageError(f"{path} is not there; {AGAIN}")
        self.path = path
        self.words, self.answers = Lists(array("i")), Lists(array("i"))
        self.shares = Lists(array("d"))
        self.kind_names: list[str] = []
        self.annotated, shortened, outside = True, 0, 0
        numbers, pictures, kinds = array("q"), array("q"), array("B")
        for example in parse(numbered_lines(path), FIELDS):
            question = example.values
            text = question["question"].split()
            shortened += len(text) > max_words
            self.words.append(map(words.index, text[:max_words]))
            shares = self._read_shares(question, answers, annotated, example.where)
            outside += not shares
            self.answers.append(shares.keys())
            self.shares.append(shares.values())
            numbers.append(question["question_id"])
            pictures.append(question["image_id"])
            kinds.append(self._find_kind(question.get("answer_type", NO_KIND), example.where))
        self.numbers, self.pictures, self.kinds = map(np.asarray, (numbers, pictures, kinds))
        self._check()
        if shortened:
            self._report(shortened, f"have more than {max_words} words and lose their end")
        if self.annotated and outside:
            self._report(outside, "have no answer that a model may give")

    def __len__(self) -> int:
        return len(self.numbers)

    def _read_shares(
        self, question: Mapping[str, Any], answers: Mapping[str, int], needed: bool, where: str
    ) -> dict[int, float]:
        """Return the accuracy of answers, by their numbers; raise UsageError if there are none."""
        if "answers" not in question:
            if needed:
                raise UsageError(
                    f"{where} has no 'answers', which training and validation need; prepare the "
                    "split with its annotations, or use fairseq-ext predict"
                )
            self.annotated = False
        given = question.get("answers", {})
        return {
            answers[name]: float(given[name]) for name in given if answers.get(name) is not None
        }

    def _find_kind(self, name: str, where: str) -> int:
        if name not in self.kind_names:
            if len(self.kind_names) == 256:
                raise UsageError(f"{where} has the 257th 'answer_type'; give 256 at most")
            self.kind_names.append(name)
        return self.kind_names.index(name)

    def _check(self) -> None:
        if not len(self):
            raise UsageError(f"{self.path} is empty; {AGAIN}")
        ids, counts = np.unique(self.numbers, return_counts=True)
        if len(ids) < len(self):
            twice = ids[counts > 1][0]
            raise UsageError(f"{self.path} has question {twice} twice; leave one of the two out")
        if self.annotated and not len(self.answers.values):
            raise UsageError(
                f"no question of {self.path} has an answer of answers.txt; {AGAIN}, both at once"
            )

    def _report(self, count: int, what: str) -> None:
        share = 100 * count / len(self)
        logger.info("%s: %d of %d questions (%.1f%%) %s", self.path, count, len(self), share, what)


def name_kind(kind: str) -> str:
    """Return a value of "answer_type" as a part of a metric's name: "yes/no" is "yes_no"."""
    return re.sub(r"\W+", "_", kind.lower()).strip("_")


def read_names(path: Path) -> list[str]:
    """Return the lines of a file; raise UsageError if it is missing, empty, or has one twice."""
    if not path.is_file():
        raise UsageError(f"{path} is not there; {AGAIN}")
    names = list(read_lines(path))
    if not names:
        raise UsageError(f"{path} is empty; {AGAIN}")
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise UsageError(f"{path} has '{name}' {count} times; {AGAIN}")
    return names
