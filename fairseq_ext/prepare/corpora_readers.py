"""Readers of published corpora, from their own formats to examples for fine-tuning.

A reader takes a file and whether its examples must have labels, and yields them. It raises
UsageError for a file of another form, naming the line or question.
"""

import csv
import json
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from fairseq_ext.data import conllu
from fairseq_ext.errors import UsageError
from fairseq_ext.files import read_lines

logger = logging.getLogger(__name__)

Example = dict[str, Any]
Reader = Callable[[Path, bool], Iterator[Example]]
Row = tuple[str, dict[str, Any]]  # "FILE:LINE", and the columns there by their names
Value = Callable[[str, str], Any]  # of a label in a row, and the row's place

HALF = re.compile("[\ud800-\udfff]")
LETTERS = "ABCD"  # of RACE's choices


def numbered_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield "FILE:LINE" and the text of each line."""
    number = 0
    for number, line in enumerate(read_lines(path), 1):
        yield f"{path}:{number}", line
    if not number:
        raise UsageError(f"{path} is empty; get the file again")


def parse_json(text: str, path: Path, first_line: int = 1) -> Any:
    """Return the value of JSON text that begins in a line of a file."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        where = f"{path}:{first_line + error.lineno - 1}"
        raise UsageError(f"{where} is not JSON ({error.msg}); get the file again") from None
    if "\\ud" in text.lower() and HALF.search(json.dumps(value, ensure_ascii=False)):
        raise UsageError(
            f"{path}:{first_line} holds half of a surrogate pair, which is no character; correct it"
        )
    return value


def classes(names: str) -> Value:
    """Return a reader of labels that must be one of some names."""
    return renamed({name: name for name in names.split()})


def renamed(known: dict[str, str]) -> Value:
    """Return a reader of labels that must be one of some names, and get another."""

    def value(given: str, where: str) -> str:
        if given not in known:
            raise UsageError(
                f"{where} has the label '{given}' and it must be one of {', '.join(known)}; "
                "correct the line, or get the file again"
            )
        return known[given]

    return value


def similarity(given: str, where: str) -> float:
    """Return a label that must be a number from 0 to 5."""
    try:
        number = float(given)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 5:
        raise UsageError(
            f"{where} has the label '{given}' and it must be a number from 0 to 5; correct the "
            "line, or get the file again"
        )
    return number


@dataclass(frozen=True)
class Tabs:
    """Reader of columns separated by tabs, below a header.

    Attributes:
        names: names of the columns, for files without a header.
        quoted: columns are quoted as in CSV; otherwise quotation marks are text.
        drops: leave out lines that lack columns instead of refusing them.
        filled: name of a column that must not be empty.
    """

    names: str = ""
    quoted: bool = False
    drops: bool = False
    filled: str = ""

    def __call__(self, path: Path) -> Iterator[Row]:
        """Yield the rows of a file."""
        rows = ((where, self.split(line, where)) for where, line in numbered_lines(path))
        first = next(rows)
        header, headless, dropped = first[1], [], 0
        if self.names and not {*self.names.split()} & {*header}:
            header, headless = self.names.split(), [first]
        for where, columns in chain(headless, rows):
            row = dict(zip(header, columns, strict=False))
            if len(columns) == len(header) and row.get(self.filled, True):
                yield where, row
            elif self.drops:
                dropped += 1
            else:
                raise UsageError(
                    f"{where} has {len(columns)} columns separated by tabs, not {len(header)} "
                    f"({', '.join(header)}); correct the line, or get the file again"
                )
        if dropped:
            logger.warning("%s: %d lines do not have all columns: left out", path, dropped)

    def split(self, line: str, where: str) -> list[str]:
        """Return the columns of a line."""
        if not self.quoted:
            return line.split("\t")
        try:
            return next(csv.reader([line], delimiter="\t", strict=True))
        except csv.Error as error:
            raise UsageError(f"{where} is badly quoted ({error}); get the file again") from None


def label_first(path: Path) -> Iterator[Row]:
    """Yield the rows of a file of lines `LABEL TEXT`."""
    for where, line in numbered_lines(path):
        label, _, text = line.partition(" ")
        yield where, {"label": label, "text": text}


def json_lines(path: Path) -> Iterator[Row]:
    """Yield the rows of a file of JSON objects, one a line."""
    for number, (where, line) in enumerate(numbered_lines(path), 1):
        row = parse_json(line, path, number)
        if not isinstance(row, dict):
            raise UsageError(f"{where} is no JSON object; get the file again")
        yield where, row


def genres(path: Path) -> Iterator[Row]:
    """Yield sentences of a treebank, labelled with the genre that begins their sent_id."""
    for sentence in conllu.read(path):
        genre, text = sentence.name.partition("-")[0], " ".join(sentence.words)
        yield sentence.where, {"label": genre, "text": text}


def column(row: dict[str, Any], name: str, where: str, kind: type = str) -> Any:
    """Return a column of a row; raise UsageError unless it is of this type."""
    if not isinstance(row.get(name), kind):
        raise UsageError(
            f"{where} has no '{name}' that is a {kind.__name__} (it has {', '.join(row)}); "
            "get the file again"
        )
    return row[name]


