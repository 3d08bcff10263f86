"""Reader of CoNLL-2012: a line for each word, with brackets of coreference.

A file has parts of documents. Column 4 is the word, 5 its part of speech. The last column has "(0"
where a phrase of entity 0 begins, "0)" where it ends, "(0)" at a phrase of a single word, and
"(1|(2" where two begin. An empty line ends a sentence.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from fairseq_ext.analysis.coreference.mentions import Mention, Phrase, Text, make_phrase
from fairseq_ext.errors import UsageError
from fairseq_ext.files import read_lines

WORD, TAG = 3, 4
COLUMNS = 6  # at least
BRACKETS = re.compile(r"-|(\(\d+\)?|\d+\))(\|(\(\d+\)?|\d+\)))*")
HEADS_ALONE = {"DT", "PRP"}  # without a noun, as in "those in the room"
AFTER_HEAD = {"IN", "TO", "WDT", "WP", "WP$", "WRB", "VBN", "VBG", "VBD", "VBZ", "VBP", ",", ":"}


EntityPhrase = tuple[int, int, str]
"""The first word and the last word of a phrase, and its entity."""


def read_conll(path: Path) -> Iterator[Text]:
    """Yield the parts of a file's documents.

    Raises:
        UsageError: a line cannot be read; the message names it.
    """
    part: _PartReader | None = None
    number = 0
    for number, line in enumerate(read_lines(path), 1):
        where = f"{path}, line {number}"
        if line.startswith("#begin document"):
            part = _PartReader()
        elif part is not None and line.startswith("#end document"):
            yield part.text(where)
            part = None
        elif part is not None:
            part.add(line, where)
        elif line.strip():
            raise UsageError(f"{where}: is outside of a document; begin it with '#begin document'")
    if part is not None:
        raise UsageError(f"{path}, line {number}: '#end document' is missing after it")


class _PartReader:
    """The words and phrases read so far of a part of a document."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.tags: list[str] = []
        self.ends: list[int] = []
        self.phrases: list[EntityPhrase] = []
        self._open: dict[str, list[tuple[int, str]]] = {}

    def add(self, line: str, where: str) -> None:
        """Read a line; `where` names it."""
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
            self._read_bracket(bracket, where)

    def _read_bracket(self, bracket: str, where: str) -> None:
        entity, here = bracket.strip("()"), len(self.words) - 1
        if bracket.startswith("("):
            self._open.setdefault(entity, []).append((here, where))
        if bracket.endswith(")"):
            if not self._open.get(entity):
                raise UsageError(
                    f"{where}: '{bracket}' ends what has not begun; expected '({entity}'"
                )
            first, _ = self._open[entity].pop()
            self.phrases.append((first, here, entity))

    def _end_sentence(self) -> None:
        if len(self.words) > (self.ends[-1] if self.ends else 0):
            self.ends.append(len(self.words))

    def text(self, where: str) -> Text:
        """Return the part, which ends at the line that `where` names."""
        self._end_sentence()
        for entity, beginnings in self._open.items():
            if beginnings:
                _, line = beginnings[-1]
                raise UsageError(f"{line}: '({entity}' has no '{entity})' before {where}")
        return Text(self.words, self.ends, _find_mentions(self.phrases, self.tags))


def _find_mentions(entity_phrases: Sequence[EntityPhrase], tags: Sequence[str]) -> list[Mention]:
    """Return the phrases that have an antecedent.

    Of two phrases that begin together the longer one is earlier. A phrase with the head of another
    counts as that one.
    """
    ordered = sorted(entity_phrases, key=lambda phrase: (phrase[0], -phrase[1]))
    earlier: list[tuple[str, Phrase]] = []
    mentions = []
    for first, last, entity in ordered:
        phrase = make_phrase(first, last, find_head(first, last, tags))
        antecedents = [p for e, p in earlier if e == entity and p.head != phrase.head]
        same = {phrase.head, *(p.head for p in antecedents)}
        others = [p for e, p in earlier if e != entity and p.head not in same]
        if antecedents:
            kind = classify_tag(tags[phrase.head])
            mentions.append(Mention(phrase, antecedents, others, kind))
        earlier.append((entity, phrase))
    return mentions


def find_head(first: int, last: int, tags: Sequence[str]) -> int:
    """Return the head word of the phrase from `first` to `last`.

    It is the last noun before a word that follows heads, or a pronoun or determiner that stands
    alone before such a word, or the last word.
    """
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


def classify_tag(tag: str) -> str:
    """Return the kind of a mention from the part of speech of its head."""
    if tag.startswith("PRP"):
        return "pronominal"
    return "proper" if tag.startswith("NNP") else "nominal"
