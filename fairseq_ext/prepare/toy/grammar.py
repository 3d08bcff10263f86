"""The grammar of the built-in corpus: a clause is a structure of words, said in two languages."""

import re
from typing import NamedTuple

from fairseq_ext.prepare.toy import lexicon as lex
from fairseq_ext.prepare.toy.lexicon import (
    BE,
    CASES,
    MODALS,
    Adjective,
    Adverb,
    Determiner,
    Noun,
    Verb,
)

Pair = tuple[str, str]


class Phrase(NamedTuple):
    """What can be a subject or an object; ``status`` decides its place in the German clause."""

    english: str
    objective: str
    nom: str
    acc: str
    dat: str
    person: int
    status: str
    kind: str = "person"
    column: int = 0


class Slot(NamedTuple):
    """What a verb asks for: a case, kinds of noun, and perhaps a preposition in each language."""

    english: str
    german: str
    case: str
    kinds: str


class Clause(NamedTuple):
    """Subject, verb and the rest; ``front`` (in both languages) comes before everything else."""

    subject: Phrase
    verb: Verb
    objects: tuple[tuple[Slot, Phrase], ...] = ()
    predicate: Adjective | None = None
    adverb: Adverb | None = None
    tense: str = "present"
    negative: bool = False
    front: Pair = ("", "")


def join(*words: str | None) -> str:
    return " ".join(filter(None, words))


def slot(text: str) -> Slot:
    return Slot(*["", "", *text.split(":")][-4:])


def suits(adverb: Adverb, tense: str) -> bool:
    return ("modal" if tense in MODALS else tense) in adverb.tenses


# Phrases


def german_noun(noun: Noun, case: str, plural: bool) -> str:
    if plural:
        return noun.plural + "n" * (case == "dat" and noun.plural[-1] not in "ns")
    return noun.plural if noun.gender == "w" and case != "nom" else noun.german


def ending(name: str, case: str, column: int) -> str:
    return lex.ENDINGS[name][CASES.index(case)].split()[column].replace("-", "")


def noun_phrase(
    noun: Noun,
    article: Determiner,
    adjective: Adjective | None = None,
    *,
    plural: bool = False,
    negative: bool = False,
) -> Phrase:
    """A noun with its article; ``negative`` puts "kein" where English only negates the verb."""
    column = 3 if plural else "mfn".index(noun.gender.replace("w", "m"))
    words = article.english, adjective and adjective.english
    english = join(*words, noun.english_plural if plural else noun.english)
    english = re.sub(r"^a (?=[aeiou])", "an ", english)
    status = "kein" if negative else article.status
    article = lex.NO if negative else article

    def decline(case: str) -> str:
        described = adjective and adjective.stem + ending(article.adjective, case, column)
        head = article.stem + ending(article.endings, case, column)
        return join(head, described, german_noun(noun, case, plural))

    forms = map(decline, CASES)
    return Phrase(english, english, *forms, 3 if plural else 2, status, noun.kind, column)


PRONOUNS = [Phrase(*row[:5], int(row.person), "pronoun") for row in lex.PRONOUNS]
WHO = Phrase("who", "whom", "wer", "wen", "wem", 2, "pronoun")
WHAT = Phrase("what", "what", "was", "was", "", 2, "pronoun", "thing")


def reflexive(subject: Phrase, pronoun: Phrase) -> bool:
    """One of them is part of the other: "I see me", "we see me", "you see you"."""
    pair = {subject.english, pronoun.english}
    return pair <= {"I", "we"} or pair == {"you"}


def asking(phrase: Phrase) -> Phrase:
    return WHO if phrase.kind == "person" else WHAT


def relative_pronoun(head: Phrase) -> Phrase:
    """The pronoun for ``head``; only its dative plural differs from the article."""
    forms = [ending("der", case, head.column) for case in CASES]
    english = ("who", "whom") if head.kind == "person" else ("that", "that")
    dative = "denen" if head.column == 3 else forms[2]
    return Phrase(*english, *forms[:2], dative, head.person, "pronoun", head.kind, head.column)


def with_relative(head: Phrase, clause: Clause) -> Phrase:
    """``head`` followed by a relative clause (as a subject: its other cases are not needed)."""
    english, german = join(head.english, say_english(clause)), say_german(clause, "last")
    return head._replace(english=english, nom=f"{head.nom}, {german},")


# Verbs


