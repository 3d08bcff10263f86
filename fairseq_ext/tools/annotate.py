"""Parse the sentences of a split for role-guided masks.

DATA is a folder of fairseq-preprocess, or one of labelled text (train.jsonl, ...). Annotations come
from CoNLL-U files, whose sentences are those of the split in their order (empty ones left out), or
from a parser. They lie beside the text, as SPLIT.SRC-TGT.LANG.annotations or SPLIT.annotations, and
say of each token its word, what that depends on, and how. Sentences whose words are not those of
their parse are counted, listed and left without annotations; too many are refused.
"""

import argparse
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TextIO

import numpy as np
from tqdm import tqdm

from fairseq_ext.data import annotations
from fairseq_ext.errors import UsageError
from fairseq_ext.tools import parsers
from fairseq_ext.tools.parse_matching import Match, by_files, by_parser
from fairseq_ext.tools.prepared_text import Text, find

EXAMPLE = """\
  fairseq-ext annotate data-bin/multi30k.en-de --split train --lang en --parser spacy:en_core_web_sm
  fairseq-ext annotate data-bin/ewt --split valid --conllu en_ewt-ud-dev.conllu.gz"""

SHOWN = 3  # mismatches on standard error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", type=Path, metavar="DATA")
    parser.add_argument("--split", required=True, help="train, valid, test, ...")
    parser.add_argument("--lang", help="of the two of a translation; the source is what roles need")
    origin = parser.add_mutually_exclusive_group(required=True)
    origin.add_argument(
        "--conllu", type=Path, nargs="+", metavar="FILE", help="parses, plain or .gz"
    )
    origin.add_argument("--parser", metavar="NAME", help="spacy:MODEL or stanza:LANG")
    parser.add_argument(
        "--threshold",
        type=float,
        default=0.05,
        metavar="SHARE",
        help="of sentences whose words may differ from their parse; default: 0.05",
    )
    parser.add_argument("--mismatches", type=Path, metavar="FILE", help="list them all, with tabs")
    parser.add_argument(
        "--vocabulary",
        type=Path,
        metavar="FOLDER",
        help="with the tokeniser, of labelled text or where dict.txt has numbers; default: DATA",
    )


def run(given: argparse.Namespace) -> None:
    if not 0 <= given.threshold <= 1:
        raise UsageError(f"--threshold is {given.threshold}; give a share from 0 to 1")
    if (file := given.mismatches) and (file.is_dir() or not file.parent.is_dir()):
        raise UsageError(f"--mismatches is {file}, which cannot be a file; give one in a folder")
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    text = find(given.data, given.split, given.lang, given.vocabulary)
    if given.conllu:
        matches, parser = by_files(text, given.conllu), " ".join(map(str, given.conllu))
    else:
        matches, parser = by_parser(text, parsers.load(given.parser)), given.parser
    work = Work(text, given.threshold, given.mismatches)
    folder = text.path.with_name(f"{text.path.name}.annotations")
    about = annotations.write(folder, work.records(matches), text.symbols, parser)
    print(
        f"{folder}: {about['sentences']:,} sentences, {about['tokens']:,} tokens, "
        f"{about['unannotated']:,} sentences without annotations, {work.speed():,.0f} words/s"
    )


class Work:
    """One pass over the sentences of a text."""

    def __init__(self, text: Text, threshold: float, listing: Path | None) -> None:
        self.text, self.threshold, self.listing = text, threshold, listing
        self.mismatches = self.words = 0
        self.started = perf_counter()

    def records(self, matches: Iterator[Match]) -> Iterator[np.ndarray]:
        """Raises UsageError at the end if too many sentences do not agree with their parse."""
        bar = tqdm(matches, self.text.path.name, self.text.total, unit=" sentences", disable=None)
        with _listing(self.listing) as file:
            for index, match in enumerate(bar):
                self.words += len(match.sentence.words)
                if match.places is None:
                    self._note(index, match, file)
                    yield annotations.blank(len(match.tokens))
                else:
                    yield annotations.record(match.places, match.sentence)
        self._check()

    def _note(self, index: int, match: Match, file: TextIO | None) -> None:
        self.mismatches += 1
        text, words, where = match.shown(), " ".join(match.sentence.words), match.sentence.where
        if file:
            print(index, text, words, where, sep="\t", file=file)
        if self.mismatches <= SHOWN:
            tqdm.write(f"{where}: sentence {index} is '{text}', parsed '{words}'", sys.stderr)

    def _check(self) -> None:
        share = self.mismatches / self.text.total
        if share > self.threshold:
            raise UsageError(
                f"{self.text.path}: the words of {self.mismatches} of {self.text.total} sentences "
                f"({share:.1%}) are not those of their parse, and --threshold is "
                f"{self.threshold:.1%}; parse this text as it is tokenised, or see --mismatches"
            )

    def speed(self) -> float:
        return self.words / (perf_counter() - self.started)


@contextmanager
def _listing(path: Path | None) -> Iterator[TextIO | None]:
    """A file that has its name when it is complete."""
    if path is None:
        yield None
        return
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("w", encoding="utf-8", newline="\n") as file:
            yield file
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
