"""Parses of the sentences of a text, from files or from a parser that a user may have installed."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from fairseq_ext.data.annotations import MOST
from fairseq_ext.data.conllu import NONE, Sentence, read
from fairseq_ext.data.word_alignment import Token, align_tokens, group_words
from fairseq_ext.errors import UsageError
from fairseq_ext.extras import import_extra
from fairseq_ext.files import batched
from fairseq_ext.tools.prepared_text import PreparedText

BATCH = 256  # sentences that are parsed together
EMPTY = Sentence([], [], [])
UNUSED = ["tagger", "morphologizer", "attribute_ruler", "lemmatizer", "ner"]  # parts of spacy

Batch = Sequence[Sequence[str]]
"""The words of several sentences, none of them empty."""

Parse = Callable[[Batch], Iterator[Sentence]]
"""A parser: gives the parse of each sentence, in their order."""


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
        return " ".join(t.text.decode(errors="replace") if t else "<unk>" for t in self.tokens)


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
    for batch in batched(text.sentences, BATCH):
        split = [group_words(tokens) for tokens in batch]
        parses = parse([words for words, _ in split if words])
        for tokens, (words, places) in zip(batch, split, strict=True):
            fits = len(words) <= MOST
            yield Match(tokens, next(parses) if words else EMPTY, places if fits else None)


def shuffle_trees(matches: Iterable[Match], seed: int) -> Iterator[Match]:
    """Yield the matches with each tree laid over its words in another order, drawn at random.

    Words keep their places, and a sentence has as many links of each relation as before: a control
    for what a parse tells.
    """
    rng = random.Random(seed)
    for match in matches:
        order = [*range(len(match.sentence.words))]
        rng.shuffle(order)
        heads, relations = [NONE] * len(order), [""] * len(order)
        for place, head, relation in zip(
            order, match.sentence.heads, match.sentence.relations, strict=True
        ):
            heads[place] = head if head == NONE else order[head]
            relations[place] = relation
        yield match._replace(sentence=match.sentence._replace(heads=heads, relations=relations))


def load_parser(name: str) -> Parse:
    """Return the parser "spacy:MODEL" or "stanza:LANG".

    Raises:
        UsageError: the name is neither, the library is not installed, or has no such model.
    """
    kind, _, model = name.partition(":")
    if kind not in LOADERS or not model:
        raise UsageError(
            f"--parser is '{name}'; give spacy:MODEL, as in spacy:en_core_web_sm, or stanza:LANG"
        )
    return LOADERS[kind](import_extra(kind, kind, f"--parser {name}"), model)


def _load_spacy(spacy: ModuleType, model: str) -> Parse:
    try:
        nlp = spacy.load(model, exclude=UNUSED)
    except OSError:
        raise UsageError(
            f"spacy has no model '{model}'; python -m spacy download {model}, or give another"
        ) from None
    if not any("nsubj" in labels for labels in nlp.pipe_labels.values()):
        raise UsageError(
            f"spacy's model '{model}' does not name relations as Universal Dependencies (it has no "
            "nsubj); give another, or stanza:LANG"
        )

    def parse(batch: Batch) -> Iterator[Sentence]:
        docs = [spacy.tokens.Doc(nlp.vocab, words=list(words)) for words in batch]
        for words, doc in zip(batch, nlp.pipe(docs), strict=True):
            heads = [NONE if word.head.i == word.i else word.head.i for word in doc]
            yield Sentence(words, heads, [word.dep_ for word in doc])

    return parse


def _load_stanza(stanza: ModuleType, language: str) -> Parse:
    try:
        nlp = stanza.Pipeline(
            language,
            processors="tokenize,pos,lemma,depparse",
            tokenize_pretokenized=True,
            download_method=None,
            verbose=False,
        )
    except Exception as error:  # of many kinds
        reason = str(error).strip().partition("\n")[0]
        raise UsageError(
            f"stanza has no model for '{language}' ({reason}); "
            f"python -c \"import stanza; stanza.download('{language}')\""
        ) from None

    def parse(batch: Batch) -> Iterator[Sentence]:
        parses = nlp([list(words) for words in batch]).sentences
        for words, sentence in zip(batch, parses, strict=True):
            heads = [word.head - 1 for word in sentence.words]  # 0, a root, becomes NONE
            yield Sentence(words, heads, [word.deprel for word in sentence.words])

    return parse


LOADERS = {"spacy": _load_spacy, "stanza": _load_stanza}