def third_person(base: str) -> str:
    head, *rest = base.split()
    if re.search("[^aeiou]y$", head):
        head = head[:-1] + "ie"
    elif re.search("(s|sh|ch|x|o)$", head):
        head += "e"
    return join(head + "s", *rest)


def english_verb(verb: Verb, tense: str, person: int) -> tuple[str, str, str]:
    """The form for a plain statement; the auxiliary and the rest for anything else."""
    if tense in MODALS:
        return f"{tense} {verb.english}", tense, verb.english
    if verb is BE:
        forms = "am are is are" if tense == "present" else "was were was were"
        return forms.split()[person], forms.split()[person], ""
    if tense == "past":
        return verb.past, "did", verb.english
    if person == 2:
        return third_person(verb.english), "does", verb.english
    return verb.english, "do", verb.english


def finite(infinitive: str, person: int, du: str = "", er: str = "") -> str:
    regular = f"{infinitive[:-2]}e {du} {er} {infinitive}"
    return lex.FINITE.get(infinitive, regular).split()[person]


def german_verb(verb: Verb, tense: str, person: int) -> Pair:
    """The finite form, and what of the verb stays at the end of the clause."""
    if tense in MODALS:
        return finite(MODALS[tense], person), verb.prefix + verb.infinitive
    if tense == "past" and verb is BE:
        return finite("waren", person), ""
    if tense == "past":
        return finite(verb.auxiliary, person), verb.participle
    return finite(verb.infinitive, person, verb.du, verb.er), verb.prefix


# Clauses


def say_english(clause: Clause, *, question: bool = False) -> str:
    form, auxiliary, base = english_verb(clause.verb, clause.tense, clause.subject.person)
    subject, negation = clause.subject.english, "not" * clause.negative
    if question:
        core = join(auxiliary, subject, negation, base)
    elif clause.negative:
        core = join(subject, auxiliary, negation, base).replace("can not", "cannot")
    else:
        core = join(subject, form)
    objects = [join(slot.english, phrase.objective) for slot, phrase in clause.objects]
    predicate = clause.predicate.english if clause.predicate else ""
    adverb = clause.adverb.english if clause.adverb else ""
    return join(clause.front[0], core, *objects, predicate, adverb)


def german_object(slot: Slot, phrase: Phrase) -> str:
    words = join(slot.german, getattr(phrase, slot.case))
    return re.sub(r"^\w+ \w+", lambda two: lex.CONTRACTIONS.get(two[0], two[0]), words)


def middle(clause: Clause) -> str:
    """Known objects, time, new objects, "nicht", prepositional phrases, predicate."""
    known: list[str] = []
    new: list[str] = []
    rest: list[str] = []
    for slot, phrase in clause.objects:
        place = rest if slot.german else known if phrase.status in ("pronoun", "definite") else new
        place.append(german_object(slot, phrase))
    without = any(phrase.status == "kein" for _, phrase in clause.objects)
    adverb = clause.adverb.german if clause.adverb else ""
    negation = "nicht" * (clause.negative and not without)
    predicate = clause.predicate.german if clause.predicate else ""
    return join(*known, adverb, *new, negation, *rest, predicate)


def say_german(clause: Clause, verb_place: str = "second") -> str:
    """The clause with its finite verb ``second``, ``first`` or ``last``."""
    verb, end = german_verb(clause.verb, clause.tense, clause.subject.person)
    front, subject, field = clause.front[1], clause.subject.nom, middle(clause)
    if verb_place == "last":
        separator = "" if clause.tense == "present" else " "
        return join(front, subject, field, f"{end}{separator}{verb}".strip())
    if verb_place == "first":
        return join(verb, subject, field, end)
    return join(front or subject, verb, subject if front else "", field, end)


def extract(clause: Clause, pronoun: Phrase) -> Clause:
    """``clause`` with ``pronoun`` at its front instead of its last object."""
    *objects, (slot, _) = clause.objects
    front = pronoun.objective, getattr(pronoun, slot.case)
    return clause._replace(objects=tuple(objects), front=front)


def extractable(clause: Clause) -> bool:
    """The last object can be asked for: no preposition, and not a thing in the dative."""
    if not clause.objects or clause.objects[-1][0].german:
        return False
    slot, phrase = clause.objects[-1]
    return slot.case == "acc" or phrase.kind == "person"


def sentence(english: str, german: str, mark: str = ".") -> Pair:
    english, german = (text[0].upper() + text[1:] + mark for text in (english, german))
    return english, german
