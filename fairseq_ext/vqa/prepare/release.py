"""The official files of VQA-v2: questions and annotations as JSON, found, read and checked."""

import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from fairseq_ext.errors import UsageError
from fairseq_ext.files import open_binary
from fairseq_ext.prepare.extract import find, unpack
from fairseq_ext.vqa.answers import normalise_answer, score_answers

QUESTIONS = "v2_OpenEnded_mscoco_{}_questions.json"
ANNOTATIONS = "v2_mscoco_{}_annotations.json"
LABELLED = ("train2014", "val2014")
TESTS = ("test2015", "test-dev2015")  # the first one that is there
ARCHIVES = "v2_*_mscoco.zip"
WORD = re.compile(r"\w+|[^\w\s]+")

Item = dict[str, Any]  # a question with its annotation, as a line of a file


def find_files(
    folder: Path, unpacked: Path
) -> tuple[dict[str, tuple[Path, Path | None]], list[Path]]:
    """Return the files of questions and annotations of each part, and the archives unpacked.

    Raises:
        UsageError: a file of train2014 or val2014 is missing.
    """
    forms = (QUESTIONS, ANNOTATIONS)
    archives = unpack(folder, unpacked, [form.format("*") for form in forms], ARCHIVES)
    folders = [folder, unpacked]
    files: dict[str, tuple[Path, Path | None]] = {}
    for part in LABELLED:
        one, other = (find([form.format(part)], folders)[0] for form in forms)
        files[part] = one, other
    for part in TESTS:
        if questions := _try_to_find(QUESTIONS.format(part), folders):
            files["test"] = questions, _try_to_find(ANNOTATIONS.format(part), folders)
            break
    return files, archives


def _try_to_find(name: str, folders: Sequence[Path]) -> Path | None:
    try:
        return find([name], folders)[0]
    except UsageError:
        return None


class Part(NamedTuple):
    """A part of the official release.

    Attributes:
        items: its questions.
        usual: for each annotated question, the normalised answer that most annotators gave.
    """

    items: list[Item]
    usual: list[str]


def tokenise_question(text: str) -> str:
    """Return the words of a question, separated by spaces, as Pythia separates them.

    Letters become lower case, commas and question marks are removed, "'s" is separated, and other
    punctuation is a word.
    """
    text = text.lower().replace(",", "").replace("?", "").replace("'s", " 's")
    return " ".join(WORD.findall(text))


def _answer_alone(entry: dict[str, Any]) -> Any:
    """Return the text of an answer in the place of its JSON object, which takes a tenth of it."""
    if "answer_id" in entry and isinstance(entry.get("answer"), str):
        return sys.intern(entry["answer"])
    return entry


def read_entries(path: Path, key: str) -> list[dict[str, Any]]:
    """Return the list of a JSON file, plain or .gz, whose entries have numbers of their own.

    Args:
        path: official file.
        key: "questions" or "annotations".

    Raises:
        UsageError: the file is no such JSON, or a question comes twice.
    """
    try:
        with open_binary(path) as file:
            content = json.loads(file.read(), object_hook=_answer_alone)
        entries = content[key]
        numbers = Counter((entry["question_id"], type(entry["image_id"])) for entry in entries)
    except (ValueError, EOFError, RecursionError) as error:
        raise UsageError(
            f"{path} is no JSON ({error}); it may be cut short: get it again"
        ) from None
    except (KeyError, TypeError, AttributeError):
        raise UsageError(
            f"{path} is no list of '{key}' with question_id and image_id; give the official file"
        ) from None
    if wrong := [number for number, kind in numbers if type(number) is not int or kind is not int]:
        raise UsageError(f"{path} has {wrong[0]!r}, and question_id and image_id are whole numbers")
    if twice := [number for (number, _), count in numbers.items() if count > 1]:
        raise UsageError(f"{path} has question {twice[0]} twice; remove one of them")
    return entries


def read_part(questions: Path, annotations: Path | None) -> Part:
    """Return a part of the release.

    Args:
        questions: its file of questions.
        annotations: its file of annotations, None for a part without them.

    Raises:
        UsageError: a question has no words, no annotation, one of another picture, or no answers.
    """
    labels = read_entries(annotations, "annotations") if annotations else []
    labelled = {entry["question_id"]: entry for entry in labels}
    entries = read_entries(questions, "questions")
    items, usual = [], []
    if annotations:
        _check_annotated(entries, labelled, questions, annotations)
    for entry in tqdm(entries, f"reading {questions.name}", unit=" questions"):
        item = _read_question(entry, questions)
        if annotations:
            label = labelled[item["question_id"]]
            answers = _read_answers(label, annotations)
            item |= {
                "answers": score_answers(answers),
                "answer_type": str(label.get("answer_type", "other")),
                "question_type": str(label.get("question_type", "none of the above")),
            }
            usual.append(_most_usual(label, answers))
        items.append(item)
    return Part(items, usual)


def _check_annotated(
    entries: Sequence[dict[str, Any]], labelled: Mapping[int, Any], questions: Path, labels: Path
) -> None:
    """Raise UsageError unless all questions have annotations, of the same pictures."""
    missing = [entry for entry in entries if entry["question_id"] not in labelled]
    if missing:
        raise UsageError(
            f"{labels} has no annotation for {len(missing)} of the {len(entries)} questions of "
            f"{questions.name} (first {missing[0]['question_id']}); give the files of one release"
        )
    for entry in entries:
        label = labelled[entry["question_id"]]
        if label["image_id"] != entry["image_id"]:
            raise UsageError(
                f"question {entry['question_id']} is about picture {entry['image_id']} in "
                f"{questions} and about {label['image_id']} in {labels.name}; give the files of "
                "one release"
            )


def _read_question(entry: dict[str, Any], path: Path) -> Item:
    """Return the first values of a line."""
    number, text = entry["question_id"], entry.get("question")
    words = tokenise_question(text) if isinstance(text, str) else ""
    if not words:
        raise UsageError(f"{path} has {text!r} as question {number}; give a text with words")
    return {"question_id": number, "image_id": entry["image_id"], "question": words}


def _read_answers(label: dict[str, Any], path: Path) -> list[str]:
    """Return the answers of all annotators."""
    answers = label.get("answers")
    if not isinstance(answers, list) or not answers:
        answers = [None]
    if wrong := [answer for answer in answers if not isinstance(answer, str)]:
        raise UsageError(
            f"{path} has {str(wrong[0])[:60]!r} as an answer to question {label['question_id']}; "
            "give each annotator's answer and answer_id"
        )
    return answers


def _most_usual(label: dict[str, Any], answers: Sequence[str]) -> str:
    """Return the normalised answer that counts for the vocabulary."""
    given = label.get("multiple_choice_answer")
    if isinstance(given, str):
        return normalise_answer(given)
    return Counter(map(normalise_answer, answers)).most_common(1)[0][0]
