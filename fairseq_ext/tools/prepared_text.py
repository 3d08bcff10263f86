"""Text that has been prepared for training, as tokens whose words can be found."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from fairseq.data import Dictionary
from fairseq.data.data_utils import load_indexed_dataset

from fairseq_ext.data.examples import TEXT, Example, parse
from fairseq_ext.data.vocabulary import Vocabulary
from fairseq_ext.errors import UsageError
from fairseq_ext.files import read_lines
from fairseq_ext.roles.pieces import Piece, are_numbers, pieces
from fairseq_ext.roles.word_alignment import Token

BATCH = 1000  # texts that are tokenised together


class Text(NamedTuple):
    """A split.

    Attributes:
        path: where it lies, without endings.
        symbols: those of its dictionary.
        total: the number of sentences.
        sentences: the tokens of each, without its ends.
    """

    path: Path
    symbols: Sequence[str]
    total: int
    sentences: Iterable[list[Token]]


def find(data: Path, split: str, lang: str | None, vocabulary: Path | None) -> Text:
    """A split of labelled text, of translations or of text alone.

    Args:
        lang: which text of a translation.
        vocabulary: the folder with the tokeniser, if not `data`.

    Raises:
        UsageError: there is no such text, it is empty, or cannot be read.
    """
    labelled = data / f"{split}.jsonl"
    file = labelled if labelled.is_file() else _binary(data, split, lang)
    if not file.stat().st_size:
        raise UsageError(f"{file} is empty; give a split with sentences")
    if file == labelled:
        return _labelled(file, vocabulary or data)
    return _binarised(file, data / (f"dict.{lang}.txt" if lang else "dict.txt"), vocabulary or data)


# Labelled text.


def _labelled(path: Path, vocabulary: Path) -> Text:
    loaded = Vocabulary.load(vocabulary)
    total = sum(1 for _ in read_lines(path))
    examples = parse(read_lines(path), str(path), {"text": TEXT})
    sentences = _tokenised(examples, loaded)
    return Text(path.with_suffix(""), loaded.dictionary.symbols, total, sentences)


def _tokenised(examples: Iterator[Example], vocabulary: Vocabulary) -> Iterator[list[Token]]:
    while batch := [_text(example) for example in islice(examples, BATCH)]:
        for text, found in zip(batch, vocabulary.encode(batch), strict=True):
            yield tokens_of(text, found.offsets)


def _text(example: Example) -> str:
    if "pair" in example.values:
        raise UsageError(
            f"{example.where} has a 'pair', and annotations are of one sentence; give other data, "
            "and roles that need none"
        )
    return example.values["text"]


def tokens_of(text: str, offsets: np.ndarray) -> list[Token]:
    """Tokens as they are written; of parts of a character the first one has it."""
    tokens: list[Token] = []
    passed = 0
    for begin, end in offsets.tolist():
        before, written = text[passed:begin], text[max(begin, passed) : end]
        opens = before != before.strip() or written[:1].isspace()
        tokens.append(Piece(written.strip().encode(), opens, False))
        passed = max(passed, end)
    return tokens


# Binarised text.


def _binary(data: Path, split: str, lang: str | None) -> Path:
    if lang is None and (found := list(data.glob(f"{split}.*-*.*.bin"))):
        languages = " or ".join(sorted({path.stem.rpartition(".")[2] for path in found}))
        raise UsageError(f"{data} has translations; give --lang, {languages}")
    pattern = f"{split}.*-*.{lang}.bin" if lang else f"{split}.bin"
    found = list(data.glob(pattern))
    if len(found) != 1:
        raise UsageError(
            f"{data} has {len(found) or 'no'} {pattern if lang else f'{split}.jsonl or {pattern}'}"
            "; give a folder of fairseq-preprocess with one, or of labelled text"
        )
    return found[0]


def _binarised(file: Path, words: Path, vocabulary: Path) -> Text:
    path = file.with_suffix("")
    for needed in (words, file.with_suffix(".idx")):
        if not needed.is_file():
            raise UsageError(f"{needed} is not there; give a folder of fairseq-preprocess")
    dictionary = Dictionary.load(str(words))
    dataset = load_indexed_dataset(str(path), dictionary)
    known = pieces(_shown(dictionary.symbols[dictionary.nspecial :], vocabulary))
    table: list[Token] = [None] * dictionary.nspecial + known
    sentences = ([table[number] for number in row[:-1].tolist()] for row in dataset)
    return Text(path, dictionary.symbols, len(dataset), sentences)


def _shown(symbols: Sequence[str], vocabulary: Path) -> Sequence[str]:
    """Symbols as they are written, by the tokeniser where they are numbers."""
    if not are_numbers(symbols):
        return symbols
    tokeniser = Vocabulary.load(vocabulary).tokenizer
    return [tokeniser.id_to_token(int(s)) or s if s.isdecimal() else s for s in symbols]
