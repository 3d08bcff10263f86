"""The words of the built-in corpus, in English and German, from the tables of lexicon.txt."""

from pathlib import Path
from typing import NamedTuple

from fairseq_ext.files import read_lines


class Noun(NamedTuple):
    """A noun; its kind says which verbs and adjectives it goes with."""

    kind: str
    english: str
    english_plural: str
    german: str
    gender: str
    plural: str


class Adjective(NamedTuple):
    """An adjective with the stem that German endings follow."""

    english: str
    stem: str
    kinds: str


class Determiner(NamedTuple):
    """An article or possessive: its German endings and those of an adjective behind it."""

    english: str
    number: str
    stem: str
    endings: str
    adjective: str
    known: str


class Pronoun(NamedTuple):
    """A pronoun as a subject; person 0 is "ich", 1 is "er" and 2 the plural."""

    english: str
    german: str
    person: str


class Verb(NamedTuple):
    """A verb: German prefix, forms for ich and er, and the objects it takes.

    An object is CASE:KINDS, or ENGLISH:GERMAN:CASE:KINDS with prepositions; a comma separates two.
    """

    subjects: str
    english: str
    past: str
    prefix: str
    infinitive: str
    ich: str
    er: str
    participle: str
    auxiliary: str
    objects: str


def _read_tables() -> dict[str, list[list[str]]]:
    """Return the rows of each table of lexicon.txt."""
    tables: dict[str, list[list[str]]] = {}
    for line in read_lines(Path(__file__).with_name("lexicon.txt")):
        if line.startswith("["):
            rows = tables.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            rows.append([cell.replace("_", " ").strip("-") for cell in line.split()])
    return tables


_TABLES = _read_tables()
NOUNS = [Noun(*row) for row in _TABLES["nouns"]]
ADJECTIVES = [Adjective(*row) for row in _TABLES["adjectives"]]
DETERMINERS = [Determiner(*row) for row in _TABLES["determiners"]]
PRONOUNS = [Pronoun(*row) for row in _TABLES["pronouns"]]
VERBS = [Verb(*row) for row in _TABLES["verbs"]]
CLAUSAL_VERBS = [Verb(*row) for row in _TABLES["clausal_verbs"]]

# Columns are masculine, feminine, neuter, plural; rows are the cases.
ENDINGS = {
    "the": {"nom": "der die das die", "acc": "den die das die", "dat": "dem der dem den"},
    "der": {"nom": "er e es e", "acc": "en e es e", "dat": "em er em en"},
    "ein": {"nom": "- e - e", "acc": "en e - e", "dat": "em er em en"},
    "weak": {"nom": "e e e en", "acc": "en e e en", "dat": "en en en en"},
    "mixed": {"nom": "er e es en", "acc": "en e es en", "dat": "en en en en"},
    "strong": {"nom": "er e es e", "acc": "en e es e", "dat": "em er em en"},
    "none": dict.fromkeys(("nom", "acc", "dat"), "- - - -"),
}

AUXILIARIES = {
    "haben": "habe hat haben",
    "sein": "bin ist sind",
    "werden": "werde wird werden",
}
ADVERBS = {
    "present": (("today", "heute"), ("now", "jetzt"), ("every day", "jeden Tag")),
    "past": (("yesterday", "gestern"), ("last week", "letzte Woche")),
    "future": (("tomorrow", "morgen"), ("soon", "bald")),
}
CONJUNCTIONS = (("because", "weil"), ("although", "obwohl"), ("before", "bevor"))
CONTRACTIONS = {"in dem": "im", "von dem": "vom"}
