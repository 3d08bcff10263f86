"""Texts with mentions: noun phrases that refer to the same entity as another noun phrase."""

import random
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import NamedTuple


class Phrase(NamedTuple):
    """A noun phrase of a text, as indices of words.

    Attributes:
        targets: its words to which attention counts as attention to the phrase.
    """

    words: tuple[int, ...]
    head: int
    targets: tuple[int, ...]

    def shift(self, offset: int) -> "Phrase":
        """Return the phrase in a text with `offset` more words before it."""
        words, targets = (tuple(i + offset for i in each) for each in (self.words, self.targets))
        return Phrase(words, self.head + offset, targets)


class Mention(NamedTuple):
    """A noun phrase whose antecedent is asked for.

    Attributes:
        antecedents: phrases of the same entity.
        others: phrases of other entities, which might be taken for an antecedent.
        kind: "nominal", "pronominal" or "proper".
    """

    phrase: Phrase
    antecedents: Sequence[Phrase]
    others: Sequence[Phrase]
    kind: str

    def shift(self, offset: int) -> "Mention":
        """Return the mention in a text with `offset` more words before it."""
        antecedents = [phrase.shift(offset) for phrase in self.antecedents]
        others = [phrase.shift(offset) for phrase in self.others]
        return Mention(self.phrase.shift(offset), antecedents, others, self.kind)

    def has_choice(self, among: str) -> bool:
        """Tell whether it is asked: among nouns it needs phrases besides its antecedents."""
        return among != "nouns" or bool(self.others)


class Text(NamedTuple):
    """Words in sentences, each of which ends before the index in `ends`."""

    words: list[str]
    ends: list[int]
    mentions: list[Mention]


def make_phrase(first: int, last: int, head: int | None = None) -> Phrase:
    """Return the phrase of the words from `first` to `last`.

    Its only target is its head. Without a head, the last word is the head and all words are
    targets.
    """
    words = tuple(range(first, last + 1))
    return Phrase(words, last, words) if head is None else Phrase(words, head, (head,))


def with_distractors(texts: Sequence[Text], count: int, seed: int) -> list[Text]:
    """Return each text after `count` random other texts, with a period after each of these.

    Their noun phrases become `others` of its mentions.
    """
    if count and len(texts) < 2:
        return list(texts)
    generator, extended = random.Random(seed), []
    for number, text in enumerate(texts):
        for _ in range(count):
            other = generator.randrange(len(texts) - 1)  # of all texts but this one
            text = _put_before(texts[other + (other >= number)], text)
        extended.append(text)
    return extended


def _put_before(first: Text, second: Text) -> Text:
    offset = len(first.words) + 1  # a period
    phrases = [p for m in first.mentions for p in (*m.antecedents, *m.others)]
    shifted = (mention.shift(offset) for mention in second.mentions)
    mentions = [mention._replace(others=[*phrases, *mention.others]) for mention in shifted]
    ends = [*first.ends[:-1], offset, *(end + offset for end in second.ends)]
    return Text([*first.words, ".", *second.words], ends, mentions)


def windows(text: Text, fits: Callable[[list[str]], bool]) -> list[Text]:
    """Return the text, or the parts of it that a model can read.

    A part is made for each sentence with mentions: the sentence, as many sentences before it as
    fit, then as many after it. Phrases outside of the part are no candidates. A mention is left out
    if its own sentence does not fit or all its antecedents are outside.
    """
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
    inside = [_clip(mention, range(first, last)).shift(-first) for mention in mentions]
    ends = [place - first for place in text.ends if first < place <= last]
    return Text(words[first:last], ends, [m for m in inside if m.antecedents])


def _clip(mention: Mention, words: range) -> Mention:
    def inside(phrases: Sequence[Phrase]) -> list[Phrase]:
        return [p for p in phrases if p.words[0] in words and p.words[-1] in words]

    return mention._replace(antecedents=inside(mention.antecedents), others=inside(mention.others))
