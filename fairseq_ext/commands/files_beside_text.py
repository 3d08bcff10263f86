"""Checks of files that lie beside text: word alignments, and dictionaries of further folders."""

import logging
import re
from argparse import Namespace
from collections.abc import Sequence
from itertools import product, zip_longest
from pathlib import Path
from typing import Any

from fairseq_ext.errors import UsageError
from fairseq_ext.files import read_lines

logger = logging.getLogger(__name__)

LINK = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")


def check_alignment_files(args: Namespace) -> None:
    """Raise UsageError for alignments of fairseq-preprocess that are not those of its text."""
    languages = [args.source_lang] + [args.target_lang] * (not args.only_source)
    parts = [part for part in (args.trainpref, args.validpref, args.testpref) if part]
    files = [(Path(f"{part}.{args.align_suffix}"), part) for part in parts if args.align_suffix]
    if args.alignfile and args.trainpref:
        files.append((Path(args.alignfile), args.trainpref))
    for file, part in files:
        texts = [Path(f"{part}.{language}") for language in languages]
        if file.is_file():
            _check_links([file, *filter(Path.is_file, texts)])
        elif part == args.trainpref:
            raise UsageError(f"{file} is not there; give the alignments of {part}, or no flag")
        else:
            logger.warning("%s is not there; %s is binarised without alignments", file, part)


def _check_links(files: Sequence[Path]) -> None:
    """Raise UsageError for a file of alignments and its text, in both languages."""
    for number, lines in enumerate(zip_longest(*map(read_lines, files)), 1):
        if None in lines:
            raise UsageError(
                f"{files[lines.index(None)]} has {number - 1} lines, and others of "
                f"{', '.join(map(str, files))} have more; give an alignment for each pair of lines"
            )
        sizes = [len(text.split()) for text in lines[1:]]
        for link in lines[0].split():
            found = LINK.fullmatch(link)
            if not found or any(int(n) >= s for n, s in zip(found.groups(), sizes, strict=False)):
                raise UsageError(
                    f"{files[0]}, line {number}: {link[:40]!r} is no link i-j of the source's word "
                    "i and the target's word j, counted from 0 (the lines have "
                    f"{' and '.join(map(str, sizes))} words); correct it"
                )


def check_alignments(cfg: Any, split: str, data: Any) -> None:
    """Raise UsageError if --load-alignments is given, and a split has none or too few."""
    if not getattr(cfg, "load_alignments", False) or not hasattr(data, "align_dataset"):
        return
    count = len(data.align_dataset or ())
    if not count and split != getattr(cfg, "train_subset", "train"):
        logger.warning("%s of %s has no alignments, and no loss of them", split, cfg.data)
    elif count != len(data.src):
        raise UsageError(
            f"--load-alignments is given, and {split} of {cfg.data} has {count} alignments for "
            f"{len(data.src)} pairs; binarise it again by fairseq-preprocess --align-suffix, for "
            f"{cfg.source_lang}-{cfg.target_lang}"
        )


def check_other_dictionaries(folders: Sequence[Path]) -> None:
    """Raise UsageError if a further folder of DATA has another dictionary than the first one."""
    for other, first in product(folders[1:], sorted(folders[0].glob("dict*.txt"))):
        if not (path := other / first.name).is_file():
            logger.warning("%s is not there; its numbers are read as those of %s", path, first)
        elif difference := _find_difference(first, path):
            raise UsageError(
                f"{path} is another dictionary than {first} ({difference}); binarise all folders "
                "of DATA with one dictionary, by --srcdict and --tgtdict of fairseq-preprocess"
            )


def _find_difference(*paths: Path) -> str:
    lines = (path.read_text("utf-8").splitlines() for path in paths)
    for number, pair in enumerate(zip_longest(*lines, fillvalue=""), 1):
        one, other = (line.rpartition(" ")[0] or "nothing" for line in pair)
        if one != other:
            return f"line {number} has {other!r:.40} and there {one!r:.40}"
    return ""
