"""Corpora of coreference in one form.

- refl.N[.gz], synthetic reflexives (Lin, Tan & Frank 2019, "Open Sesame"): a sentence, the index
  of the reflexive, the first and last index of its antecedent, those of other noun phrases. All
  words of a phrase count.
- gap-*.tsv[.gz], GAP (Webster et al. 2018): a pronoun, and two names that it may mean. Rows in
  which it means neither are left out. All words of a name count, where the corpus marks it and
  nowhere else.
- *_conll[.gz], CoNLL-2012, or a folder of such files. Of a phrase its head word counts (the last
  noun before a preposition, comma, relative pronoun or verb that follows it). Antecedents are
  earlier phrases of the same entity, the others earlier ones of other entities.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from fairseq_ext.analysis.coreference.conll2012 import read_conll
from fairseq_ext.analysis.coreference.mentions import Mention, Phrase, Text, span
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
        left_out: how many texts have no antecedent. synthetic: each text is one made sentence.
    """

    name: str
    texts: list[Text]
    left_out: int
    synthetic: bool


def read_reflexives(path: Path) -> Iterator[Text]:
    for number, line in enumerate(read_lines(path), 1):
        where, match = f"{path}, line {number}", REFLEXIVE.fullmatch(line)
        if not match:
            raise UsageError(
                f"{where}: expected are four columns parted by tabs, a sentence, the index of the "
                "reflexive, first and last index of its antecedent, those of other noun phrases"
            )
        words, reflexive = match[1].split(" "), int(match[2])
        ends = [int(i) for i in f"{match[3]} {match[4]}".split()]
        antecedent, *others = [span(*pair) for pair in zip(ends[::2], ends[1::2], strict=True)]
        if max(reflexive, *ends) >= len(words):
            raise UsageError(
                f"{where}: has index {max(reflexive, *ends)}; expected are 0 to {len(words) - 1}, "
                f"since the sentence has {len(words)} words"
            )
        mention = Mention(span(reflexive, reflexive), [antecedent], others, "pronominal")
        yield Text(words, [len(words)], [mention])


def read_gap(path: Path) -> Iterator[Text | None]:
    for number, line in enumerate(read_lines(path), 1):
        where, columns = f"{path}, line {number}", line.split("\t")
        if number == 1 and tuple(columns) != HEADER:
            raise UsageError(f"{where}: expected are the columns {', '.join(HEADER)}")
        if number > 1:
            yield _gap_text(columns, where)


def _gap_text(columns: list[str], where: str) -> Text | None:
    row = dict(zip(HEADER, columns, strict=False))
    true = [row.get(f"{name}-coref", "").upper() for name in "AB"]
    if len(columns) != len(HEADER) or not {*true} <= {"TRUE", "FALSE"}:
        raise UsageError(
            f"{where}: has {len(columns)} columns; expected are {len(HEADER)}, with TRUE or FALSE "
            "in A-coref and B-coref"
        )
    places = [match.span() for match in TOKEN.finditer(row["Text"])]
    words = [row["Text"][begin:end] for begin, end in places]
    pronoun, *names = (_marked(row, name, places, where) for name in ("Pronoun", "A", "B"))
    by = {said: [p for p, t in zip(names, true, strict=True) if t == said] for said in {*true}}
    if "TRUE" not in by:
        return None
    ends = [i for i, word in enumerate(words, 1) if word in END or i == len(words)]
    mention = Mention(pronoun, by["TRUE"], by.get("FALSE", []), "pronominal")
    return Text(words, ends, [mention])


def _marked(
    row: dict[str, str], name: str, places: Sequence[tuple[int, int]], where: str
) -> Phrase:
    """The words that a row marks as its pronoun, or as a name."""
    text, offset = row[name], row[f"{name}-offset"]
    begin = int(offset) if offset.isdecimal() else len(row["Text"])
    end = begin + len(text)
    inside = [i for i, (left, right) in enumerate(places) if left < end and begin < right]
    if row["Text"][begin:end] != text or not inside:
        raise UsageError(
            f"{where}: {name}-offset is '{offset}', where '{text}' was expected in the text"
        )
    return span(inside[0], inside[-1])


READERS: dict[str, Callable[[Path], Iterator[Text | None]]] = {
    r"refl\.\d+": read_reflexives,
    r"gap-.*\.tsv": read_gap,
    r".*_conll": read_conll,
}
"""By the name of a file, without .gz."""


def read(path: Path, limit: int | None = None, lowercase: bool = False) -> Corpus:
    """A file, or a folder of CoNLL-2012 files; of its texts the first `limit`.

    Raises:
        UsageError: its name is that of no such corpus, it is not as it should be, or it has no
            mention.
    """
    name = path.name.removesuffix(".gz")
    reader = next((found for form, found in READERS.items() if re.fullmatch(form, name)), None)
    files = [path]
    if path.is_dir():
        reader, files = read_conll, sorted(p for p in path.rglob("*") if _is_conll(p))
    if reader is None or not files:
        raise UsageError(
            f"{path} is no corpus of coreference; give files named refl.N, gap-….tsv or …_conll, "
            ".gz or not, or a folder with the latter"
        )
    found = list(islice(chain.from_iterable(map(reader, files)), limit))
    texts = [text for text in found if text is not None]
    if not any(text.mentions for text in texts):
        raise UsageError(f"{path} has no mention with an antecedent; give another corpus")
    if lowercase:
        texts = [text._replace(words=[word.lower() for word in text.words]) for text in texts]
    return Corpus(name, texts, len(found) - len(texts), reader is read_reflexives)


def _is_conll(path: Path) -> bool:
    return path.name.removesuffix(".gz").endswith("_conll")
