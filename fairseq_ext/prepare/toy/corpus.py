"""The built-in corpus: sentences of a small grammar, in English and in German.

Every English sentence has one German translation. A translator has to learn gender, case,
agreement, the place of the verb (second, first in questions, last in subordinate clauses),
separable verbs and negation.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from typing import NamedTuple, TypeVar

from fairseq_ext.files import check_writable, write_lines
from fairseq_ext.prepare.step import step_parser
from fairseq_ext.prepare.toy import lexicon
from fairseq_ext.prepare.toy.lexicon import Adjective, Determiner, Noun, Verb

Pair = tuple[str, str]
T = TypeVar("T")

SIZES = {"train": 12_000, "valid": 500, "test": 500}
WORDS = range(4, 17)  # of a sentence
SENTENCES = ("statement", "statement", "question", "complex", "reported")


class Phrase(NamedTuple):
    """A subject or object; a known one stands before an adverb in German, a new one behind it."""

    english: str
    german: dict[str, str]
    person: int
    known: bool


class Clause(NamedTuple):
    """A clause; each object has its English and its German preposition, and its case."""

    subject: Phrase
    verb: Verb
    tense: str
    objects: Sequence[tuple[str, str, str, Phrase]] = ()
    adverb: Sequence[str] = ("", "")
    negative: bool = False


def join(*words: str) -> str:
    """Return the words that are not empty, separated by spaces."""
    return " ".join(filter(None, words))


def noun_phrase(
    noun: Noun, article: Determiner, adjective: Adjective | None = None, *, plural: bool = False
) -> Phrase:
    """Return a noun with its article and perhaps an adjective."""
    column = 3 if plural else "mfn".index(noun.gender)
    words = article.english, adjective.english if adjective else ""
    english = join(*words, noun.english_plural if plural else noun.english)

    def decline(case: str) -> str:
        head = article.stem + lexicon.ENDINGS[article.endings, case][column]
        ending = lexicon.ENDINGS[article.adjective, case][column]
        described = adjective.stem + ending if adjective else ""
        bare = noun.plural if plural else noun.german
        dative = "n" * (plural and case == "dat" and bare[-1] not in "ns")
        return join(head, described, bare + dative)

    german = {case: decline(case) for case in ("nom", "acc", "dat")}
    english = re.sub(r"^a (?=[aeiou])", "an ", english)
    return Phrase(english, german, 1 + plural, bool(article.known))


PRONOUNS = [
    Phrase(row.english, {"nom": row.german}, int(row.person), True) for row in lexicon.PRONOUNS
]


def say_english(clause: Clause, *, question: bool = False) -> str:
    """Return a clause in English: plain, negative, or a question with its auxiliary first."""
    subject, verb, tense = clause.subject, clause.verb, clause.tense
    singular = subject.person == 1
    auxiliary = {"past": "did", "future": "will"}.get(tense, "does" if singular else "do")
    if question or clause.negative or tense == "future":
        order = (auxiliary, subject.english) if question else (subject.english, auxiliary)
        core = join(*order, "not" * clause.negative, verb.english)
    else:
        present = third_person(verb.english) if singular else verb.english
        core = join(subject.english, verb.past if tense == "past" else present)
    objects = (join(english, phrase.english) for english, _, _, phrase in clause.objects)
    return join(core, *objects, clause.adverb[0])


def third_person(base: str) -> str:
    """Return the English form for he and she."""
    head, *rest = base.split()
    return join(head + ("es" if head.endswith(("s", "sh", "ch")) else "s"), *rest)


def german_verb(verb: Verb, tense: str, person: int) -> Pair:
    """Return the finite form, and what of the verb stays at the end of the clause."""
    if tense == "present":
        return (verb.ich, verb.er, verb.infinitive)[person], verb.prefix
    auxiliary = lexicon.AUXILIARIES["werden" if tense == "future" else verb.auxiliary]
    rest = verb.prefix + verb.infinitive if tense == "future" else verb.participle
    return auxiliary[person], rest


def say_german(clause: Clause, verb_place: str = "second") -> str:
    """Return a clause in German, with its finite verb second, first or last.

    The middle holds known objects, the adverb, new objects, "nicht" and prepositional phrases.
    """
    finite, rest = german_verb(clause.verb, clause.tense, clause.subject.person)
    middle = [(1, clause.adverb[1]), (3, "nicht" * clause.negative)]
    for _, preposition, case, phrase in clause.objects:
        text = join(preposition, phrase.german[case])
        for long, short in lexicon.CONTRACTIONS.items():
            text = re.sub(rf"^{long}\b", short, text)
        middle.append((4 if preposition else 0 if phrase.known else 2, text))
    between = [text for _, text in sorted(middle, key=lambda placed: placed[0])]
    subject = clause.subject.german["nom"]
    if verb_place == "last":
        space = " " if clause.tense != "present" else ""
        return join(subject, *between, rest + space + finite)
    order = (finite, subject) if verb_place == "first" else (subject, finite)
    return join(*order, *between, rest)


def sentence(english: str, german: str, end: str = ".") -> Pair:
    """Return both texts with a capital letter and an end."""
    return f"{english[0].upper()}{english[1:]}{end}", f"{german[0].upper()}{german[1:]}{end}"


def join_clauses(main: Clause, conjunction: Sequence[str], below: Clause) -> Pair:
    """Return a main clause and a subordinate one behind it as a sentence."""
    english = join(say_english(main), conjunction[0], say_english(below))
    german = join(f"{say_german(main)},", conjunction[1], say_german(below, "last"))
    return sentence(english, german)


class Speaker:
    """Samples sentences; uses ``Random.random`` alone, which is the same in every Python."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed).random

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.random() < probability

    def pick(self, items: Sequence[T]) -> T:
        """Return one of the items."""
        return items[int(self.random() * len(items))]

    def noun_phrase(self, kinds: str, *, known: bool = False) -> Phrase:
        """Return a noun phrase of one of the kinds, a known one if that is asked for."""
        noun = self.pick([noun for noun in lexicon.NOUNS if noun.kind in kinds.split("+")])
        plural = self.chance(0.3)
        fit = ("both", "pl" if plural else "sg")
        articles = [d for d in lexicon.DETERMINERS if d.number in fit and (d.known or not known)]
        fitting = [a for a in lexicon.ADJECTIVES if noun.kind in a.kinds.split("+")]
        adjective = self.pick(fitting) if self.chance(0.3) else None
        return noun_phrase(noun, self.pick(articles), adjective, plural=plural)

    def subject(self, verb: Verb) -> Phrase:
        """Return a subject that the verb can have."""
        return self.pick(PRONOUNS) if self.chance(0.4) else self.noun_phrase(verb.subjects)

    def clause(self, tense: str) -> Clause:
        """Return a clause in a tense; one that is negative has known objects alone."""
        verb, negative = self.pick(lexicon.VERBS), self.chance(0.15)
        objects = []
        for text in verb.objects.split(","):
            english, german, case, kinds = ["", "", *text.split(":")][-4:]
            objects.append((english, german, case, self.noun_phrase(kinds, known=negative)))
        adverb = self.pick(lexicon.ADVERBS[tense]) if self.chance(0.3) else ("", "")
        return Clause(self.subject(verb), verb, tense, objects, adverb, negative)

    def pair(self) -> Pair:
        """Return an English sentence and its German translation."""
        tense = self.pick(tuple(lexicon.ADVERBS))
        return getattr(self, self.pick(SENTENCES))(tense, self.clause(tense))

    def statement(self, tense: str, clause: Clause) -> Pair:
        """Return a statement; an adverb in front of it puts the German subject behind the verb."""
        if not clause.adverb[0] or self.chance(0.5):
            return sentence(say_english(clause), say_german(clause))
        rest = clause._replace(adverb=("", ""))
        english = join(clause.adverb[0], say_english(rest))
        return sentence(english, join(clause.adverb[1], say_german(rest, "first")))

    def question(self, tense: str, clause: Clause) -> Pair:
        """Return a question to be answered by yes or no, or with why."""
        why = self.pick((("", ""), ("why", "warum")))
        english, german = say_english(clause, question=True), say_german(clause, "first")
        return sentence(join(why[0], english), join(why[1], german), "?")

    def complex(self, tense: str, clause: Clause) -> Pair:
        """Return a main clause with a subordinate one behind it."""
        return join_clauses(clause, self.pick(lexicon.CONJUNCTIONS), self.clause(tense))

    def reported(self, tense: str, clause: Clause) -> Pair:
        """Return a clause that somebody says, knows, hopes or asks."""
        verb = self.pick(lexicon.CLAUSAL_VERBS)
        main = Clause(self.subject(verb), verb, tense)
        return join_clauses(main, verb.objects.split(":"), clause)


