"""Parse the sentences of a split for role-guided masks.

DATA is a folder of fairseq-preprocess, or a folder of labelled text (train.jsonl, ...). The parses
come from CoNLL-U files or from a parser. The sentences of the files must be the sentences of the
split in their order, without empty ones. Annotations are written beside the text, as
SPLIT.SRC-TGT.LANG.annotations or SPLIT.annotations. They hold, for each token, its word, the word's
head and their relation. A sentence whose words are not the words of its parse is counted, listed
and left without annotations; too many such sentences are refused.

Example:
  fairseq-ext annotate data-bin/multi30k.en-de --split train --lang en --parser spacy:en_core_web_sm
  fairseq-ext annotate data-bin/ewt --split valid --conllu en_ewt-ud-dev.conllu.gz
"""

import argparse
import logging
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from time import perf_counter
from typing import TextIO

import numpy as np
from tqdm import tqdm

from fairseq_ext.data import annotations
from fairseq_ext.errors import UsageError
from fairseq_ext.files import atomic_writer, check_place
from fairseq_ext.tools.parses import Match, load_parser, match_files, match_parser, shuffle_trees
from fairseq_ext.tools.prepared_text import PreparedText, find_text

SHOWN = 3  # mismatches on standard error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fairseq-ext annotate`."""
    add = parser.add_argument
    add("data", type=Path, metavar="DATA")
    add("--split", required=True, help="train, valid, test, ...")
    add("--lang", help="of the two of a translation; the source is what roles need")
    source = parser.add_mutually_exclusive_group(required=True)
    files = "parses, plain or .gz"
    source.add_argument("--conllu", type=Path, nargs="+", metavar="FILE", help=files)
    source.add_argument("--parser", metavar="NAME", help="spacy:MODEL or stanza:LANG")
    share = "of sentences whose words may differ from their parse; default: 0.05"
    add("--threshold", type=float, default=0.05, metavar="SHARE", help=share)
    add("--mismatches", type=Path, metavar="FILE", help="list them all, with tabs")
    shuffled = "as a control: lay each tree over its words in another order"
    add("--shuffle", type=int, metavar="SEED", help=shuffled)
    folder = "with the tokeniser, of labelled text or where dict.txt has numbers; default: DATA"
    add("--vocabulary", type=Path, metavar="FOLDER", help=folder)


def run(args: argparse.Namespace) -> None:
    """Write the annotations of a split, and print how many there are."""
    if not 0 <= args.threshold <= 1:
        raise UsageError(f"--threshold is {args.threshold}; give a share from 0 to 1")
    if args.mismatches:
        check_place(args.mismatches, "--mismatches")
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    text = find_text(args.data, args.split, args.lang, args.vocabulary)
    if args.conllu:
        matches, origin = match_files(text, args.conllu), " ".join(map(str, args.conllu))
    else:
        matches, origin = match_parser(text, load_parser(args.parser)), args.parser
    if args.shuffle is not None:
        matches, origin = shuffle_trees(matches, args.shuffle), f"{origin}, shuffled {args.shuffle}"
    started = perf_counter()
    annotator = Annotator(text, args.threshold, args.mismatches)
    folder = text.path.with_name(f"{text.path.name}.annotations")
    about = annotations.write(folder, annotator.annotate(matches), text.symbols, origin)
    print(
        f"{folder}: {about['sentences']:,} sentences, {about['tokens']:,} tokens, "
        f"{about['unannotated']:,} sentences without annotations, "
        f"{annotator.words / (perf_counter() - started):,.0f} words/s"
    )


class Annotator:
    """One pass over the sentences of a text, which counts and lists mismatches.

    Args:
        text: the split.
        threshold: the share of sentences that may not match their parse.
        listing: a file for all mismatches, or None.
    """

    def __init__(self, text: PreparedText, threshold: float, listing: Path | None) -> None:
        self.text, self.threshold, self.listing = text, threshold, listing
        self.mismatches = self.words = 0

    def annotate(self, matches: Iterator[Match]) -> Iterator[np.ndarray]:
        """Yield the annotations of each sentence; see `fairseq_ext.data.annotations`.

        Raises:
            UsageError: at the end, if too many sentences do not match their parse.
        """
        bar = tqdm(matches, self.text.path.name, self.text.total, unit=" sentences", disable=None)
        with atomic_writer(self.listing) if self.listing else nullcontext() as file:
            for index, match in enumerate(bar):
                self.words += len(match.sentence.words)
                if match.places is None:
                    self._report(index, match, file)
                    yield annotations.blank(len(match.tokens))
                else:
                    yield annotations.record(match.places, match.sentence)
        share = self.mismatches / self.text.total
        if share > self.threshold:
            raise UsageError(
                f"{self.text.path}: the words of {self.mismatches} of {self.text.total} sentences "
                f"({share:.1%}) are not those of their parse, and --threshold is "
                f"{self.threshold:.1%}; parse this text as it is tokenised, or see --mismatches"
            )

    def _report(self, index: int, match: Match, file: TextIO | None) -> None:
        self.mismatches += 1
        text, words, where = match.text(), " ".join(match.sentence.words), match.sentence.where
        if file:
            print(index, text, words, where, sep="\t", file=file)
        if self.mismatches <= SHOWN:
            tqdm.write(f"{where}: sentence {index} is '{text}', parsed '{words}'", sys.stderr)
