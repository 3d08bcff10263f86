"""Text as the tokens of a model, and its tokens as text."""

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fairseq.data import Dictionary
from subword_nmt.apply_bpe import BPE
from torch import Tensor

from fairseq_ext.data import wordpiece
from fairseq_ext.data.pieces import PIECE_READERS, are_numeric, detect_mark
from fairseq_ext.data.tokenisers import SENTENCEPIECE, load_sentencepiece
from fairseq_ext.data.vocabulary import Vocabulary
from fairseq_ext.errors import UsageError

BYTE_SPACE = "\u0120"  # how a byte-level BPE writes the space before a word
SHOWN_SPACE = "\u2581"


class TokenisedWords(NamedTuple):
    """A sentence of words as a model reads it.

    Attributes:
        numbers: [S] int64, the dictionary's numbers of its tokens, special ones included.
        spans: for each word, the positions of its tokens.
    """

    numbers: Tensor
    spans: list[list[int]]

    def all_spans(self) -> list[list[int]]:
        """Return the spans of the words, then one for each special token: rows sum to one."""
        inside = {token for span in self.spans for token in span}
        return [*self.spans, *([i] for i in range(len(self.numbers)) if i not in inside)]


class TokenCodec:
    """Conversion of words to the tokens of a model, and of its tokens to readable labels.

    Args:
        task: the fairseq task of the model.
        data: folder with its BPE merges, its WordPiece vocabulary, its model of SentencePiece or
            its tokeniser.
        translates: the model translates, so its dictionaries hold subwords of tokenised text.
    """

    def __init__(self, task: Any, data: Path, translates: bool) -> None:
        self.source: Dictionary = task.source_dictionary
        self._task, self._data, self._translates = task, data, translates

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The tokeniser of an encoder; raises UsageError if its folder has none."""
        stock_inputs = self._data / "input0"  # of fairseq's own sentence tasks
        folder = stock_inputs if stock_inputs.is_dir() else self._data
        return getattr(self._task, "vocabulary", None) or Vocabulary.load(folder)

    @cached_property
    def _segment(self) -> Callable[[str], str]:
        segment = load_segmenter(self._data)
        if segment is None and (mark := detect_mark(self._words())):
            raise UsageError(
                f"{self._data} has neither bpe.codes nor wordpiece.txt nor {SENTENCEPIECE}, and "
                f"its dictionary is of pieces of words ('{mark}'); put the one that made them "
                "there, or take sentences of a split"
            )
        return segment or str

    def encode(self, words: Sequence[str], *, target: bool = False) -> TokenisedWords:
        """Return words as tokens of the source, or with `target` as tokens of a translation."""
        if not self._translates:
            return encode_text(words, self.vocabulary, self.source)
        dictionary = self._task.target_dictionary if target else self.source
        return encode_pieces(words, self._segment, dictionary)

    def label(self, number: int | Tensor) -> str:
        """Return the text of a source token.

        Tokens of a byte-level BPE are decoded; so are symbols that are numbers, if their tokeniser
        is known.
        """
        symbol = self.source[int(number)]
        if self.has_number_symbols and symbol.isdecimal():
            symbol = self.vocabulary.tokenizer.id_to_token(int(symbol)) or symbol
        elif not self.has_byte_symbols:
            return symbol
        text = PIECE_READERS[BYTE_SPACE](symbol).text.decode(errors="replace")
        return f"{SHOWN_SPACE}{text}" if symbol.startswith(BYTE_SPACE) else text

    @cached_property
    def has_byte_symbols(self) -> bool:
        """Whether symbols are the tokens of a byte-level BPE, as in an imported RoBERTa."""
        return not self._translates and detect_mark(self._words()) == BYTE_SPACE

    @cached_property
    def has_number_symbols(self) -> bool:
        """Whether symbols are the numbers of a tokeniser's tokens, and the tokeniser is known."""
        if self._translates or not are_numeric(self._words()):
            return False
        try:
            return self.vocabulary.by_id
        except UsageError:  # without a tokeniser the numbers themselves are shown
            return False

    def _words(self) -> list[str]:
        return self.source.symbols[self.source.nspecial :]


def load_segmenter(data: Path) -> Callable[[str], str] | None:
    """Return a function that splits a word into pieces separated by spaces, if data have one.

    It applies the merges (bpe.codes), the WordPiece vocabulary (wordpiece.txt) or the model of
    SentencePiece, whose pieces are parts of words as well, of a folder of translation data.
    """
    codes, pieces, model = (data / n for n in ("bpe.codes", "wordpiece.txt", SENTENCEPIECE))
    if codes.is_file():
        with codes.open(encoding="utf-8") as merges:
            return BPE(merges).process_line
    if pieces.is_file():
        vocabulary = wordpiece.Pieces(wordpiece.load(pieces))
        return lambda word: vocabulary.encode([word])[0]
    if model.is_file():
        processor = load_sentencepiece(model)
        return lambda word: " ".join(processor.encode(word, out_type=str))
    return None


def encode_pieces(
    words: Sequence[str], segment: Callable[[str], str], dictionary: Dictionary
) -> TokenisedWords:
    """Return words as tokens of a translation model: their pieces and the end of the sentence."""
    numbers: list[int] = []
    spans = []
    for word in words:
        pieces = [dictionary.index(piece) for piece in segment(word).split()]
        spans.append(list(range(len(numbers), len(numbers) + len(pieces))))
        numbers += pieces
    return TokenisedWords(torch.tensor([*numbers, dictionary.eos()]), spans)


def encode_text(
    words: Sequence[str], vocabulary: Vocabulary, dictionary: Dictionary
) -> TokenisedWords:
    """Return words as tokens of an encoder, between the beginning and the end of the sentence.

    The tokeniser sees the words as one text. A token belongs to the first word that ends at or
    after the token's end.
    """
    ends = [end - 1 for end in accumulate(len(word) + 1 for word in words)]  # 1: a space
    (pieces,) = vocabulary.encode([" ".join(words)])
    spans: list[list[int]] = [[] for _ in words]
    for position, (_, end) in enumerate(pieces.offsets, 1):  # 0 begins the sentence
        spans[next(word for word, last in enumerate(ends) if end <= last)].append(position)
    numbers = [dictionary.bos(), *pieces.numbers.tolist(), dictionary.eos()]
    return TokenisedWords(torch.tensor(numbers), spans)
