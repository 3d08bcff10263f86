"""Words as the tokens of a model, and which of these make up each."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from fairseq.data import Dictionary
from subword_nmt.apply_bpe import BPE
from torch import Tensor

from fairseq_ext.data import wordpiece
from fairseq_ext.data.vocabulary import Vocabulary


class Words(NamedTuple):
    """A sentence as a model reads it.

    Attributes:
        numbers: [S] tokens, special ones included. spans: which of them make up each word.
    """

    numbers: Tensor
    spans: list[list[int]]


def splitter(data: Path) -> Callable[[str], str]:
    """What parts a word into the pieces of a folder's translation data, with spaces between them:
    its BPE, its WordPiece vocabulary, or nothing."""
    codes, pieces = data / "bpe.codes", data / "wordpiece.txt"
    if codes.is_file():
        with codes.open(encoding="utf-8") as merges:
            return BPE(merges).process_line
    if pieces.is_file():
        vocabulary = wordpiece.Pieces(wordpiece.load(pieces))
        return lambda word: vocabulary.encode([word])[0]
    return str


def of_pieces(words: Sequence[str], split: Callable[[str], str], dictionary: Dictionary) -> Words:
    """Of a translation model."""
    numbers: list[int] = []
    spans = []
    for word in words:
        pieces = [dictionary.index(piece) for piece in split(word).split()]
        spans.append(list(range(len(numbers), len(numbers) + len(pieces))))
        numbers += pieces
    return Words(torch.tensor([*numbers, dictionary.eos()]), spans)


def of_text(words: Sequence[str], vocabulary: Vocabulary, dictionary: Dictionary) -> Words:
    """Of an encoder."""
    text, ends = " ".join(words), []
    for word in words:
        ends.append((ends[-1] + 1 if ends else 0) + len(word))
    (pieces,) = vocabulary.encode([text])
    spans: list[list[int]] = [[] for _ in words]
    for place, (_, end) in enumerate(pieces.offsets, 1):  # after the beginning of the sentence
        spans[next(word for word, last in enumerate(ends) if end <= last)].append(place)
    return Words(
        torch.tensor([dictionary.bos(), *pieces.numbers.tolist(), dictionary.eos()]), spans
    )
