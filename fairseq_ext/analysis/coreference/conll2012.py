"""CoNLL-2012: columns of words, in parts of documents, with brackets of coreference.

Column 4 is the word, 5 its part of speech, and the last one has "(0" where a phrase of entity 0
begins, "0)" where it ends, "(0)" on one of a single word, and "(1|(2" where two begin. An empty
line ends a sentence.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fairseq_ext.analysis.coreference.mentions import Mention, Text, span
from fairseq_ext.errors import UsageError
from fairseq_ext.files import read_lines

WORD, TAG = 3, 4
COLUMNS = 6  # at least
BRACKETS = re.compile(r"-|(\(\d+\)?|\d+\))(\|(\(\d+\)?|\d+\)))*")
HEADS_ALONE = {"DT", "PRP"}  # without a noun, as in "those in the room"
AFTER_HEAD = {"IN", "TO", "WDT", "WP", "WP$", "WRB", "VBN", "VBG", "VBD", "VBZ", "VBP", ",", ":"}


class Found(NamedTuple):
    """A phrase of an entity, from one word to another."""

    first: int
    last: int
    entity: str


def read_conll(path: Path) -> Iterator[Text]:
    """The parts of its documents.

    Raises:
        UsageError: with the line that is not as it should be.
    """
    part: _Part | None = None
    number = 0
    for number, line in enumerate(read_lines(path), 1):
        where = f"{path}, line {number}"
        if line.startswith("#begin document"):
            part = _Part()
        elif part is not None and line.startswith("#end document"):
            yield part.text(where)
            part = None
        elif part is not None:
            part.add(line, where)
        elif line.strip():
            raise UsageError(f"{where}: is outside of a document; begin it with '#begin document'")
    if part is not None:
        raise UsageError(f"{path}, line {number}: '#end document' is missing after it")


class _Part:
    """What has been read of a part."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.tags: list[str] = []
        self.ends: list[int] = []
        self.found: list[Found] = []
        self._open: dict[str, list[tuple[int, str]]] = {}

    def add(self, line: str, where: str) -> None:
        columns = line.split()
        if not columns:
            self._end_sentence()
            return
        if len(columns) < COLUMNS or not BRACKETS.fullmatch(columns[-1]):
            raise UsageError(
                f"{where}: has {len(columns)} columns that end with '{columns[-1]}'; expected are "
                f"at least {COLUMNS}, the last one - or brackets of coreference as in (1|(2"
            )
        self.words.append(columns[WORD])
        self.tags.append(columns[TAG])
        for bracket in columns[-1].strip("-").split("|"):
            self._bracket(bracket, where)

    def _bracket(self, bracket: str, where: str) -> None:
        entity, here = bracket.strip("()"), len(self.words) - 1
        if bracket.startswith("("):
            self._open.setdefault(entity, []).append((here, where))
        if bracket.endswith(")"):
            if not self._open.get(entity):
                raise UsageError(
                    f"{where}: '{bracket}' ends what has not begun; expected '({entity}'"
                )
            first, _ = self._open[entity].pop()
            self.found.append(Found(first, here, entity))

    def _end_sentence(self) -> None:
        if len(self.words) > (self.ends[-1] if self.ends else 0):
            self.ends.append(len(self.words))

    def text(self, where: str) -> Text:
        self._end_sentence()
        for entity, begun in self._open.items():
            if begun:
                raise UsageError(f"{begun[-1][1]}: '({entity}' has no '{entity})' before {where}")
        return Text(self.words, self.ends, _mentions(self.found, self.tags))


def _mentions(found: Sequence[Found], tags: Sequence[str]) -> list[Mention]:
    """Phrases that have an antecedent. Of two that begin together the longer one is earlier; a
    phrase with the head of another counts as that one."""
    ordered = sorted(found, key=lambda phrase: (phrase.first, -phrase.last))
    phrases = [span(p.first, p.last, head_of(p.first, p.last, tags)) for p in ordered]
    mentions = []
    for number, (own, phrase) in enumerate(zip(ordered, phrases, strict=True)):
        before = [*zip(ordered[:number], phrases, strict=False)]
        antecedents = [p for f, p in before if f.entity == own.entity and p.head != phrase.head]
        taken = {phrase.head, *(p.head for p in antecedents)}
        others = [p for f, p in before if f.entity != own.entity and p.head not in taken]
        if antecedents:
            kind = kind_of(tags[phrase.head])
            mentions.append(Mention(phrase, antecedents, others, kind))
    return mentions


def head_of(first: int, last: int, tags: Sequence[str]) -> int:
    """The last noun before what follows a head; a pronoun or determiner that stands there alone, or
    the last word."""
    head, noun = last, False
    for word in range(first, last + 1):
        if tags[word] in AFTER_HEAD:
            if noun:
                break
            if word > first and tags[word - 1] in HEADS_ALONE:
                return word - 1
        if tags[word].startswith("NN"):
            head, noun = word, True
    return head


def kind_of(tag: str) -> str:
    if tag.startswith("PRP"):
        return "pronominal"
    return "proper" if tag.startswith("NNP") else "nominal"
