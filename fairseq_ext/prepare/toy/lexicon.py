"""The words of the built-in corpus, in English and German, from the tables of lexicon.txt.

Columns of a verb: German prefix, forms for ich and er, and the objects it takes. An object is
CASE:KINDS, or ENGLISH:GERMAN:CASE:KINDS with prepositions; a comma separates two. The kind of a
noun says which verbs and adjectives it goes with.
"""

from collections import namedtuple
from pathlib import Path

from fairseq_ext.files import batched, read_lines

Noun = namedtuple("Noun", "kind english english_plural german gender plural")
Adjective = namedtuple("Adjective", "english stem kinds")
Determiner = namedtuple("Determiner", "english number stem endings adjective known")
Pronoun = namedtuple("Pronoun", "english german person")
Verb = namedtuple(
    "Verb", "subjects english past prefix infinitive ich er participle auxiliary objects"
)


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
ENDINGS = {(name, case): columns for name, case, *columns in _TABLES["endings"]}
AUXILIARIES = {infinitive: forms for infinitive, *forms in _TABLES["auxiliaries"]}
ADVERBS = {tense: list(batched(words, 2)) for tense, *words in _TABLES["adverbs"]}
CONJUNCTIONS = _TABLES["conjunctions"]
CONTRACTIONS = dict(_TABLES["contractions"])
