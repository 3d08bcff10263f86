"""Labelled text: files of JSON lines, an example each, checked line by line."""

import json
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fairseq_ext.errors import UsageError
from fairseq_ext.files import numbered_lines

Values = dict[str, Any]
LONGEST = 2_000_000  # characters


class Example(NamedTuple):
    """An example: its values, and where it stands ("FILE:LINE")."""

    values: Values
    where: str


class Field(NamedTuple):
    """A key that examples have.

    Attributes:
        says: description of a valid value, for errors.
        accepts: function that returns whether a value is valid.
        needed: every example has the key.
        target: the value is to be predicted.
    """

    says: str
    accepts: Callable[[Any], bool]
    needed: bool = True
    target: bool = False


def is_text(value: Any) -> bool:
    """Return whether a value is text without half of a surrogate pair, which only JSON can hold."""
    return isinstance(value, str) and not re.search("[\ud800-\udfff]", value)


def collect_labels(labelled: Iterable[tuple[str, Example]]) -> set[str]:
    """Return the labels of examples.

    Raises:
        UsageError: two look alike: blanks stand at their ends, or characters are composed or not.
    """
    alike: dict[str, str] = {}
    for label, example in labelled:
        other = alike.setdefault(unicodedata.normalize("NFC", label).strip(), label)
        if label != other:
            raise UsageError(
                f"{example.where}: the label {ascii(label)} looks like {ascii(other)}, which "
                "stands before it; spell both alike"
            )
    return set(alike.values())


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number."""
    # JSON may hold whole numbers that no float can be, which math.isfinite does not take
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def are_texts(value: Any) -> bool:
    """Return whether a value is a list of texts."""
    return isinstance(value, list) and all(map(is_text, value))


TEXT = Field("a text", is_text)
PAIR = Field("a text", is_text, needed=False)

HOW_TO_VALIDATE = (
    "make it with 'python -m fairseq_ext.prepare.hold_out {} OUT --every 10', which takes every "
    "tenth example of train.jsonl, or cross-validate with --folds 10 and --fold 1, 2, … 10"
)
"""Advice for the folder of a corpus that has no part for validation."""


def read(path: Path, fields: Mapping[str, Field]) -> list[Example]:
    """Return all examples of a file.

    Raises:
        UsageError: the file is missing or empty, or a line is no such example.
    """
    if not path.is_file():
        remedy = "make it with scripts/prepare_task.sh, or write it"
        if path.name == "valid.jsonl" and path.with_name("train.jsonl").is_file():
            remedy = HOW_TO_VALIDATE.format(path.parent)
        raise UsageError(f"{path} is not there; {remedy}")
    found = list(parse(numbered_lines(path), fields))
    if not found:
        raise UsageError(f"{path} is empty; give at least one example")
    return found


def check_lengths(examples: Iterable[Example]) -> None:
    """Raise UsageError for an example too long for tokenisers, which take 300 bytes a character."""
    for values, where in examples:
        if len(str(values)) > LONGEST:
            raise UsageError(f"{where} has more than {LONGEST} characters; break it into parts")


def parse(lines: Iterable[tuple[str, str]], fields: Mapping[str, Field]) -> Iterator[Example]:
    """Yield the examples of lines, each of which comes after its place, "FILE:LINE"."""
    for where, line in lines:
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            raise UsageError(f"{where} is no JSON object; give one with {', '.join(fields)}")
        yield Example(_checked(values, where, fields), where)


def _checked(values: Values, where: str, fields: Mapping[str, Field]) -> Values:
    for key, field in fields.items():
        if key not in values and field.needed:
            raise UsageError(
                f"{where} has no '{key}' (it has {', '.join(values) or 'none'}); give {field.says}"
            )
        if key in values and not field.accepts(values[key]):
            found = json.dumps(values[key])[:60]
            raise UsageError(f"{where} has {found} as '{key}'; give {field.says}")
    return values


def in_fold(count: int, folds: int, fold: int) -> np.ndarray:
    """Return [count] bool, True for examples that are held out in this fold, counted from 1.

    Folds are the same for every seed and model, and differ in size by 1 at most.
    """
    places = np.random.default_rng(folds).permutation(count)
    return places % folds == fold - 1
