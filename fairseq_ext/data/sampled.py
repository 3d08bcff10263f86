"""Data sets whose items are sampled in every epoch, the same ones when a training resumes.

They are pairs of text segments, for next-sentence prediction and sentence-order prediction, and
text in which some tokens have been replaced, the input of an ELECTRA discriminator.
"""

from typing import Any, NamedTuple, SupportsIndex

import numpy as np
import torch
from fairseq.data import BaseWrapperDataset, Dictionary, FairseqDataset
from torch import Tensor

from fairseq_ext.errors import UsageError

SPECIALS = 3  # tokens of a pair besides its text: <s> first </s> second </s>


class SampledDataset(FairseqDataset):
    """Base of data sets whose items have several parts, sampled from seed, epoch and index alone.

    The data set itself yields the part "tokens"; `part` returns data sets of the others. Batches
    stay as they are in all epochs, since sizes do.

    Attributes:
        sizes: [N] upper bound of the tokens of each item.
    """

    sizes: np.ndarray

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed, self.epoch = seed, 1
        self._last: tuple[Any, Any] = (None, None)

    def sample(self, random: np.random.Generator, index: int) -> NamedTuple:
        """Return the parts of an item."""
        raise NotImplementedError

    def item(self, index: int) -> Any:
        """Return the parts of an item in this epoch; the item asked for last is cached."""
        key = self.seed, self.epoch, int(index)
        if self._last[0] != key:  # the parts of an item are asked for one after the other
            self._last = key, self.sample(np.random.default_rng(key), key[2])
        return self._last[1]

    def __getitem__(self, index: int) -> Any:
        return self.item(index).tokens

    def __len__(self) -> int:
        return len(self.sizes)

    def part(self, name: str) -> "Part":
        """Return the data set of one part."""
        return Part(self, name)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, on which samples depend."""
        self.epoch = epoch


class Part(BaseWrapperDataset):
    """Data set of one part of the items of a `SampledDataset`."""

    def __init__(self, dataset: SampledDataset, name: str) -> None:
        super().__init__(dataset)
        self.name = name

    def __getitem__(self, index: int) -> Any:
        return getattr(self.dataset.item(index), self.name)


class Pair(NamedTuple):
    """A pair as the model reads it.

    Attributes:
        tokens: [S] <s> first </s> second </s>.
        segments: [S] 0 up to the first </s>, then 1.
        label: 0 for a pair as in the text; 1 if swapped, or if the second is from another document.
    """

    tokens: Tensor
    segments: Tensor
    label: int


class Chunks(NamedTuple):
    """A text that has been cut into chunks, each of which becomes a pair.

    Attributes:
        pieces: [P, 3] line, first token and number of tokens of each piece: a line, or a part of
            a long one.
        documents: [P] of each piece.
        chunks: [N, 2] the first piece of each chunk, and the one after its last.
    """

    pieces: np.ndarray
    documents: np.ndarray
    chunks: np.ndarray


def cut(sizes: np.ndarray, room: int) -> Chunks:
    """Cut a text into chunks of up to `room` tokens, of consecutive lines of one document.

    Args:
        sizes: [lines] tokens with </s>; a line of 1 (an empty one) ends a document.
    """
    lengths, longest = sizes - 1, room // 2
    counts = -(-lengths // longest)
    lines = np.repeat(np.arange(len(sizes)), counts)
    starts = longest * (np.arange(len(lines)) - np.repeat(np.cumsum(counts) - counts, counts))
    pieces = np.stack([lines, starts, np.minimum(lengths[lines] - starts, longest)], 1)
    documents = np.cumsum(lengths == 0)[lines]
    return Chunks(pieces, documents, _fill(pieces[:, 2], documents, room))


def _fill(lengths: np.ndarray, documents: np.ndarray, room: int) -> np.ndarray:
    """Return chunks [N, 2] of pieces; chunks too short for two segments are left out."""
    bounds, filled = [0], 0
    for piece, (length, document) in enumerate(zip(lengths, documents, strict=True)):
        if piece and (filled + length > room or document != documents[piece - 1]):
            bounds.append(piece)
            filled = 0
        filled += length
    chunks = np.stack([bounds, [*bounds[1:], len(lengths)]], 1)
    return chunks[np.add.reduceat(lengths, bounds) > 1] if len(lengths) else chunks[:0]


class PairDataset(SampledDataset):
    """Data set of two consecutive segments of a document each, half of the pairs made wrong.

    A chunk is split at the end of a random line (in the middle if it is one line).

    Args:
        lines: an indexed data set whose items are lines that end with </s>; empty lines separate
            documents.
        kind: how pairs are made wrong. "nsp": the second segment is from another document; "sop":
            the two are swapped.
        room: largest number of tokens of an item, with <s> and </s>.
        name: name of the data, for errors.

    Raises:
        UsageError: there is no text, or only one document for "nsp".
    """

    def __init__(
        self, lines: Any, *, kind: str, room: int, bos: int, eos: int, seed: int, name: str
    ) -> None:
        super().__init__(seed)
        self.lines, self.kind, self.room = lines, kind, room - SPECIALS
        self.bos, self.eos = torch.tensor([bos]), torch.tensor([eos])
        if self.room < 2:
            raise UsageError(f"--tokens-per-sample is {room}; pairs need {SPECIALS + 2} or more")
        self.pieces, self.documents, self.chunks = cut(np.asarray(lines.sizes), self.room)
        if not len(self.chunks):
            raise UsageError(f"{name} has no text; binarise a corpus with lines of words")
        if kind == "nsp" and self.documents[0] == self.documents[-1]:
            raise UsageError(
                f"{name} is one document, and next-sentence prediction takes half of its pairs "
                "from different ones; part documents by empty lines, or use masked_lm_sop"
            )
        ends = np.append(0, np.cumsum(self.pieces[:, 2]))
        whole = ends[self.chunks[:, 1]] - ends[self.chunks[:, 0]]
        self.sizes = np.full_like(whole, room) if kind == "nsp" else whole + SPECIALS

    def sample(self, random: np.random.Generator, index: int) -> Pair:
        """Return a pair, wrong with probability 1/2."""
        start, stop = self.chunks[index]
        first, second = self._part(random, start, stop)
        wrong = int(random.random() < 0.5)
        if wrong and self.kind == "sop":
            first, second = second, first
        elif wrong:
            second = self._elsewhere(random, start, self.room - len(first))
        tokens = torch.cat([self.bos, first, self.eos, second, self.eos])
        return Pair(tokens, (torch.arange(len(tokens)) > len(first) + 1).long(), wrong)

    def _part(self, random: np.random.Generator, start: int, stop: int) -> tuple[Tensor, Tensor]:
        if stop - start > 1:
            middle = random.integers(start + 1, stop)
            return self._text(start, middle), self._text(middle, stop)
        tokens = self._text(start, stop)
        return tokens[: len(tokens) // 2], tokens[len(tokens) // 2 :]

    def _elsewhere(self, random: np.random.Generator, piece: int, space: int) -> Tensor:
        """Return whole lines of another document that fit into the space, at least part of one."""
        start, stop = np.searchsorted(self.documents, self.documents[piece] + np.array([0, 1]))
        other = random.integers(len(self.pieces) - (stop - start))
        other += (stop - start) * (other >= start)
        end = np.searchsorted(self.documents, self.documents[other] + 1)
        filled = np.cumsum(self.pieces[other : min(end, other + space), 2])
        return self._text(other, other + max(1, (filled <= space).sum()))[:space]

    def _text(self, start: SupportsIndex, stop: SupportsIndex) -> Tensor:
        pieces = self.pieces[start:stop]
        return torch.cat([self.lines[line][first : first + n] for line, first, n in pieces])


class Replaced(NamedTuple):
    """Tokens [S], and labels [S]: 1 for a token that is not the original, else 0."""

    tokens: Tensor
    labels: Tensor


def unigram(dictionary: Dictionary) -> np.ndarray:
    """Return the share [V] of each word in the training text; special symbols have none.

    Raises:
        UsageError: the dictionary has no counts.
    """
    counts = np.array(dictionary.count, dtype=float)
    counts[: dictionary.nspecial] = 0
    if not counts.sum():
        raise UsageError(
            "dict.txt has no counts, from which replaced tokens are sampled; give the dictionary "
            "that fairseq-preprocess wrote for the training text"
        )
    return counts / counts.sum()


class ReplacedDataset(SampledDataset):
    """Data set that replaces a share of each item's tokens by words of the unigram distribution.

    A sampled word that equals the original counts as original. Special symbols stay.

    Args:
        blocks: data set of items [S] of tokens.
        share: share of the tokens to sample, rounded at random.
    """

    def __init__(self, blocks: Any, dictionary: Dictionary, *, share: float, seed: int) -> None:
        super().__init__(seed)
        self.blocks, self.share, self.nspecial = blocks, share, dictionary.nspecial
        self.cumulative = np.cumsum(unigram(dictionary))
        self.sizes = blocks.sizes

    def sample(self, random: np.random.Generator, index: int) -> Replaced:
        """Return an item with some tokens replaced."""
        original = self.blocks[index]
        words = np.flatnonzero(original.numpy() >= self.nspecial)
        chosen = random.choice(words, int(self.share * len(words) + random.random()), replace=False)
        sampled = np.searchsorted(self.cumulative, random.random(len(chosen)), side="right")
        tokens = original.clone()
        tokens[chosen] = torch.from_numpy(sampled.clip(max=len(self.cumulative) - 1))
        return Replaced(tokens, tokens.ne(original).long())
