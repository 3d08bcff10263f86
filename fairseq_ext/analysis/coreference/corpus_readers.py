"""Readers of coreference corpora, which return texts of one form.

- refl.N[.gz], synthetic reflexives (Lin, Tan & Frank 2019, "Open Sesame"): a sentence, the index
  of the reflexive, first and last index of its antecedent, first and last indices of other noun
  phrases. Attention to any word of a phrase counts.
- gap-*.tsv[.gz], GAP (Webster et al. 2018): a pronoun, and two names that it may refer to. Rows in
  which it refers to neither are left out. Attention to any word of a name counts, where the corpus
  marks the name and nowhere else.
- *_conll[.gz], CoNLL-2012, or a folder of such files. Attention to the head word of a phrase counts
  (the last noun before a preposition, comma, relative pronoun or verb that follows it). Antecedents
  are earlier phrases of the same entity; the others are earlier phrases of other entities. A line
  is a word: column 4 is the word, 5 its part of speech. The last column has "(0" where a phrase of
  entity 0 begins, "0)" where it ends, "(0)" at a phrase of a single word, and "(1|(2" where two
  begin. An empty line ends a sentence.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from fairseq_ext.analysis.coreference.mentions import Mention, Phrase, Text, make_phrase
from fairseq_ext.errors import UsageError
from fairseq_ext.files import read_lines

REFLEXIVE = re.compile(r"(\S[^\t]*)\t(\d+)\t(\d+ \d+)\t((?:\d+ \d+ ?)*)")
HEADER = "ID Text Pronoun Pronoun-offset A A-offset A-coref B B-offset B-coref URL".split()
TOKEN = re.compile(r"\w+|[^\w\s]")
END = {".", "!", "?"}

WORD, TAG = 3, 4
COLUMNS = 6  # at least
BRACKETS = re.compile(r"-|(\(\d+\)?|\d+\))(\|(\(\d+\)?|\d+\)))*")
HEADS_ALONE = {"DT", "PRP"}  # without a noun, as in "those in the room"
AFTER_HEAD = {"IN", "TO", "WDT", "WP", "WP$", "WRB", "VBN", "VBG", "VBD", "VBZ", "VBP", ",", ":"}
ARTICLES = {"a", "an", "the", "every", "no"}  # determiners that have a noun

EntityPhrase = tuple[int, int, str]
"""The first word and the last word of a phrase, and its entity."""


class Corpus(NamedTuple):
    """Texts with mentions.

    Attributes:
        left_out: the number of texts without antecedent.
        synthetic: each text is one artificial sentence.
    """

    name: str
    texts: list[Text]
    left_out: int
    synthetic: bool


def read_reflexives(path: Path) -> Iterator[Text]:
    """Yield the sentences of synthetic reflexives; raise UsageError for a line of another form."""
    for number, line in enumerate(read_lines(path), 1):
        where, match = f"{path}, line {number}", REFLEXIVE.fullmatch(line)
        if not match:
            raise UsageError(
                f"{where}: expected are four columns separated by tabs: sentence, index of the "
                "reflexive, first and last index of its antecedent, those of other noun phrases"
            )
        words, reflexive = match[1].split(" "), int(match[2])
        ends = [int(i) for i in f"{match[3]} {match[4]}".split()]
        pairs = zip(ends[::2], ends[1::2], strict=True)
        antecedent, *others = [make_phrase(*pair) for pair in pairs]
        if max(reflexive, *ends) >= len(words):
            raise UsageError(
                f"{where}: has index {max(reflexive, *ends)}; expected are 0 to {len(words) - 1}, "
                f"since the sentence has {len(words)} words"
            )
        mention = Mention(make_phrase(reflexive, reflexive), [antecedent], others, "pronominal")
        yield Text(words, [len(words)], [mention])


def read_gap(path: Path) -> Iterator[Text | None]:
    """Yield the texts of GAP, None for one without antecedent.

    Raises:
        UsageError: a line has another form.
    """
    for number, line in enumerate(read_lines(path), 1):
        where, columns = f"{path}, line {number}", line.split("\t")
        if number == 1 and columns != HEADER:
            raise UsageError(f"{where}: expected are the columns {', '.join(HEADER)}")
        if number > 1:
            yield _read_gap_row(columns, where)


def _read_gap_row(columns: list[str], where: str) -> Text | None:
    row = dict(zip(HEADER, columns, strict=False))
    truths = [row.get(f"{name}-coref", "").upper() for name in "AB"]
    if len(columns) != len(HEADER) or not {*truths} <= {"TRUE", "FALSE"}:
        raise UsageError(
            f"{where}: has {len(columns)} columns; expected are {len(HEADER)}, with TRUE or FALSE "
            "in A-coref and B-coref"
        )
    places = [match.span() for match in TOKEN.finditer(row["Text"])]
    words = [row["Text"][begin:end] for begin, end in places]
    pronoun, *names = (_find_phrase(row, name, places, where) for name in ("Pronoun", "A", "B"))
    antecedents = [p for p, truth in zip(names, truths, strict=True) if truth == "TRUE"]
    if not antecedents:
        return None
    others = [p for p, truth in zip(names, truths, strict=True) if truth == "FALSE"]
    ends = [i for i, word in enumerate(words, 1) if word in END or i == len(words)]
    mention = Mention(pronoun, antecedents, others, "pronominal")
    return Text(words, ends, [mention])


def _find_phrase(
    row: dict[str, str], name: str, places: Sequence[tuple[int, int]], where: str
) -> Phrase:
    """Return the words that a row marks as its pronoun or as a name."""
    text, offset = row[name], row[f"{name}-offset"]
    begin = int(offset) if offset.isdecimal() else len(row["Text"])
    end = begin + len(text)
    inside = [i for i, (left, right) in enumerate(places) if left < end and begin < right]
    if row["Text"][begin:end] != text or not inside:
        raise UsageError(
            f"{where}: {name}-offset is '{offset}', where '{text}' was expected in the text"
        )
    return make_phrase(inside[0], inside[-1])


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
        self.ends: set[int] = set()
        self.phrases: list[EntityPhrase] = []
        self._open: dict[str, list[tuple[int, str]]] = {}

    def add(self, line: str, where: str) -> None:
        """Read a line; `where` names it."""
        columns = line.split()
        if not columns:
            self.ends.add(len(self.words))
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

    def text(self, where: str) -> Text:
        """Return the part, which ends at the line that `where` names."""
        for entity, beginnings in self._open.items():
            if beginnings:
                _, line = beginnings[-1]
                raise UsageError(f"{line}: '({entity}' has no '{entity})' before {where}")
        ends = sorted({*self.ends, len(self.words)} - {0})
        return Text(self.words, ends, _find_mentions(self.phrases, self.words, self.tags))


def _find_mentions(
    entity_phrases: Sequence[EntityPhrase], words: Sequence[str], tags: Sequence[str]
) -> list[Mention]:
    """Return the phrases that have an antecedent.

    Of two phrases that begin together the longer one is earlier. A phrase with the head of another
    counts as that one.
    """
    ordered = sorted(entity_phrases, key=lambda phrase: (phrase[0], -phrase[1]))
    earlier: list[tuple[str, Phrase]] = []
    mentions = []
    for first, last, entity in ordered:
        phrase = make_phrase(first, last, find_head(first, last, words, tags))
        antecedents = [p for e, p in earlier if e == entity and p.head != phrase.head]
        same = {phrase.head, *(p.head for p in antecedents)}
        others = [p for e, p in earlier if e != entity and p.head not in same]
        if antecedents:
            mentions.append(Mention(phrase, antecedents, others, classify_tag(tags[phrase.head])))
        earlier.append((entity, phrase))
    return mentions


def find_head(first: int, last: int, words: Sequence[str], tags: Sequence[str]) -> int:
    """Return the head word of the phrase from `first` to `last`.

    It is the last noun before a word that follows heads, or a pronoun or determiner that stands
    alone before such a word, or the last word. Articles never stand alone: "the proposed plan".
    """
    head, noun = last, False
    for word in range(first, last + 1):
        if tags[word] in AFTER_HEAD:
            if noun:
                break
            alone = word > first and tags[word - 1] in HEADS_ALONE
            if alone and words[word - 1].lower() not in ARTICLES:
                return word - 1
        if tags[word].startswith("NN"):
            head, noun = word, True
    return head


def classify_tag(tag: str) -> str:
    """Return the kind of a mention from the part of speech of its head."""
    if tag.startswith("PRP"):
        return "pronominal"
    return "proper" if tag.startswith("NNP") else "nominal"


READERS: dict[str, Callable[[Path], Iterator[Text | None]]] = {
    r"refl\.\d+": read_reflexives,
    r"gap-.*\.tsv": read_gap,
    r".*_conll": read_conll,
}
"""Readers by the pattern of a file's name without .gz."""


def read_corpus(path: Path, limit: int | None = None, lowercase: bool = False) -> Corpus:
    """Read the first `limit` texts of a file, or of a folder of CoNLL-2012 files.

    Raises:
        UsageError: the name is no such corpus's, a file has another form, or there is no mention.
    """
    name = path.name.removesuffix(".gz")
    reader = next((read for form, read in READERS.items() if re.fullmatch(form, name)), None)
    files = [path]
    if path.is_dir():
        reader = read_conll
        files = sorted(p for p in path.rglob("*") if p.name.removesuffix(".gz").endswith("_conll"))
    if reader is None or not files:
        raise UsageError(
            f"{path} is no corpus of coreference; give files named refl.N, gap-….tsv or …_conll, "
            ".gz or not, or a folder with the latter"
        )
    rows = list(islice(chain.from_iterable(map(reader, files)), limit))
    texts = [text for text in rows if text is not None]
    if not any(text.mentions for text in texts):
        raise UsageError(f"{path} has no mention with an antecedent; give another corpus")
    if lowercase:
        texts = [text._replace(words=[word.lower() for word in text.words]) for text in texts]
    return Corpus(name, texts, len(rows) - len(texts), reader is read_reflexives)
