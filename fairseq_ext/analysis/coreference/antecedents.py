"""The heads of an encoder that find the antecedents of mentions."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_ext.analysis.coreference.mentions import Mention, Text, windows
from fairseq_ext.analysis.inspector import MAX_TOKENS, ModelInspector, list_own_modules
from fairseq_ext.analysis.recording import LayerAttention
from fairseq_ext.analysis.tokens import TokenisedWords
from fairseq_ext.analysis.word_attention import batch_by_length, build_membership, merge_tokens
from fairseq_ext.attention import Attention
from fairseq_ext.errors import UsageError

AMONG = ("nouns", "words", "all")
ALL = "all"  # kinds of mentions


class EncodedText(NamedTuple):
    """A text, or a part of it, as a model reads it.

    Attributes:
        half: 0 or 1, the half of the texts that it belongs to; parts of a text share it.
    """

    words: TokenisedWords
    mentions: list[Mention]
    half: int


class BestHead(NamedTuple):
    """The head that gets most mentions right.

    Attributes:
        held_out: the accuracy of heads chosen on the half of the texts on which they are not
            scored; None if a half has no such mentions.
    """

    layer: int
    head: int
    accuracy: float
    held_out: float | None


class HeadAnswers:
    """The answers of all heads about mentions, right or wrong.

    Args:
        right: [M, L, H] bool, whether a head finds an antecedent of a mention.
        kinds: the kind of each mention.
        halves: [M] the half of the texts, 0 or 1, that each mention belongs to.

    Attributes:
        members: [M] bool by kind: which mentions are of it; of `ALL` all are.
    """

    def __init__(self, right: Tensor, kinds: Sequence[str], halves: Tensor) -> None:
        self.right, self._halves = right, halves
        self.members = {ALL: torch.ones(len(kinds), dtype=torch.bool)}
        for kind in sorted(set(kinds)):
            self.members[kind] = torch.tensor([each == kind for each in kinds])

    def accuracy(self, kind: str = ALL) -> Tensor:
        """Return the share [L, H] float64 of a kind of mentions that each head gets right."""
        return self.right[self.members[kind]].double().mean(0)

    def best(self, kind: str = ALL) -> BestHead:
        """Return the best head for a kind of mentions."""
        accuracy = self.accuracy(kind)
        layer, head = divmod(int(accuracy.argmax()), accuracy.size(1))
        return BestHead(layer, head, float(accuracy.max()), self._held_out(kind))

    def _held_out(self, kind: str) -> float | None:
        members = self.members[kind]
        halves = [self.right[members & (self._halves == half)].flatten(1) for half in (0, 1)]
        if not all(map(len, halves)):
            return None
        chosen = [int(half.double().mean(0).argmax()) for half in reversed(halves)]
        right = sum(int(half[:, head].sum()) for half, head in zip(halves, chosen, strict=True))
        return right / sum(map(len, halves))


def check_heads(inspector: ModelInspector) -> None:
    """Raise UsageError if some layers have fewer heads than others."""
    layers = [m for m in list_own_modules(inspector.model) if isinstance(m, Attention)]
    heads = [module.num_heads for module in layers if module.site == "encoder"]
    if len(set(heads)) > 1:
        raise UsageError(
            f"{inspector.title} has layers of {'/'.join(map(str, heads))} heads, as prune leaves "
            "them; give a model whose layers have equally many"
        )


def ask_heads(
    inspector: ModelInspector, texts: Sequence[Text], among: str, max_tokens: int = MAX_TOKENS
) -> HeadAnswers:
    """Ask all heads for the antecedents of mentions, in one pass over the texts.

    A head is right if one word of a mention's antecedents gets more attention from the mention's
    head word than any other candidate.

    Args:
        among: the candidates: "nouns", the target words of all noun phrases (mentions without
            others are not asked); "words", all words of the text, the mention's too; or "all",
            words and special tokens.

    Raises:
        UsageError: some layers have fewer heads than others.
    """
    check_heads(inspector)
    encoded = list(_encode_texts(inspector, texts, among))
    right: dict[int, list[Tensor]] = {}
    kinds: list[str] = []
    halves: list[int] = []
    lengths = [len(text.words.numbers) for text in encoded]
    batches = batch_by_length(encoded, lengths, max_tokens, desc=inspector.title, unit=" texts")
    for batch in batches:
        mentions = MentionBatch(batch, among)

        def judge(attention: LayerAttention, mentions: MentionBatch = mentions) -> None:
            if attention.site == "encoder":
                right.setdefault(attention.layer, []).append(mentions.judge(attention.maps))

        inputs = inspector.collate([text.words.numbers for text in batch])
        inspector.record_attention(inputs, judge)
        kinds += [mention.kind for text in batch for mention in text.mentions]
        halves += [text.half for text in batch for _ in text.mentions]
    layers = [torch.cat(right[layer]) for layer in sorted(right)]
    answers = torch.stack(layers, 1) if layers else torch.zeros(0, 1, 1, dtype=torch.bool)
    return HeadAnswers(answers, kinds, torch.tensor(halves))


def _encode_texts(
    inspector: ModelInspector, texts: Sequence[Text], among: str
) -> Iterator[EncodedText]:
    def fits(words: list[str]) -> bool:
        return len(inspector.codec.encode(words).numbers) <= inspector.max_positions

    for number, text in enumerate(texts):
        for part in windows(text, fits):
            mentions = [mention for mention in part.mentions if mention.has_choice(among)]
            if mentions:
                yield EncodedText(inspector.codec.encode(part.words), mentions, number % 2)


class MentionBatch:
    """The mentions of a batch of texts, and which words are right.

    Attributes:
        rows: [B, R, T] membership of tokens in the mentions' head words.
        columns: [B, C, S] membership of tokens in all words.
        wanted: [M, C] bool, the target words of antecedents.
        candidates: [M, C] bool.
    """

    def __init__(self, texts: Sequence[EncodedText], among: str) -> None:
        size = max(len(text.words.numbers) for text in texts)
        spans = [text.words.all_spans() if among == "all" else text.words.spans for text in texts]
        heads = [[text.words.spans[m.phrase.head] for m in text.mentions] for text in texts]
        self.rows, self.columns = build_membership(heads, size), build_membership(spans, size)
        mentions = [mention for text in texts for mention in text.mentions]
        places = [(b, row) for b, text in enumerate(texts) for row in range(len(text.mentions))]
        self._sentence, self._row = torch.tensor(places).T
        self.wanted = torch.zeros(len(mentions), self.columns.size(1), dtype=torch.bool)
        self.candidates = torch.full_like(self.wanted, among != "nouns")
        for number, mention in enumerate(mentions):
            for phrase in mention.antecedents:
                self.wanted[number, list(phrase.targets)] = True
            for phrase in mention.others:
                self.candidates[number, list(phrase.targets)] = True

    def judge(self, maps: Tensor) -> Tensor:
        """Return which heads are right, [M, H] bool, from maps [B, H, T, S].

        A head that gives a wrong candidate just as much attention is not right.
        """
        weights = merge_tokens(maps, self.rows, self.columns)[self._sentence, :, self._row]
        wanted, wrong = self.wanted[:, None], (self.candidates & ~self.wanted)[:, None]
        highest = [weights.masked_fill(~each, 0.0).amax(-1) for each in (wanted, wrong)]
        return highest[0] > highest[1]
