"""SentencePiece's model files, read without its library: unigram pieces, as DeBERTa has.

CamemBERT and XLM-R, which fairseq trained, have them too.
A file is a message in the wire format of Protocol Buffers: a number of each field and its kind,
then the value.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import Unigram
from tokenizers.processors import BertProcessing

from fairseq_ext.errors import UsageError

PIECES, TRAINER, NORMALISER = 1, 2, 3  # fields of a model
TEXT, SCORE, KIND = 1, 2, 3  # fields of a piece
MODEL_TYPE, CHARACTER_MAP = 3, 2  # a field of the trainer, and of the normaliser
UNIGRAM, UNKNOWN = 1, 2  # values of a type of models, and of a kind of pieces
MASK = "[MASK]"


def read_fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and value of each field of a message.

    Raises:
        ValueError: the bytes are no such message.
    """
    value: Any
    place = 0
    while place < len(data):
        key, place = _read_number(data, place)
        kind = key & 7
        if kind == 0:
            value, place = _read_number(data, place)
        else:
            size = {1: 8, 5: 4}.get(kind, 0)
            if kind == 2:
                size, place = _read_number(data, place)
            elif not size:
                raise ValueError(f"no field has the kind {kind}")
            value, place = data[place : place + size], place + size
            if place > len(data):
                raise ValueError("it ends within a field")
        yield key >> 3, value


def _read_number(data: bytes, place: int) -> tuple[int, int]:
    """Return a number of seven bits in each byte, the lowest first, and the place after it."""
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            raise ValueError("it ends within a number")
        byte, place = data[place], place + 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
    raise ValueError("a number is too long")


class SentencePieces(NamedTuple):
    """A unigram model of SentencePiece.

    Attributes:
        scores: pieces and their scores.
        unknown: the number of the unknown piece, if there is one.
        characters: the table of characters that are replaced, or None.
    """

    scores: list[tuple[str, float]]
    unknown: int | None
    characters: bytes | None


def read_model(file: Path) -> SentencePieces:
    """Return the contents of a model file; raise UsageError if it is no unigram model."""
    fields = [*read_fields(file.read_bytes())]
    pieces = [dict(read_fields(value)) for number, value in fields if number == PIECES]
    trainer, normaliser = (
        dict(read_fields(next((v for n, v in fields if n == wanted), b"")))
        for wanted in (TRAINER, NORMALISER)
    )
    if not pieces or trainer.get(MODEL_TYPE, UNIGRAM) != UNIGRAM:
        raise UsageError(f"{file} is no unigram model of SentencePiece; give that of its encoder")
    scores = [(piece[TEXT].decode(), _read_score(piece)) for piece in pieces]
    unknown = next((i for i, piece in enumerate(pieces) if piece.get(KIND) == UNKNOWN), None)
    return SentencePieces(scores, unknown, normaliser.get(CHARACTER_MAP))


def read_sentence_pieces(file: Path, settings: dict[str, Any]) -> Tokenizer:
    """Return the tokeniser of DeBERTa's model file, with BERT's special tokens around texts.

    Args:
        settings: those of tokenizer_config.json: do_lower_case and split_by_punct.

    Raises:
        UsageError: it is no unigram model with BERT's special tokens.
    """
    scores, unknown, characters = read_model(file)
    names = {name: i for i, (name, _) in enumerate(scores)}
    if missing := [name for name in ("[CLS]", "[SEP]", "[PAD]") if name not in names]:
        raise UsageError(f"{file} has no {' and no '.join(missing)}; give that of a DeBERTa")
    if MASK not in names:
        scores.append((MASK, 0.0))
    tokenizer = Tokenizer(Unigram(scores, unknown, byte_fallback=False))
    tokenizer.normalizer = _build_normaliser(characters, settings)
    spaces = pre_tokenizers.Metaspace()
    split = [pre_tokenizers.Punctuation("isolated")] * bool(settings.get("split_by_punct"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, spaces])
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["[CLS]", "[SEP]", "[PAD]", MASK])
    sep, cls = (("[SEP]", names["[SEP]"]), ("[CLS]", names["[CLS]"]))
    tokenizer.post_processor = BertProcessing(sep, cls)
    return tokenizer


FAIRSEQ_SYMBOLS = {
    "CamembertTokenizer": ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"),
    "XLMRobertaTokenizer": ("<s>", "<pad>", "</s>", "<unk>"),
}
"""Symbols of fairseq's dictionary before the pieces of a model file, by class of tokenisers."""


def read_fairseq_pieces(file: Path, name: str) -> Tokenizer:
    """Return the tokeniser of the model file of an encoder that fairseq trained.

    Its dictionary has symbols of its own in front, and SentencePiece's only if it lacks them.

    Args:
        name: a class in FAIRSEQ_SYMBOLS.
    """
    scores, _, characters = read_model(file)
    front = FAIRSEQ_SYMBOLS[name]
    rest = [(piece, score) for piece, score in scores if piece not in front]
    pieces = [*((symbol, 0.0) for symbol in front), *rest, ("<mask>", 0.0)]
    tokenizer = Tokenizer(Unigram(pieces, front.index("<unk>"), byte_fallback=False))
    if characters:
        tokenizer.normalizer = normalizers.Precompiled(characters)
    spaces = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(spaces)
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(
        ["<s>", "<pad>", "</s>", "<unk>", AddedToken("<mask>", lstrip=True)]
    )
    return tokenizer


def _read_score(piece: dict[int, Any]) -> float:
    return struct.unpack("<f", piece[SCORE])[0] if SCORE in piece else 0.0


def _build_normaliser(characters: bytes | None, settings: dict[str, Any]) -> Any:
    parts: list[Any] = [normalizers.Lowercase()] * bool(settings.get("do_lower_case"))
    parts.append(normalizers.Strip())
    if characters:
        parts.append(normalizers.Precompiled(characters))
    return normalizers.Sequence([*parts, normalizers.Replace(Regex(" {2,}"), " ")])
