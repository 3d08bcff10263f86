"""Which heads of an encoder find the antecedents of mentions."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from fairseq_ext.analysis.coreference.mentions import Mention, Text, windows
from fairseq_ext.analysis.subjects import MAX_TOKENS, Heard, Subject
from fairseq_ext.analysis.tokens import Words
from fairseq_ext.analysis.words import alike, members, merge, together, with_special

AMONG = ("nouns", "words", "all")
ALL = "all"  # kinds of mentions


class Job(NamedTuple):
    """A text, or a part of it, as a model reads it. half: 0 or 1, the same for parts of a text."""

    words: Words
    mentions: list[Mention]
    half: int


class Best(NamedTuple):
    """The head that gets most mentions right, and what heads do that were chosen on the half of
    the texts on which they are not scored (None if a half has no such mentions)."""

    layer: int
    head: int
    accuracy: float
    held_out: float | None


class Answers:
    """Which heads got which mentions right.

    Args:
        right: [M, L, H] bool. kinds: of the mentions. halves: [M] of the texts, 0 or 1.
    """

    def __init__(self, right: Tensor, kinds: Sequence[str], halves: Tensor) -> None:
        self.right, self._halves = right, halves
        self.of = {ALL: torch.ones(len(kinds), dtype=torch.bool)}
        for kind in sorted(set(kinds)):
            self.of[kind] = torch.tensor([each == kind for each in kinds])

    def accuracy(self, kind: str = ALL) -> Tensor:
        """[L, H] float64"""
        return self.right[self.of[kind]].double().mean(0)

    def best(self, kind: str = ALL) -> Best:
        accuracy = self.accuracy(kind)
        layer, head = divmod(int(accuracy.argmax()), accuracy.size(1))
        return Best(layer, head, float(accuracy.max()), self._held_out(kind))

    def _held_out(self, kind: str) -> float | None:
        halves = [self.right[self.of[kind] & (self._halves == half)].flatten(1) for half in (0, 1)]
        if not all(map(len, halves)):
            return None
        chosen = [int(half.double().mean(0).argmax()) for half in reversed(halves)]
        right = sum(int(half[:, head].sum()) for half, head in zip(halves, chosen, strict=True))
        return right / sum(map(len, halves))


def is_asked(mention: Mention, among: str) -> bool:
    """Not if there is nothing to confuse its antecedents with."""
    return among != "nouns" or bool(mention.others)


def answers(
    subject: Subject, texts: Sequence[Text], among: str, max_tokens: int = MAX_TOKENS
) -> Answers:
    """One pass over the texts.

    A mention is right if one word of its antecedents gets more attention from its head word than
    any other word of `among`: "nouns", the words that count of all noun phrases (mentions without
    others are not asked), "words", those of the text (itself, too), or "all", and special tokens.
    """
    jobs = list(_jobs(subject, texts, among))
    right: dict[int, list[Tensor]] = {}
    kinds: list[str] = []
    halves: list[int] = []
    with tqdm(total=len(jobs), desc=subject.title, unit=" texts") as bar:
        for numbers in alike([len(job.words.numbers) for job in jobs], max_tokens):
            batch = [jobs[number] for number in numbers]
            asked = Asked(batch, among)

            def record(heard: Heard, asked: Asked = asked) -> None:
                if heard.site == "encoder":
                    right.setdefault(heard.layer, []).append(asked.right(heard.maps))

            subject.listen(together(subject, [job.words.numbers for job in batch]), record)
            kinds += [mention.kind for job in batch for mention in job.mentions]
            halves += [job.half for job in batch for _ in job.mentions]
            bar.update(len(batch))
    layers = [torch.cat(right[layer]) for layer in sorted(right)]
    found = torch.stack(layers, 1) if layers else torch.zeros(0, 1, 1, dtype=torch.bool)
    return Answers(found, kinds, torch.tensor(halves))


def _jobs(subject: Subject, texts: Sequence[Text], among: str) -> Iterator[Job]:
    def fits(words: list[str]) -> bool:
        return len(subject.encode(words).numbers) <= subject.positions

    for number, text in enumerate(texts):
        for part in windows(text, fits):
            mentions = [mention for mention in part.mentions if is_asked(mention, among)]
            if mentions:
                yield Job(subject.encode(part.words), mentions, number % 2)


class Asked:
    """The mentions of a batch and what is right.

    Attributes:
        rows: [B, R, T], columns: [B, C, S], tokens of mentions' head words and of all words.
        wanted, candidates: [M, C] bool.
    """

    def __init__(self, batch: Sequence[Job], among: str) -> None:
        size = max(len(job.words.numbers) for job in batch)
        every = [with_special(job.words) if among == "all" else job.words.spans for job in batch]
        heads = [[job.words.spans[m.phrase.head] for m in job.mentions] for job in batch]
        self.rows, self.columns = members(heads, size), members(every, size)
        mentions = [(b, r, m) for b, job in enumerate(batch) for r, m in enumerate(job.mentions)]
        self._sentence, self._row = torch.tensor([place[:2] for place in mentions]).T
        self.wanted = torch.zeros(len(mentions), self.columns.size(1), dtype=torch.bool)
        self.candidates = torch.full_like(self.wanted, among != "nouns")
        for number, (_, _, mention) in enumerate(mentions):
            for phrase in mention.antecedents:
                self.wanted[number, list(phrase.counted)] = True
            for phrase in mention.others:
                self.candidates[number, list(phrase.counted)] = True

    def right(self, maps: Tensor) -> Tensor:
        """[B, H, T, S] -> [M, H] bool; equal weights decide nothing."""
        weights = merge(maps, self.rows, self.columns)[self._sentence, :, self._row]
        wanted, others = self.wanted[:, None], (self.candidates & ~self.wanted)[:, None]
        most = [weights.masked_fill(~each, 0.0).amax(-1) for each in (wanted, others)]
        return most[0] > most[1]
