"""Questions and answers of VQA-v2, from the official JSON files to JSON lines.

The parts of the official release become splits as in Pythia: train2014 and a part of val2014 train,
the rest of val2014 (`minival`) validates. Pythia sampled that rest without a seed, so that only its
own file of questions says which it is.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from fairseq_ext.errors import UsageError
from fairseq_ext.files import read_lines, write_lines
from fairseq_ext.prepare.step import number_from, record_inputs, step_parser
from fairseq_ext.vqa.prepare.release import (
    LABELLED,
    Item,
    Part,
    find_files,
    read_entries,
    read_part,
)

SHARE = 56  # of 256 pictures of val2014 validate: 22 %, what Pythia's rule takes on average


def choose_minival(items: Sequence[Item], which: str) -> set[int]:
    """Return the questions of val2014 that validate; the others train.

    Args:
        items: the questions of val2014.
        which: "share" for those about 22 % of the pictures, by a hash of the picture's number;
            "all"; or a file: JSON of questions, as Pythia publishes, or a question's number a line.

    Raises:
        UsageError: the file has questions that val2014 lacks, or no question validates.
    """
    known = {item["question_id"] for item in items}
    if which == "all":
        return known
    if which == "share":
        chosen = {item["question_id"] for item in items if _is_in_share(item["image_id"])}
        if not chosen:
            raise UsageError(
                f"none of the {len(items)} questions of val2014 is about a picture of the share "
                "that validates; give --minival all, or a file with numbers of questions"
            )
        return chosen
    chosen = set(_read_numbers(Path(which)))
    if strange := chosen - known:
        raise UsageError(
            f"{which} has {len(strange)} questions that val2014 lacks (first {min(strange)}); give "
            "numbers of questions of val2014"
        )
    if not chosen:
        raise UsageError(f"{which} has no question; give at least one of val2014")
    return chosen


def _is_in_share(image: int) -> bool:
    return hashlib.sha256(str(image).encode()).digest()[0] < SHARE


def _read_numbers(path: Path) -> list[int]:
    """Return the numbers of questions in a file."""
    if path.name.removesuffix(".gz").endswith(".json"):
        return [entry["question_id"] for entry in read_entries(path, "questions")]
    try:
        return [int(line) for line in read_lines(path) if line.strip()]
    except ValueError as error:
        raise UsageError(
            f"{path} is no list of questions ({error}); give one number a line"
        ) from None


def count_vocabulary(usual: Iterable[str], least: int) -> list[str]:
    """Return the answers that are the usual one of at least so many questions, by falling counts.

    The empty answer is one of them: the official evaluation makes it of the answer "a".

    Raises:
        UsageError: there is none.
    """
    counts = Counter(usual)
    kept = [answer for answer, count in counts.items() if count >= least]
    if not kept:
        most = max(counts.values(), default=0)
        raise UsageError(
            f"no answer occurs {least} times (the most usual one {most} times); give less to "
            "--answer-min-count, or more questions"
        )
    return sorted(kept, key=lambda answer: (-counts[answer], answer))


def best_accuracy(items: Iterable[Item], vocabulary: Iterable[str]) -> float:
    """Return the accuracy of a model that always chooses the best answer of the vocabulary."""
    known = set(vocabulary)
    best = [
        max((score for answer, score in item["answers"].items() if answer in known), default=0.0)
        for item in items
    ]
    return sum(best) / len(best)


def make_splits(parts: Mapping[str, Part], minival: str) -> dict[str, list[Item]]:
    """Return the questions of train, valid and, if there are any, test."""
    validates = choose_minival(parts["val2014"].items, minival)
    splits: dict[str, list[Item]] = {"train": list(parts["train2014"].items), "valid": []}
    for item in parts["val2014"].items:
        splits["valid" if item["question_id"] in validates else "train"].append(item)
    if "test" in parts:
        splits["test"] = parts["test"].items
    if twice := [n for n, count in Counter(_numbers(splits)).items() if count > 1]:
        raise UsageError(f"question {twice[0]} is in two parts; give each part its own questions")
    return splits


def _numbers(splits: Mapping[str, Sequence[Item]]) -> Iterator[int]:
    return (item["question_id"] for items in splits.values() for item in items)


def prepare(folder: Path, out: Path, minival: str, least: int) -> None:
    """Write raw/SPLIT.jsonl, answers.txt and dict.txt into a folder, and list the inputs.

    Raises:
        UsageError: a file is missing or damaged, or the vocabulary has no answer of a split.
    """
    files, archives = find_files(folder, out / "unpacked")
    parts = {part: read_part(*paths) for part, paths in files.items()}
    splits = make_splits(parts, minival)
    vocabulary = count_vocabulary((a for part in LABELLED for a in parts[part].usual), least)
    for split, items in splits.items():
        print(describe(split, items, vocabulary))
        write_lines(
            out / "raw" / f"{split}.jsonl", (json.dumps(x, ensure_ascii=False) for x in items)
        )
    write_lines(out / "answers.txt", vocabulary)
    words = Counter(word for item in splits["train"] for word in item["question"].split())
    ranked = sorted(words.items(), key=lambda entry: (-entry[1], entry[0]))
    write_lines(out / "dict.txt", (f"{word} {count}" for word, count in ranked))
    given = [Path(minival)] if minival not in ("share", "all") else []
    read = (path for paths in files.values() for path in paths if path)
    used = [path for path in read if path.is_relative_to(folder)]
    record_inputs(out / "raw", [*archives, *used, *given])
    print(f"vocabulary: {len(vocabulary):,} answers, {len(words):,} words of questions")


def describe(split: str, items: Sequence[Item], vocabulary: Sequence[str]) -> str:
    """Return a line about a split; raise UsageError if its answers are all unknown."""
    pictures = len({item["image_id"] for item in items})
    said = f"{split}: {len(items):,} questions about {pictures:,} pictures"
    if not items or "answers" not in items[0]:
        return said
    best = best_accuracy(items, vocabulary)
    if not best:
        raise UsageError(
            f"no answer to the {len(items)} questions of {split} is among the {len(vocabulary)} "
            "answers of the vocabulary; give less to --answer-min-count, or files of one release"
        )
    return f"{said}; the vocabulary reaches an accuracy of {best:.1%} at most"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the step."""
    parser = step_parser("question_files", __doc__, "fairseq_ext.vqa.prepare")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="with the official files")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write to")
    parser.add_argument("--minival", default="share", metavar="WHICH", help="share, all or a file")
    parser.add_argument("--answer-min-count", type=number_from(1), default=9, metavar="N")
    args = parser.parse_args(arguments)
    prepare(args.folder, args.out, args.minival, args.answer_min_count)


if __name__ == "__main__":
    main()
