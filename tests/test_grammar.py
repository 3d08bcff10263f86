"""The grammar of the built-in corpus against sentences written by hand."""

import pytest

from fairseq_ext.prepare.toy import lexicon
from fairseq_ext.prepare.toy.corpus import (
    PRONOUNS,
    Clause,
    Phrase,
    noun_phrase,
    say_english,
    say_german,
    sentence,
    third_person,
)


def find(rows: list, english: str):
    return next(row for row in rows if row.english == english)


def phrase(text: str) -> Phrase:
    """A pronoun, or an article ("-" for none), perhaps an adjective, and a noun."""
    for pronoun in PRONOUNS:
        if text == pronoun.english:
            return pronoun
    article, *adjectives, word = text.split()
    noun = next(n for n in lexicon.NOUNS if word in (n.english, n.english_plural))
    adjective = find(lexicon.ADJECTIVES, adjectives[0]) if adjectives else None
    determiner = find(lexicon.DETERMINERS, {"-": "", "an": "a"}.get(article, article))
    return noun_phrase(noun, determiner, adjective, plural=word == noun.english_plural)


def clause(subject: str, verb: str, *objects: str, tense: str = "present", **rest) -> Clause:
    row = find(lexicon.VERBS, verb)
    slots = (["", "", *text.split(":")][-4:-1] for text in row.objects.split(","))
    filled = [(*slot, phrase(text)) for slot, text in zip(slots, objects, strict=True)]
    return Clause(phrase(subject), row, tense, filled, **rest)


NOT = {"negative": True}
PAST, FUTURE = {"tense": "past"}, {"tense": "future"}
TODAY = {"adverb": ("today", "heute")}

STATEMENTS = [  # clause, English, German, German as a subordinate clause
    # gender, case, endings of adjectives
    clause("the old man", "give", "the small child", "a red apple"),
    "the old man gives the small child a red apple",
    "der alte Mann gibt dem kleinen Kind einen roten Apfel",
    "der alte Mann dem kleinen Kind einen roten Apfel gibt",
    clause("a young woman", "love", "this black horse"),
    "a young woman loves this black horse",
    "eine junge Frau liebt dieses schwarze Pferd",
    "eine junge Frau dieses schwarze Pferd liebt",
    clause("a small girl", "buy", "an old book"),
    "a small girl buys an old book",
    "ein kleines Mädchen kauft ein altes Buch",
    "ein kleines Mädchen ein altes Buch kauft",
    clause("these men", "help", "my friends"),
    "these men help my friends",
    "diese Männer helfen meinen Freunden",
    "diese Männer meinen Freunden helfen",
    clause("- black cats", "follow", "- old dogs"),
    "black cats follow old dogs",
    "schwarze Katzen folgen alten Hunden",
    "schwarze Katzen alten Hunden folgen",
    # separable verbs, tenses, agreement
    clause("I", "open", "her box"),
    "I open her box",
    "ich mache ihren Kasten auf",
    "ich ihren Kasten aufmache",
    clause("she", "invite", "the teacher", **PAST),
    "she invited the teacher",
    "sie hat den Lehrer eingeladen",
    "sie den Lehrer eingeladen hat",
    clause("they", "listen to", "the sister", **FUTURE),
    "they will listen to the sister",
    "sie werden der Schwester zuhören",
    "sie der Schwester zuhören werden",
    clause("my dog", "run", "the dark garden", **PAST),
    "my dog ran through the dark garden",
    "mein Hund ist durch den dunklen Garten gelaufen",
    "mein Hund durch den dunklen Garten gelaufen ist",
    # adverbs behind what is known, before what is new; contractions
    clause("he", "see", "the city", **TODAY),
    "he sees the city today",
    "er sieht die Stadt heute",
    "er die Stadt heute sieht",
    clause("he", "see", "a city", **TODAY),
    "he sees a city today",
    "er sieht heute eine Stadt",
    "er heute eine Stadt sieht",
    clause("we", "sleep", "the house", **TODAY),
    "we sleep in the house today",
    "wir schlafen heute im Haus",
    "wir heute im Haus schlafen",
    # negation
    clause("I", "find", "our keys", **NOT),
    "I do not find our keys",
    "ich finde unsere Schlüssel nicht",
    "ich unsere Schlüssel nicht finde",
    clause("his sister", "wait for", "the child", **NOT, **PAST),
    "his sister did not wait for the child",
    "seine Schwester hat nicht auf das Kind gewartet",
    "seine Schwester nicht auf das Kind gewartet hat",
    clause("we", "call", "the women", **NOT, **FUTURE),
    "we will not call the women",
    "wir werden die Frauen nicht anrufen",
    "wir die Frauen nicht anrufen werden",
]
ROWS = list(zip(*[iter(STATEMENTS)] * 4, strict=True))


@pytest.mark.parametrize(("given", "english", "german", "below"), ROWS, ids=str)
def test_statements(given, english, german, below):
    assert say_english(given) == english
    assert say_german(given) == german
    assert say_german(given, "last") == below


@pytest.mark.parametrize(
    ("given", "english", "german"),
    [
        (
            clause("the girl", "close", "the window"),
            "does the girl close the window",
            "macht das Mädchen das Fenster zu",
        ),
        (
            clause("they", "thank", "the friend", **PAST, **NOT),
            "did they not thank the friend",
            "haben sie dem Freund nicht gedankt",
        ),
        (
            clause("I", "give", "her friend", "an egg", **FUTURE),
            "will I give her friend an egg",
            "werde ich ihrem Freund ein Ei geben",
        ),
    ],
)
def test_questions(given, english, german):
    assert say_english(given, question=True) == english
    assert say_german(given, "first") == german


def test_an_old_apple_begins_with_a_vowel():
    assert phrase("an old apple").english == "an old apple"
    assert phrase("a red apple").english == "a red apple"


@pytest.mark.parametrize(("base", "form"), [("close", "closes"), ("wait for", "waits for")])
def test_third_person(base, form):
    assert third_person(base) == form


def test_sentences_begin_with_a_capital_letter():
    assert sentence("she runs", "sie läuft", "?") == ("She runs?", "Sie läuft?")
