"""The built-in corpus: sentences of a small grammar, in English and in German.

Every English sentence has one German translation. What a translator has to learn is gender, case,
agreement, the place of the verb (second, first in questions, last in subordinate clauses),
separable verbs and negation.
"""

import argparse
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from typing import TypeVar

from fairseq_ext.files import check_writable, write_lines
from fairseq_ext.prepare.toy import grammar, lexicon
from fairseq_ext.prepare.toy.grammar import Clause, Pair, Phrase, Slot, say_english, say_german
from fairseq_ext.prepare.toy.lexicon import BE, MODALS, Adjective, Verb

SIZES = {"train": 12_000, "valid": 500, "test": 500}
WORDS = range(4, 17)

# How often each method of Speaker makes the sentence, and each question is asked.
SENTENCES = (
    ["statement"] * 8 + ["question"] * 5 + ["complex"] * 6 + ["reported"] * 3 + ["relative"] * 3
)
QUESTIONS = ["whether", "whether", "who", "object", "object", "why", "when"]

T = TypeVar("T")


class Speaker:
    """Draws sentences; uses ``Random.random`` alone, which is the same in every Python."""

    def __init__(self, seed: int):
        self.random = Random(seed).random

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def pick(self, items: Sequence[T]) -> T:
        return items[int(self.random() * len(items))]

    # Parts

    def adjective(self, kind: str) -> Adjective:
        return self.pick([a for a in lexicon.ADJECTIVES if kind in a.kinds.split("+")])

    def noun_phrase(self, kinds: str, statuses: str, *, negative: bool = False) -> Phrase:
        noun = self.pick([n for n in lexicon.NOUNS if n.kind in kinds.split("+")])
        plural = self.chance(0.3)
        numbers = ("both", "pl" if plural else "sg")
        fitting = (
            d for d in lexicon.DETERMINERS if d.number in numbers and d.status in statuses.split()
        )
        article = self.pick([d for d in fitting for _ in range(int(d.weight))])
        adjective = self.adjective(noun.kind) if self.chance(0.3) else None
        no = negative and article.status == "indefinite"
        return grammar.noun_phrase(noun, article, adjective, plural=plural, negative=no)

    def subject(self, verb: Verb, negative: bool) -> Phrase:
        if "person" in verb.subjects and self.chance(0.4):
            return self.pick(grammar.PRONOUNS)
        statuses = "definite" if negative else "definite indefinite quantity"
        return self.noun_phrase(verb.subjects, statuses)

    def object(self, slot: Slot, verb: Verb, subject: Phrase, negative: bool) -> Phrase:
        settled = subject.status in ("pronoun", "definite")  # or "Hilft ein Arzt ihr?" would arise
        if settled and "person" in slot.kinds and self.chance(0.35):
            return self.pick([p for p in grammar.PRONOUNS if not grammar.reflexive(subject, p)])
        receiver = slot.case == "dat" and " " in verb.slots
        if receiver or (negative and slot.german):  # "kein" is left to the one bare object
            return self.noun_phrase(slot.kinds, "definite")
        statuses = "definite indefinite" if negative else "definite indefinite quantity"
        return self.noun_phrase(slot.kinds, statuses, negative=negative)

    def slots(self, verb: Verb) -> list[Slot]:
        places = lexicon.PLACES.get(verb.slots)
        texts = [self.pick(places)] if places else verb.slots.split()
        return [grammar.slot(text) for text in texts]

    def verb(self, subject: Phrase | None) -> Verb:
        fitting = [v for v in lexicon.VERBS if not subject or subject.kind in v.subjects.split("+")]
        return self.pick(fitting) if fitting and not self.chance(0.1) else BE

    def tense(self, time: str, verb: Verb, modal: bool) -> str:
        modal = modal and time == "present" and verb is not BE and self.chance(0.3)
        return self.pick(list(MODALS)) if modal else time

    def clause(
        self, time: str, subject: Phrase | None = None, *, modal: bool = True, adverb: float = 0.15
    ) -> Clause:
        """A clause at ``time``: "present" (perhaps with a modal) or "past"."""
        verb = self.verb(subject)
        tense = self.tense(time, verb, modal)
        negative = tense != "must" and self.chance(0.12)  # "must not" is not "nicht müssen"
        subject = subject or self.subject(verb, negative)
        objects = [(s, self.object(s, verb, subject, negative)) for s in self.slots(verb)]
        predicate = self.adjective(subject.kind) if verb is BE else None
        fitting = [a for a in lexicon.ADVERBS if grammar.suits(a, tense)]
        when = self.pick(fitting) if verb is not BE and self.chance(adverb) else None
        return Clause(subject, verb, tuple(objects), predicate, when, tense, negative)

    def time(self) -> str:
        return self.pick(("present", "present", "past"))

    # Sentences

    def pair(self) -> Pair:
        """One English sentence and its German translation."""
        return getattr(self, self.pick(SENTENCES))()

    def statement(self) -> Pair:
        clause = self.clause(self.time(), adverb=0.5)
        if clause.adverb and self.chance(0.5):
            clause = clause._replace(adverb=None, front=clause.adverb[:2])
        return grammar.sentence(say_english(clause), say_german(clause))

    def question(self) -> Pair:
        asked = self.pick(QUESTIONS)
        clause = self.clause(self.time(), grammar.WHO if asked == "who" else None)
        if asked == "object" and grammar.extractable(clause):
            clause = grammar.extract(clause, grammar.asking(clause.objects[-1][1]))
        elif asked in ("why", "when"):
            front = ("why", "warum") if asked == "why" or clause.negative else ("when", "wann")
            clause = clause._replace(adverb=None, front=front)
        order = "second" if asked == "who" or clause.front[0] else "first"
        english = say_english(clause, question=asked != "who")
        return grammar.sentence(english, say_german(clause, order), "?")

    def complex(self) -> Pair:
        """A main clause and a subordinate one, in either order."""
        time = self.time()
        word = self.pick([c for c in lexicon.CONJUNCTIONS if time in c.times.split("+")])
        below = self.clause(time, modal=word.modal == "yes")
        english = f"{word.english} {say_english(below)}"
        german = f"{word.german} {say_german(below, 'last')}"
        main = self.clause(time)
        if self.chance(0.4):
            main = main._replace(front=(english + ",", german + ","))
            return grammar.sentence(say_english(main), say_german(main))
        return grammar.sentence(f"{say_english(main)} {english}", f"{say_german(main)}, {german}")

    def reported(self) -> Pair:
        """What somebody says, knows or asks."""
        time, verb = self.time(), self.pick(lexicon.CLAUSAL_VERBS)
        main = Clause(self.subject(verb, False), verb, tense=time)
        below = self.clause(time)
        english, german = verb.slots.split()
        return grammar.sentence(
            f"{say_english(main)} {english} {say_english(below)}",
            f"{say_german(main)}, {german} {say_german(below, 'last')}",
        )

    def relative(self) -> Pair:
        """A statement about a noun that a relative clause describes."""
        time = self.time()
        clause = self.clause(time)
        if grammar.extractable(clause) and clause.objects[-1][1].status == "definite":
            head = clause.objects[-1][1]
            clause = grammar.extract(clause, grammar.relative_pronoun(head))
        elif clause.subject.status == "definite":
            head = clause.subject
            clause = clause._replace(subject=grammar.relative_pronoun(head))
        else:
            return self.relative()
        main = self.clause(time, grammar.with_relative(head, clause))
        return grammar.sentence(say_english(main), say_german(main))