@dataclass(frozen=True)
class Sentences:
    """Reader of sentences or pairs of them, from named columns of rows.

    Spaces around a sentence are removed.
    """

    rows: Callable[[Path], Iterator[Row]]
    value: Value
    text: str = "text"
    pair: str = ""
    label: str = "label"

    def __call__(self, path: Path, labelled: bool) -> Iterator[Example]:
        """Yield the examples of a file."""
        names = {"text": self.text} | ({"pair": self.pair} if self.pair else {})
        for where, row in self.rows(path):
            example = {key: column(row, name, where).strip(" ") for key, name in names.items()}
            if labelled or self.label in row:
                example["label"] = self.value(column(row, self.label, where), where)
            yield example


def hellaswag(path: Path, labelled: bool) -> Iterator[Example]:
    """Yield examples of HellaSwag; an activity beside the context is put before it."""
    for where, row in json_lines(path):
        text, endings = column(row, "ctx", where), column(row, "endings", where, list)
        if "activity_label" in row:
            text = f"{row['activity_label']}: {text}"
        label = column(row, "label", where, int) if labelled else row.get("label")
        yield choice(where, text, endings, label)


def choice(
    where: str, text: str, choices: list[str], label: int | None, question: str | None = None
) -> Example:
    """Return a multiple-choice example; raise UsageError for a label that is no choice."""
    asked = {} if question is None else {"question": question}
    example = {"text": text, **asked, "choices": choices}
    if label is None:
        return example
    if label not in range(len(choices)):
        raise UsageError(
            f"{where} has a label that is none of its {len(choices)} choices; get the file again"
        )
    return {**example, "label": label}


def tagged(*types: str) -> Reader:
    """Return a reader of lines `WORD<tab>TAG` in IOB; blank lines separate sentences."""
    tag = re.compile(rf"O|[BI]-({'|'.join(map(re.escape, types))})")

    def split(where: str, line: str) -> tuple[str, str]:
        word, *tags = line.split("\t")
        if not (word and len(tags) == 1 and tag.fullmatch(tags[0])):
            raise UsageError(
                f"{where} is {line[:60]!r} and must be a word, a tab and O, B-TYPE or I-TYPE, TYPE "
                f"being one of {', '.join(types)}; correct the line, or get the file again"
            )
        return word, tags[0]

    def read(path: Path, labelled: bool) -> Iterator[Example]:
        for blank, lines in groupby(numbered_lines(path), lambda line: not line[1].strip(" \t")):
            if not blank:
                words, tags = zip(*(split(*line) for line in lines), strict=True)
                yield {"words": list(words), "tags": list(tags)}

    return read


def document(examples: Callable[[Any, Path], Iterator[Example]]) -> Reader:
    """Return the reader of a JSON file from a function that yields its examples."""

    def read(path: Path, labelled: bool) -> Iterator[Example]:
        content = parse_json("\n".join(line for _, line in numbered_lines(path)), path)
        try:
            yield from examples(content, path)
        except UsageError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"{path} does not have the form in which the corpus is published ({error!r}); "
                "get the file again"
            ) from error

    return read


@document
def dream(content: Any, path: Path) -> Iterator[Example]:
    """Yield the questions of DREAM; the turns of a dialogue are joined by a space."""
    for turns, questions, name in content:
        for asked in questions:
            choices, answer = asked["choice"], asked["answer"]
            label = choices.index(answer) if answer in choices else -1
            where = f"{path}, dialogue {name}"
            yield choice(where, " ".join(turns), choices, label, asked["question"])


@document
def race(content: Any, path: Path) -> Iterator[Example]:
    """Yield the questions of a passage of RACE."""
    asked = zip(content["questions"], content["options"], content["answers"], strict=True)
    for number, (question, choices, answer) in enumerate(asked, 1):
        where, label = f"{path}, question {number}", LETTERS.find(answer or "-")
        yield choice(where, content["article"], choices, label, question)


@document
def squad(content: Any, path: Path) -> Iterator[Example]:
    """Yield the questions of SQuAD with their answers."""
    paragraphs = (paragraph for article in content["data"] for paragraph in article["paragraphs"])
    for text, asked in ((each["context"], asked) for each in paragraphs for asked in each["qas"]):
        where = f"{path}, question {asked['id']}"
        answers = [
            answer_in(text, given["text"], given["answer_start"], where)
            for given in asked["answers"]
        ]
        yield {"id": asked["id"], "text": text, "question": asked["question"], "answers": answers}


def answer_in(passage: str, text: str, start: int, where: str) -> dict[str, Any]:
    """Return an answer; raise UsageError if it does not stand in its passage."""
    if not text or passage[start : start + len(text)] != text:
        raise UsageError(
            f"{where} has the answer '{text}', which is not at character {start} of its passage; "
            "get the file again"
        )
    return {"text": text, "start": start}
