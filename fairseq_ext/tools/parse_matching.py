"""Matching of each sentence of a text with its parse."""

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from fairseq_ext.data.annotations import MOST
from fairseq_ext.data.conllu import Sentence, read
from fairseq_ext.errors import UsageError
from fairseq_ext.roles.word_alignment import Token, align_tokens, group_words
from fairseq_ext.tools.parsers import Parse
from fairseq_ext.tools.prepared_text import PreparedText

BATCH = 256  # sentences that are parsed together
EMPTY = Sentence([], [], [])


class Match(NamedTuple):
    """A sentence of a text with its parse.

    Attributes:
        tokens: the sentence.
        sentence: its parse.
        places: for each token, the place of its word in the parse; None if tokens and words do
            not agree.
    """

    tokens: Sequence[Token]
    sentence: Sentence
    places: list[int] | None

    def text(self) -> str:
        """Return the tokens, separated by spaces."""
        return " ".join(
            token.text.decode(errors="replace") if token else "<unk>" for token in self.tokens
        )


def match_files(text: PreparedText, files: Sequence[Path]) -> Iterator[Match]:
    """Yield each sentence with its parse in CoNLL-U files, which lack sentences without tokens.

    Raises:
        UsageError: the files have more or fewer sentences, or a file has a fault.
    """
    parses = chain.from_iterable(map(read, files))
    sentences = parsed = 0
    for tokens in text.sentences:
        if not tokens:
            yield Match(tokens, EMPTY, [])
            continue
        sentences += 1
        if parse := next(parses, None):
            parsed += 1
            fits = len(parse.words) <= MOST
            places = align_tokens(tokens, parse.words, parse.surfaces) if fits else None
            yield Match(tokens, parse, places)
    parsed += sum(1 for _ in parses)
    if sentences != parsed:
        raise UsageError(
            f"{text.path} has {sentences} sentences and {', '.join(map(str, files))} {parsed}; "
            "give the parse of this split, sentence by sentence"
        )


def match_parser(text: PreparedText, parse: Parse) -> Iterator[Match]:
    """Yield each sentence with a parser's analysis of the words that its tokens make."""
    sentences = iter(text.sentences)
    while batch := list(islice(sentences, BATCH)):
        split = [group_words(tokens) for tokens in batch]
        parses = parse([words for words, _ in split if words])
        for tokens, (words, places) in zip(batch, split, strict=True):
            yield Match(tokens, next(parses) if words else EMPTY, places)
