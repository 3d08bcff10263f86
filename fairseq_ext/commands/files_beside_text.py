"""Checks of files that lie beside text: word alignments, and further folders of data."""

import logging
import re
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import product, zip_longest
from pathlib import Path
from typing import Any

from fairseq_ext.errors import UsageError
from fairseq_ext.files import read_lines
from fairseq_ext.wrapping import wrap

logger = logging.getLogger(__name__)

LINK = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")
PAIR = re.compile(r"\.([^.-]+)-([^.-]+)(?=\.|$)")  # of languages, in the name of a file
ALIGNED = "give an alignment for each pair of lines, empty if it has none"

_records: list[set[Path]] = []


def check_alignment_files(args: Namespace) -> None:
    """Raise UsageError for alignments of fairseq-preprocess that are not those of its text."""
    parts = [part for part in (args.trainpref, args.validpref, args.testpref) if part]
    files = [(Path(f"{part}.{args.align_suffix}"), part) for part in parts if args.align_suffix]
    if args.alignfile and args.trainpref:
        files.append((Path(args.alignfile), args.trainpref))
    languages = [args.source_lang] + [args.target_lang] * (not args.only_source)
    for file, part in files:
        texts = [Path(f"{part}.{language}") for language in languages]
        if not file.is_file() and part != args.trainpref:
            logger.warning("%s is not there; %s is binarised without alignments", file, part)
        elif not file.is_file():
            raise UsageError(f"{file} is not there; give the alignments of {part}, or no flag")
        elif all(map(Path.is_file, texts)):
            _check_links(file, texts)


def _check_links(file: Path, texts: list[Path]) -> None:
    files = [file, *texts]
    for number, lines in enumerate(zip_longest(*map(read_lines, files)), 1):
        if None in lines:
            longer = next(path for path, line in zip(files, lines, strict=True) if line is not None)
            shorter = files[lines.index(None)]
            raise UsageError(
                f"{shorter} has {number - 1} lines, and {longer} has line {number}; {ALIGNED}"
            )
        sizes = [len(text.split()) for text in lines[1:]]
        for link in lines[0].split():
            found = LINK.fullmatch(link)
            if not found or any(int(n) >= size for n, size in zip(found.groups(), sizes)):  # noqa: B905
                raise UsageError(
                    f"{file}, line {number}: {link[:40]!r} is no link i-j of a word of the source "
                    "and one of the target, which are counted from 0 (the lines have "
                    f"{' and '.join(map(str, sizes))} words); correct it"
                )


def check_alignments(task: Any, split: str) -> None:
    """Raise UsageError if --load-alignments is given, and a split has none or too few."""
    cfg, data = task.cfg or getattr(task, "args", None), task.datasets.get(split)
    if not getattr(cfg, "load_alignments", False) or not hasattr(data, "align_dataset"):
        return
    problem = "no alignments"
    if data.align_dataset is not None:
        problem = f"{len(data.align_dataset)} alignments for {len(data.src)} pairs"
        if len(data.align_dataset) == len(data.src):
            return
    elif split != getattr(cfg, "train_subset", "train"):
        logger.warning("%s of %s has no alignments, and no loss of them", split, cfg.data)
        return
    raise UsageError(
        f"--load-alignments is given, and {split} of {cfg.data} has {problem}; binarise it again "
        f"by fairseq-preprocess --align-suffix, for {cfg.source_lang}-{cfg.target_lang}"
    )


@contextmanager
def record_files() -> Iterator[set[Path]]:
    """Collect the paths of dictionaries and text that are opened."""
    _records.append(set())
    try:
        yield _records[-1]
    finally:
        _records.pop()


def note(path: str) -> None:
    """Tell all records that a file is opened."""
    for record in _records:
        record.add(Path(path))


def check_other_folders(folders: Iterable[Path], opened: Iterable[Path]) -> None:
    """Raise UsageError if a folder lacks text that another one has, or has another dictionary.

    Args:
        folders: of DATA, each of which a training reads in an epoch of its own.
        opened: files of one of them; those of text without their endings.
    """
    for path, folder, other in product(sorted(opened), folders, folders):
        if folder == other or not path.is_relative_to(folder):
            continue
        twin = other / path.relative_to(folder)
        if path.suffix == ".txt":
            _compare_dictionaries(path, twin)
        elif not _has_text(twin) and not _has_text(twin.with_name(PAIR.sub(r".\2-\1", twin.name))):
            raise UsageError(
                f"{other} has no {twin.name}, which {folder} has; give folders that have the same "
                "text each, of another part of the corpus"
            )


def _has_text(prefix: Path) -> bool:
    return prefix.is_file() or all(Path(f"{prefix}.{end}").is_file() for end in ("idx", "bin"))


def _compare_dictionaries(path: Path, other: Path) -> None:
    if not other.is_file():
        logger.warning("%s is not there; its numbers are read as those of %s", other, path)
        return
    rows = enumerate(zip_longest(*map(_read_symbols, (path, other))), 1)
    if difference := next((row for row in rows if row[1][0] != row[1][1]), None):
        number, symbols = difference
        here, there = ("nothing" if s is None else repr(s[:40]) for s in symbols)
        raise UsageError(
            f"{other} is another dictionary than {path} (line {number} has {there}, and there "
            f"{here}); binarise all folders of DATA with one dictionary (--srcdict, --tgtdict)"
        )


def _read_symbols(path: Path) -> list[str]:
    return [line.rstrip().rpartition(" ")[0] for line in path.open(encoding="utf-8")]


def check_further_folders() -> None:
    """Refuse folders joined by colons if one of them lacks text of the others.

    Fault: A folder of a later epoch that lacks text ends the training when its epoch begins.
    Asked: who trains on shards; loud, after epochs of work; it is a message.
    Since: fairseq 0.7.
    Until: fairseq looks at all folders when a training begins.
    """
    from fairseq.utils import split_paths

    def load(original: Callable, trainer: Any, epoch: int, *args: Any, **kwargs: Any) -> Any:
        with record_files() as opened:
            iterator = original(trainer, epoch, *args, **kwargs)
        data = getattr(trainer.cfg.task, "data", None) or ""
        check_other_folders([Path(folder) for folder in split_paths(data)], opened)
        return iterator

    wrap("fairseq.trainer:Trainer", "get_train_iterator", load)
