"""Readers of coreference corpora, which return texts of one form.

- refl.N[.gz], synthetic reflexives (Lin, Tan & Frank 2019, "Open Sesame"): a sentence, the index
  of the reflexive, first and last index of its antecedent, first and last indices of other noun
  phrases. Attention to any word of a phrase counts.
- gap-*.tsv[.gz], GAP (Webster et al. 2018): a pronoun, and two names that it may refer to. Rows in
  which it refers to neither are left out. Attention to any word of a name counts, where the corpus
  marks the name and nowhere else.
- *_conll[.gz], CoNLL-2012, or a folder of such files. Attention to the head word of a phrase counts
  (the last noun before a preposition, comma, relative pronoun or verb that follows it). Antecedents
  are earlier phrases of the same entity; the others are earlier phrases of other entities.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from fairseq_ext.analysis.coreference.conll2012 import read_conll
from fairseq_ext.analysis.coreference.mentions import Mention, Phrase, Text, make_phrase
from fairseq_ext.errors import UsageError
from fairseq_ext.files import read_lines

REFLEXIVE = re.compile(r"(\S[^\t]*)\t(\d+)\t(\d+ \d+)\t((?:\d+ \d+ ?)*)")
HEADER = (
    *("ID", "Text", "Pronoun", "Pronoun-offset", "A", "A-offset", "A-coref"),
    *("B", "B-offset", "B-coref", "URL"),
)
TOKEN = re.compile(r"\w+|[^\w\s]")
END = {".", "!", "?"}


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
        antecedent, *others = [
            make_phrase(*pair) for pair in zip(ends[::2], ends[1::2], strict=True)
        ]
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
        if number == 1 and tuple(columns) != HEADER:
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
