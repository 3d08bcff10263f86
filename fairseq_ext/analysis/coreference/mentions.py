"""Texts with mentions: noun phrases that mean what an earlier one, or another, means."""

import random
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import NamedTuple

KINDS = ("nominal", "pronominal", "proper")


class Phrase(NamedTuple):
    """A noun phrase of a text; all are indices of words.

    Attributes:
        counted: words of it that may be attended to, in place of it.
    """

    words: tuple[int, ...]
    head: int
    counted: tuple[int, ...]

    def moved(self, by: int) -> "Phrase":
        words, counted = (tuple(i + by for i in each) for each in (self.words, self.counted))
        return Phrase(words, self.head + by, counted)


class Mention(NamedTuple):
    """A noun phrase, those that mean the same, and others that it might be taken to mean."""

    phrase: Phrase
    antecedents: Sequence[Phrase]
    others: Sequence[Phrase]
    kind: str

    def moved(self, by: int) -> "Mention":
        antecedents, others = ([p.moved(by) for p in each] for each in self[1:3])
        return Mention(self.phrase.moved(by), antecedents, others, self.kind)


class Text(NamedTuple):
    """Words in sentences, each of which ends before the index in `ends`."""

    words: list[str]
    ends: list[int]
    mentions: list[Mention]


def span(first: int, last: int, head: int | None = None) -> Phrase:
    """The words from `first` to `last`: all of them count and the last is the head, or `head` is
    and counts alone."""
    words = tuple(range(first, last + 1))
    return Phrase(words, last, words) if head is None else Phrase(words, head, (head,))


def with_distractors(texts: Sequence[Text], count: int, seed: int) -> list[Text]:
    """Each text after `count` others, drawn by chance, and a period each; their noun phrases
    become others."""
    if count and len(texts) < 2:
        return list(texts)
    drawn, found = random.Random(seed), []
    for number, text in enumerate(texts):
        for _ in range(count):
            other = drawn.randrange(len(texts) - 1)
            text = _after(texts[other + (other >= number)], text)
        found.append(text)
    return found


def _after(first: Text, second: Text) -> Text:
    by = len(first.words) + 1
    phrases = [p for m in first.mentions for p in (*m.antecedents, *m.others)]
    mentions = [m._replace(others=[*phrases, *m.others]) for m in (m.moved(by) for m in second[2])]
    ends = [*first.ends[:-1], by, *(end + by for end in second.ends)]
    return Text([*first.words, ".", *second.words], ends, mentions)


def windows(text: Text, fits: Callable[[list[str]], bool]) -> list[Text]:
    """The text, or if it does not fit its parts: for each sentence with mentions, it with as many
    sentences before it as fit, and then as many after it. What lies outside is no candidate, and a
    mention is left out if its antecedents do or its own sentence does not fit."""
    if fits(text.words):
        return [text]
    parts = (_window(text, sentence, fits) for sentence in range(len(text.ends)))
    return [part for part in parts if part is not None and part.mentions]


def _window(text: Text, sentence: int, fits: Callable[[list[str]], bool]) -> Text | None:
    words, begins = text.words, [0, *text.ends]
    begin, end = begins[sentence : sentence + 2]
    mentions = [m for m in text.mentions if begin <= m.phrase.head < end]
    if not mentions or not fits(words[begin:end]):
        return None
    before, after = reversed(begins[:sentence]), text.ends[sentence + 1 :]
    first = min(takewhile(lambda place: fits(words[place:end]), before), default=begin)
    last = max(takewhile(lambda place: fits(words[first:place]), after), default=end)
    inside = [_within(mention, range(first, last)).moved(-first) for mention in mentions]
    ends = [place - first for place in text.ends if first < place <= last]
    return Text(words[first:last], ends, [m for m in inside if m.antecedents])


def _within(mention: Mention, words: range) -> Mention:
    antecedents, others = (
        [p for p in each if p.words[0] in words and p.words[-1] in words] for each in mention[1:3]
    )
    return mention._replace(antecedents=antecedents, others=others)
