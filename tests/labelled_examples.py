"""Examples of every task on labelled text, made of a few real sentences."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from corpora import builtin

SENTENCES = [english for english, _ in builtin()["train"][:90]]
EXAMPLES = {"train": 26, "valid": 11, "test": 5}

# Examples of every task, of sentences i, i + 1, ...


def classification(i):
    label = "question" if SENTENCES[i].endswith("?") else "statement"
    return {"text": SENTENCES[i], "label": label}


def regression(i):
    one, other = SENTENCES[i], SENTENCES[i + 1]
    shared = set(one.lower().split()) & set(other.lower().split())
    return {"text": one, "pair": other, "label": len(shared) + 0.3}


def choice(i):
    place = i % 3
    choices = [SENTENCES[(i + 7 * k) % 90] for k in range(1, 4)]
    return {"text": " ".join(SENTENCES[i : i + 4]), "choices": choices, "label": place}


def tagging(i):
    words = SENTENCES[i].split()
    marked = {"the": "B-noun", "his": "B-noun", "a": "B-noun"}
    return {"words": words, "tags": [marked.get(word.lower(), "O") for word in words]}


def spans(i):
    """The passage needs several windows; its second sentence is asked for, or one that is not."""
    passage, answer = " ".join(SENTENCES[i : i + 6]), SENTENCES[i + 1]
    if i % 4 == 0:
        return {"text": passage, "question": SENTENCES[i + 8], "answers": []}
    answers = [{"text": answer, "start": passage.index(answer)}]
    return {"text": passage, "question": " ".join(answer.split()[:3]), "answers": answers}


class Kind(NamedTuple):
    """A maker of examples, flags, and the columns of an example in a text file."""

    example: Callable[[int], dict]
    flags: str
    columns: Callable[[dict], list[str]]


KINDS = {
    "sentence_classification": Kind(classification, "", lambda e: [e["text"]]),
    "sentence_regression": Kind(
        regression,
        "--pairs apart --pooling attention --regression-loss pearson",
        lambda e: [e["text"], e["pair"]],
    ),
    "multiple_choice": Kind(choice, "", lambda e: [e["text"], "", *e["choices"]]),
    "sequence_tagging": Kind(tagging, "", lambda e: [" ".join(e["words"])]),
    "span_extraction": Kind(
        spans, "--stride 9 --longest-question 8", lambda e: [e["text"], e["question"]]
    ),
}


def remove_target(example: dict) -> None:
    for name in ("label", "tags", "answers"):
        example.pop(name, None)


def write(path: Path, examples: list[dict]) -> None:
    lines = [json.dumps(example, ensure_ascii=False) for example in examples]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def write_data(folder: Path) -> None:
    """Examples of each task, in a folder of its own; of the test parts nothing is known."""
    first = 0
    for split, count in EXAMPLES.items():
        for name, kind in KINDS.items():
            (folder / name).mkdir(exist_ok=True)
            examples = [kind.example(i) for i in range(first, first + count)]
            if split == "test":
                for example in examples:
                    remove_target(example)
            write(folder / name / f"{split}.jsonl", examples)
        first += count