def words(text: str) -> list[str]:
    return re.findall(r"\w+|[,.?]", text)


def fresh(speaker: Speaker) -> Iterator[Pair]:
    """Pairs of which neither side has been said before."""
    said: set[str] = set()
    while True:
        pair = speaker.pair()
        if said.isdisjoint(pair) and all(len(text.split()) in WORDS for text in pair):
            said.update(pair)
            yield pair


def corpus(seed: int = 1) -> dict[str, list[Pair]]:
    """(English, German) pairs of "train", "valid" and "test", the same for the same seed.

    No sentence of either language occurs twice; every word of valid and test occurs in train.
    """
    pairs = fresh(Speaker(seed))
    train = list(islice(pairs, SIZES["train"]))
    known = {word for pair in train for text in pair for word in words(text)}
    held_out = (pair for pair in pairs if known.issuperset(words(" ".join(pair))))
    rest = {split: list(islice(held_out, SIZES[split])) for split in ("valid", "test")}
    return {"train": train, **rest}


def write(folder: Path, seed: int = 1) -> dict[str, int]:
    """Write ``{train,valid,test}.{en,de}`` into ``folder``; returns the number of pairs of each."""
    check_writable(folder, 4_000_000)
    folder.mkdir(parents=True, exist_ok=True)
    splits = corpus(seed)
    for split, pairs in splits.items():
        for language, lines in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            write_lines(folder / f"{split}.{language}", lines)
    return {split: len(pairs) for split, pairs in splits.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m fairseq_ext.prepare.toy.corpus", description=__doc__
    )
    parser.add_argument("folder", type=Path, metavar="OUTDIR")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    counts = write(given.folder, given.seed)
    print(f"built-in corpus, seed {given.seed}:", *(f"{n} {split}" for split, n in counts.items()))


if __name__ == "__main__":
    main()
