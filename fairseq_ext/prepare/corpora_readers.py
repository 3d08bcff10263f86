"""Readers of published corpora, from their own formats to examples for fine-tuning.

A reader takes a file, whether its examples must have labels, and what corpora.toml says about the
corpus; it yields examples. It raises UsageError for a file of another form, naming the line or
question.
"""

import ast
import csv
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

from fairseq_ext.data import conllu
from fairseq_ext.errors import UsageError, to_line
from fairseq_ext.files import read_lines
from fairseq_ext.prepare.step import clean, logger

Example = dict[str, Any]
Reader = Callable[..., Iterator[Example]]
Row = tuple[str, dict[str, Any]]  # "FILE:LINE", and the columns there by their names

HALF = re.compile("[\ud800-\udfff]")
LETTERS = [*"ABCD"]  # of RACE's choices
BYTES = re.compile(r"""b'(?:[^'\\]|\\.)*'|b"(?:[^"\\]|\\.)*\"""")
"""Bytes as Python prints them, which PAWS-QQP's published program writes in the place of text."""


def malformed(where: str | Path, problem: str) -> UsageError:
    """Return an error that names the place of a problem."""
    return UsageError(f"{where} {problem}; correct it, or get the file again")


def numbered_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield "FILE:LINE" and the text of each line."""
    number = 0
    for number, line in enumerate(read_lines(path), 1):
        yield f"{path}:{number}", line
    if not number:
        raise malformed(path, "is empty")


def parse_json(text: str, path: Path, first_line: int = 1) -> Any:
    """Return the value of JSON text that begins in a line of a file."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        where = f"{path}:{first_line + error.lineno - 1}"
        raise malformed(where, f"is not JSON ({error.msg})") from None
    except RecursionError:
        raise malformed(f"{path}:{first_line}", "holds values nested too deeply") from None
    if "\\ud" in text.lower() and HALF.search(json.dumps(value, ensure_ascii=False)):
        raise malformed(f"{path}:{first_line}", "holds half of a surrogate pair, no character")
    return value


def check_label(given: str, labels: Collection[str], where: str) -> str | float:
    """Return a label that must be one of some names, or without names a number from 0 to 5.

    Args:
        given: the label.
        labels: names, or a dictionary of them to others, which they get.
        where: place of the label.
    """
    if given in labels:
        return labels[given] if isinstance(labels, dict) else given
    with suppress(ValueError):
        if not labels and 0 <= (number := float(given)) <= 5:
            return number
    expected = f"one of {', '.join(labels)}" if labels else "a number from 0 to 5"
    raise malformed(where, f"has the label '{to_line(given, 60)}' and it must be {expected}")


def tabs(
    path: Path,
    names: Sequence[str] = (),
    quoted: bool = False,
    drops: bool = False,
    full: str = "",
    further: bool = False,
) -> Iterator[Row]:
    """Yield the rows of a file of columns separated by tabs, below a header.

    Args:
        path: the file.
        names: names of the columns, for files without a header.
        quoted: columns below a header are quoted as in CSV; others have quotation marks as text.
        drops: leave out lines that lack columns instead of refusing them.
        full: name of a column that must not be empty.
        further: rows without a header may have more columns than names, which are left out.
    """
    lines = numbered_lines(path)
    first = next(lines)
    headless = bool(names) and {*names}.isdisjoint(first[1].replace('"', "").split("\t"))
    header = names if headless else split_at_tabs(first[1], quoted, first[0])
    dropped = 0
    for where, line in chain([first] * headless, lines):
        columns = split_at_tabs(line, quoted and not headless, where)
        columns = columns[: len(header)] if headless and further else columns
        row = dict(zip(header, columns, strict=False))
        if len(columns) == len(header) and row.get(full, True):
            yield where, row
        elif drops:
            dropped += 1
        else:
            has = f"has {len(columns)} columns separated by tabs, not {len(header)}"
            raise malformed(where, f"{has} ({', '.join(header)})")
    if dropped:
        logger.warning("%s: %d lines do not have all columns: left out", path, dropped)


def split_at_tabs(line: str, quoted: bool, where: str) -> list[str]:
    """Return the columns of a line."""
    if not quoted:
        return line.split("\t")
    try:
        return next(csv.reader([line], delimiter="\t", strict=True))
    except csv.Error as error:
        raise malformed(where, f"is badly quoted ({error})") from None


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
            raise malformed(where, "is no JSON object")
        yield where, row


def genres(path: Path) -> Iterator[Row]:
    """Yield sentences of a treebank, labelled with the genre that begins their sent_id."""
    for sentence in conllu.read(path):
        genre, text = sentence.name.partition("-")[0], " ".join(sentence.words)
        yield sentence.where, {"label": genre, "text": text}


