"""Pieces: the text of a dictionary's symbols, and where words begin and end in them."""

from collections.abc import Sequence
from typing import NamedTuple

from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode

MARKS = ("@@", "</w>", "##", "\u2581", "\u0120")
"""Marks of subword-nmt and fastBPE (at the end: the word continues), of BPE with ends of words (at
the end: it ends), of WordPiece (in front: the word has begun before), of SentencePiece and
byte-level BPE (in front: a word begins)."""

MIN_MARKED_SHARE = 0.01
"""Share of symbols with a mark; fewer are words that look like it ("###")."""


class Piece(NamedTuple):
    """A word, or a part of one.

    Attributes:
        text: in UTF-8, perhaps with half a character.
        starts_word: it begins a word, whatever stands before it.
        ends_word: what follows it begins a word.
    """

    text: bytes
    starts_word: bool
    ends_word: bool


def read_pieces(symbols: Sequence[str]) -> list[Piece]:
    """Return the piece of each symbol."""
    return list(map(PIECE_READERS[detect_mark(symbols)], symbols))


def detect_mark(symbols: Sequence[str]) -> str:
    """Return the mark that most symbols have, which tells how words were split; "" without one."""
    counts = {mark: sum(s.startswith(mark) for s in symbols) for mark in MARKS[2:]}
    counts |= {mark: sum(s.endswith(mark) and s != mark for s in symbols) for mark in MARKS[:2]}
    mark = max(MARKS, key=counts.__getitem__)
    return mark if counts[mark] > MIN_MARKED_SHARE * len(symbols) else ""


def are_numeric(symbols: Sequence[str]) -> bool:
    """Return whether symbols are a tokeniser's tokens by number, as in fairseq's gpt2 BPE."""
    return 2 * sum(symbol.isdecimal() for symbol in symbols) > len(symbols)


def _read_byte_level(symbol: str) -> Piece:
    text = b"".join(_BYTES.get(letter, letter.encode()) for letter in symbol)
    return Piece(text.removeprefix(b" "), symbol.startswith("\u0120"), False)


_BYTES = {letter: bytes([number]) for number, letter in bytes_to_unicode().items()}

PIECE_READERS = {
    "": lambda symbol: Piece(symbol.encode(), True, True),
    "@@": lambda s: Piece(s.removesuffix("@@").encode(), False, not s.endswith("@@")),
    "</w>": lambda s: Piece(s.removesuffix("</w>").encode(), False, s.endswith("</w>")),
    "##": lambda s: Piece(s.removeprefix("##").encode(), not s.startswith("##"), False),
    "\u2581": lambda s: Piece(s.lstrip("\u2581").encode(), s.startswith("\u2581"), False),
    "\u0120": _read_byte_level,
}
"""mark -> function that reads the piece of a symbol."""
