"""Each sentence of a text with its parse."""

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from fairseq_ext.data.annotations import MOST
from fairseq_ext.data.conllu import Sentence, read
from fairseq_ext.errors import UsageError
from fairseq_ext.roles.word_alignment import Token, align_tokens, group_words
from fairseq_ext.tools.parsers import Parse
from fairseq_ext.tools.prepared_text import Text

BATCH = 256  # sentences that are parsed together
NOTHING = Sentence([], [], [])


class Match(NamedTuple):
    """Attributes: places: of each token's word; None if tokens and words do not agree."""

    tokens: Sequence[Token]
    sentence: Sentence
    places: list[int] | None

    def shown(self) -> str:
        return " ".join(
            token.text.decode(errors="replace") if token else "<unk>" for token in self.tokens
        )


def by_files(text: Text, files: Sequence[Path]) -> Iterator[Match]:
    """With the sentences of CoNLL-U files; sentences without tokens have none there.

    Raises:
        UsageError: there are more or fewer, or a file has a fault.
    """
    parsed = chain.from_iterable(map(read, files))
    asked = got = 0
    for tokens in text.sentences:
        if not tokens:
            yield Match(tokens, NOTHING, [])
            continue
        asked += 1
        if sentence := next(parsed, None):
            got += 1
            fits = len(sentence.words) <= MOST
            places = align_tokens(tokens, sentence.words, sentence.surfaces) if fits else None
            yield Match(tokens, sentence, places)
    got += sum(1 for _ in parsed)
    if asked != got:
        raise UsageError(
            f"{text.path} has {asked} sentences and {', '.join(map(str, files))} {got}; give the "
            "parse of this split, sentence by sentence"
        )


def by_parser(text: Text, parse: Parse) -> Iterator[Match]:
    """With what a parser says of the words that the tokens make."""
    sentences = iter(text.sentences)
    while batch := list(islice(sentences, BATCH)):
        made = [group_words(tokens) for tokens in batch]
        parsed = parse([words for words, _ in made if words])
        for tokens, (words, places) in zip(batch, made, strict=True):
            yield Match(tokens, next(parsed) if words else NOTHING, places)
