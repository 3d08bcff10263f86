"""Baselines that find antecedents without a model: by position, and by four rules.

The rules are sieves (Clark et al. 2019; deterministic coreference as in Lee et al. 2011): the same
words; the same head word; agreement in number, gender and person; any other noun phrase. The first
sieve that any phrase passes decides, and the nearest phrase that passes it is chosen. The word
lists are short, and ours.
"""

from collections.abc import Callable, Sequence
from configparser import ConfigParser
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from fairseq_ext.analysis.coreference.mentions import Mention, Phrase, Text

LISTS = ConfigParser()
LISTS.read_string(Path(__file__).with_name("words.ini").read_text("utf-8"))
WORDS = {name: {*words.split()} for name, words in LISTS["words"].items()}
GENDERS = ("masculine", "feminine", "neuter")


class Features(NamedTuple):
    """The grammatical features of a noun phrase; None is unknown and agrees with everything."""

    plural: bool | None
    gender: str | None
    person: int


def features(words: Sequence[str], head: str) -> Features:
    """Return the features of a noun phrase.

    Its gender is the head word's, else that of the first other word that has one and is no
    possessive.
    """
    genders = (
        _gender(word) for word in (head, *(w for w in words if w not in WORDS["possessive"]))
    )
    person = 1 if head in WORDS["first"] else 2 if head in WORDS["second"] else 3
    return Features(_plural(head), next(filter(None, genders), None), person)


def _gender(word: str) -> str | None:
    return next((gender for gender in GENDERS if word in WORDS[gender]), None)


def _plural(word: str) -> bool | None:
    if word in WORDS["singular"] | WORDS["plural"]:
        return word in WORDS["plural"]
    if word in WORDS["second"] or not word.isalpha():
        return None
    return word.endswith("s") and not word.endswith(("ss", "us", "is"))


def agree(one: Features, other: Features) -> bool:
    """Tell whether two noun phrases agree in all features that are known of both."""
    return all(a == b or a is None or b is None for a, b in zip(one, other, strict=True))


def choose_by_rules(text: Text, mention: Mention) -> Phrase:
    """Return the noun phrase that the sieves choose as antecedent."""
    phrases = sort_by_distance(mention)
    own = _lower(text, mention.phrase)
    sieves: list[Callable[[list[str], str], bool]] = [
        lambda words, head: words == own[0],
        lambda words, head: head == own[1],
        lambda words, head: agree(features(words, head), features(*own)),
        lambda words, head: True,
    ]
    return next(p for sieve in sieves for p in phrases if sieve(*_lower(text, p)))


def _lower(text: Text, phrase: Phrase) -> tuple[list[str], str]:
    """Return the words and the head word of a phrase in lower case."""
    return [text.words[i].lower() for i in phrase.words], text.words[phrase.head].lower()


def sort_by_distance(mention: Mention) -> list[Phrase]:
    """Return the noun phrases, nearest first; of two at the same distance, the earlier first."""
    phrases = chain(mention.antecedents, mention.others)
    return sorted(phrases, key=lambda p: (abs(p.head - mention.phrase.head), p.head))


def previous_word(text: Text, mention: Mention) -> bool:
    """Tell whether a head that attends to the previous word is right."""
    before = mention.phrase.head - 1
    return any(before in phrase.targets for phrase in mention.antecedents)


BASELINES: dict[str, Callable[[Text, Mention], bool]] = {
    "previous word": previous_word,
    "nearest noun phrase": lambda _, mention: sort_by_distance(mention)[0] in mention.antecedents,
    "rules": lambda text, mention: choose_by_rules(text, mention) in mention.antecedents,
}
"""Functions that tell whether a baseline finds an antecedent of a mention, by name."""