def column(row: dict[str, Any], name: str, where: str, kind: type = str) -> Any:
    """Return a column of a row; raise UsageError unless it is of this type."""
    if not isinstance(row.get(name), kind):
        given = ", ".join(row)
        raise malformed(where, f"has no '{name}' that is a {kind.__name__} (it has {given})")
    return decode_bytes(row[name], where) if kind is str else row[name]


def decode_bytes(text: str, where: str) -> str:
    """Return the text that bytes of Python in UTF-8 stand for; other text as it is."""
    if not BYTES.fullmatch(text):
        return text
    try:
        return ast.literal_eval(text).decode()
    except (SyntaxError, ValueError):
        raise malformed(where, f"has bytes of Python that are no UTF-8: {text[:60]}") from None


ROWS = {each.__name__: each for each in (tabs, label_first, json_lines, genres)}


def sentences(
    path: Path,
    labelled: bool,
    columns: Mapping[str, str] | None = None,
    labels: Collection[str] = (),
    rows: str = "tabs",
    cleaned: bool = False,
    **form: Any,
) -> Iterator[Example]:
    """Yield sentences or pairs of them, from named columns of rows, without spaces around them.

    Args:
        path: the file.
        labelled: examples must have labels.
        columns: names of the columns with `text`, `pair` and `label`, if they differ.
        labels: as in `check_label`.
        rows: a key of `ROWS`.
        cleaned: text is cleaned, as `documents` cleans text for pre-training.
        **form: options of the reader of rows.
    """
    names = {"text": "text", "label": "label"} | dict(columns or {})
    label = names.pop("label")
    for where, row in ROWS[rows](path, **form):
        example = {key: column(row, name, where).strip(" ") for key, name in names.items()}
        example = {key: clean(text) for key, text in example.items()} if cleaned else example
        if labelled or label in row:
            example["label"] = check_label(column(row, label, where), labels, where)
        yield example


def hellaswag(path: Path, labelled: bool) -> Iterator[Example]:
    """Yield examples of HellaSwag; an activity beside the context is put before it."""
    for where, row in json_lines(path):
        text, endings = column(row, "ctx", where), column(row, "endings", where, list)
        if "activity_label" in row:
            text = f"{row['activity_label']}: {text}"
        label = column(row, "label", where, int) if labelled else row.get("label")
        yield choice(where, endings, label, text=text)


def choice(where: str, choices: list[str], label: int | None, **texts: str) -> Example:
    """Return a multiple-choice example; raise UsageError for a label that is no choice."""
    if label is None:
        return {**texts, "choices": choices}
    if label not in range(len(choices)):
        raise malformed(where, f"has a label that is none of its {len(choices)} choices")
    return {**texts, "choices": choices, "label": label}


@contextmanager
def document(path: Path) -> Iterator[Any]:
    """Yield the content of a JSON file; errors within say that it has another form."""
    content = parse_json("\n".join(line for _, line in numbered_lines(path)), path)
    try:
        yield content
    except UsageError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        problem = f"does not have the form in which the corpus is published ({error!r})"
        raise malformed(path, problem) from error


def dream(path: Path, labelled: bool) -> Iterator[Example]:
    """Yield the questions of DREAM; the turns of a dialogue are joined by a space."""
    with document(path) as content:
        for turns, questions, name in content:
            where, text = f"{path}, dialogue {name}", " ".join(turns)
            for asked in questions:
                choices, answer = asked["choice"], asked["answer"]
                label = choices.index(answer) if answer in choices else -1
                yield choice(where, choices, label, text=text, question=asked["question"])


def race(path: Path, labelled: bool) -> Iterator[Example]:
    """Yield the questions of a passage of RACE."""
    with document(path) as content:
        asked = zip(content["questions"], content["options"], content["answers"], strict=True)
        for number, (question, choices, answer) in enumerate(asked, 1):
            where = f"{path}, question {number}"
            label = LETTERS.index(answer) if answer in LETTERS else -1
            yield choice(where, choices, label, text=content["article"], question=question)


def squad(path: Path, labelled: bool) -> Iterator[Example]:
    """Yield the questions of SQuAD with their answers."""
    with document(path) as content:
        passages = (passage for article in content["data"] for passage in article["paragraphs"])
        for text, asked in ((each["context"], asked) for each in passages for asked in each["qas"]):
            where = f"{path}, question {asked['id']}"
            answers = [answer_in(text, given, where) for given in asked["answers"]]
            example = {"id": asked["id"], "text": text, "question": asked["question"]}
            yield {**example, "answers": answers}


def answer_in(passage: str, given: dict[str, Any], where: str) -> dict[str, Any]:
    """Return an answer; raise UsageError if it does not stand in its passage."""
    text, start = given["text"], given["answer_start"]
    if not text or passage[start : start + len(text)] != text:
        answer = f"the answer '{to_line(text, 60)}'"
        raise malformed(where, f"has {answer}, which is not at character {start} of its passage")
    return {"text": text, "start": start}


READERS = {each.__name__: each for each in (sentences, hellaswag, dream, race, squad)}