def words(text: str) -> list[str]:
    """Return the words and punctuation marks of a text."""
    return re.findall(r"\w+|[,.?]", text)


def unique_pairs(speaker: Speaker) -> Iterator[Pair]:
    """Yield pairs of which neither side has occurred before."""
    seen: set[str] = set()
    while True:
        pair = speaker.pair()
        if seen.isdisjoint(pair) and all(len(text.split()) in WORDS for text in pair):
            seen.update(pair)
            yield pair


def corpus(seed: int = 1) -> dict[str, list[Pair]]:
    """Return (English, German) pairs of "train", "valid" and "test", the same for the same seed.

    No sentence of either language occurs twice; every word of valid and test occurs in train.
    """
    pairs = unique_pairs(Speaker(seed))
    train = list(islice(pairs, SIZES["train"]))
    known = {word for pair in train for text in pair for word in words(text)}
    held_out = (pair for pair in pairs if known.issuperset(words(" ".join(pair))))
    rest = {split: list(islice(held_out, SIZES[split])) for split in ("valid", "test")}
    return {"train": train, **rest}


def write(folder: Path, seed: int = 1) -> dict[str, int]:
    """Write ``{train,valid,test}.{en,de}`` into a folder; return the number of pairs of each."""
    check_writable(folder, 4_000_000)
    splits = corpus(seed)
    for split, pairs in splits.items():
        for language, lines in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            write_lines(folder / f"{split}.{language}", lines)
    return {split: len(pairs) for split, pairs in splits.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the step: write the corpus into a folder."""
    parser = step_parser("toy.corpus", __doc__)
    parser.add_argument("folder", type=Path, metavar="OUTDIR")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(arguments)
    counts = write(args.folder, args.seed)
    print(f"built-in corpus, seed {args.seed}:", *(f"{n} {split}" for split, n in counts.items()))


if __name__ == "__main__":
    main()
