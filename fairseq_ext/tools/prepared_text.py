"""Text that has been prepared for training, as tokens that tell where words begin and end."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from fairseq.data import Dictionary
from fairseq.data.data_utils import load_indexed_dataset

from fairseq_ext.data.examples import TEXT, Example, parse
from fairseq_ext.data.pieces import Piece, are_numeric, read_pieces
from fairseq_ext.data.vocabulary import Vocabulary
from fairseq_ext.data.word_alignment import Token
from fairseq_ext.errors import UsageError
from fairseq_ext.files import batched, numbered_lines, read_lines

BATCH = 1000  # texts that are tokenised together


class PreparedText(NamedTuple):
    """A split of a prepared text.

    Attributes:
        path: its file, without endings.
        symbols: the symbols of its dictionary.
        total: the number of sentences.
        sentences: the tokens of each sentence, without its ends.
    """

    path: Path
    symbols: Sequence[str]
    total: int
    sentences: Iterable[list[Token]]


def find_text(data: Path, split: str, lang: str | None, vocabulary: Path | None) -> PreparedText:
    """Return a split of labelled text, of translations or of text alone.

    Args:
        data: the folder.
        split: "train", "valid", ...
        lang: the side of a translation.
        vocabulary: the folder with the tokeniser, if not `data`.

    Raises:
        UsageError: there is no such text, it is empty, or cannot be read.
    """
    labelled = data / f"{split}.jsonl"
    file = labelled if labelled.is_file() else _find_binary(data, split, lang)
    if not file.stat().st_size:
        raise UsageError(f"{file} is empty; give a split with sentences")
    if file == labelled:
        return _read_labelled(file, vocabulary or data)
    dictionary = data / (f"dict.{lang}.txt" if lang else "dict.txt")
    return _read_binary(file, dictionary, vocabulary or data)


def _read_labelled(path: Path, folder: Path) -> PreparedText:
    vocabulary = Vocabulary.load(folder)
    total = sum(1 for _ in read_lines(path))
    sentences = _tokenise(parse(numbered_lines(path), {"text": TEXT}), vocabulary)
    return PreparedText(path.with_suffix(""), vocabulary.dictionary.symbols, total, sentences)


def _tokenise(examples: Iterator[Example], vocabulary: Vocabulary) -> Iterator[list[Token]]:
    for batch in batched(map(_text_of, examples), BATCH):
        for text, encoded in zip(batch, vocabulary.encode(batch), strict=True):
            yield split_tokens(text, encoded.offsets)


def _text_of(example: Example) -> str:
    if "pair" in example.values:
        raise UsageError(
            f"{example.where} has a 'pair', and annotations are of one sentence; give other data, "
            "and roles that need none"
        )
    return example.values["text"]


def split_tokens(text: str, offsets: np.ndarray) -> list[Token]:
    """Return the tokens of a text as they are written.

    Where several tokens are parts of one character, the first of them has it.

    Args:
        text: a sentence.
        offsets: first character of each token and the one after it, [tokens, 2], integers.
    """
    tokens: list[Token] = []
    end_before = 0
    for begin, end in offsets.tolist():
        gap, written = text[end_before:begin], text[max(begin, end_before) : end]
        opens = gap != gap.strip() or written[:1].isspace()
        tokens.append(Piece(written.strip().encode(), opens, False))
        end_before = max(end_before, end)
    return tokens


def _find_binary(data: Path, split: str, lang: str | None) -> Path:
    if Path(split).name != split:
        raise UsageError(f"--split is {split!r}; give the name of a split, such as train")
    if lang is None and (sides := list(data.glob(f"{split}.*-*.*.bin"))):
        languages = " or ".join(sorted({path.stem.rpartition(".")[2] for path in sides}))
        raise UsageError(f"{data} has translations; give --lang, {languages}")
    pattern = f"{split}.*-*.{lang}.bin" if lang else f"{split}.bin"
    paths = list(data.glob(pattern))
    if len(paths) != 1:
        raise UsageError(
            f"{data} has {len(paths) or 'no'} {pattern if lang else f'{split}.jsonl or {pattern}'}"
            "; give a folder of fairseq-preprocess with one, or of labelled text"
        )
    return paths[0]


def _read_binary(file: Path, words: Path, vocabulary: Path) -> PreparedText:
    path = file.with_suffix("")
    for needed in (words, file.with_suffix(".idx")):
        if not needed.is_file():
            raise UsageError(f"{needed} is not there; give a folder of fairseq-preprocess")
    dictionary = Dictionary.load(str(words))
    dataset = load_indexed_dataset(str(path), dictionary)
    written = _spell(dictionary.symbols[dictionary.nspecial :], vocabulary)
    table: list[Token] = [None] * dictionary.nspecial
    table += read_pieces(written)
    sentences = ([table[number] for number in row[:-1].tolist()] for row in dataset)
    return PreparedText(path, dictionary.symbols, len(dataset), sentences)


def _spell(symbols: Sequence[str], vocabulary: Path) -> Sequence[str]:
    """Return symbols as they are written; the tokeniser spells symbols that are numbers."""
    if not are_numeric(symbols):
        return symbols
    tokeniser = Vocabulary.load(vocabulary).tokenizer
    return [tokeniser.id_to_token(int(s)) or s if s.isdecimal() else s for s in symbols]
