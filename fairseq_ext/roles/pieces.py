"""What the symbols of a dictionary say of words: their text, where words begin and end."""

from collections.abc import Sequence
from typing import NamedTuple

from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode

MARKS = ("@@", "##", "\u2581", "\u0120")
"""Of subword-nmt and fastBPE (at the end, more to come); of WordPiece (in front, no beginning); of
SentencePiece and byte-level BPE (in front, a beginning)."""


LEAST = 0.01
"""Share of symbols with a mark; words that look like it ("###") are fewer."""


class Piece(NamedTuple):
    """A word, or a part of one.

    Attributes:
        text: in UTF-8, maybe of half a character.
        starts_word: it begins a word, whatever stands before it.
        ends_word: what follows it begins a word.
    """

    text: bytes
    starts_word: bool
    ends_word: bool


def read_pieces(symbols: Sequence[str]) -> list[Piece]:
    """That of each symbol."""
    read = PIECE_READERS[detect_mark(symbols)]
    return [read(symbol) for symbol in symbols]


def detect_mark(symbols: Sequence[str]) -> str:
    """The one that most have, if enough do, which says how words were split; else none."""
    found = {mark: sum(s.startswith(mark) for s in symbols) for mark in MARKS[1:]}
    found["@@"] = sum(s.endswith("@@") and s != "@@" for s in symbols)
    most = max(MARKS, key=found.__getitem__)
    return most if found[most] > LEAST * len(symbols) else ""


def are_numeric(symbols: Sequence[str]) -> bool:
    """Whether symbols are those of a tokeniser's tokens by number, as with fairseq's gpt2 BPE."""
    return 2 * sum(symbol.isdecimal() for symbol in symbols) > len(symbols)


def _of_bytes(symbol: str) -> Piece:
    text = b"".join(_BYTES.get(letter, letter.encode()) for letter in symbol)
    return Piece(text.removeprefix(b" "), symbol.startswith("\u0120"), False)


_BYTES = {letter: bytes([number]) for number, letter in bytes_to_unicode().items()}

PIECE_READERS = {
    "": lambda symbol: Piece(symbol.encode(), True, True),
    "@@": lambda s: Piece(s.removesuffix("@@").encode(), False, not s.endswith("@@")),
    "##": lambda s: Piece(s.removeprefix("##").encode(), not s.startswith("##"), False),
    "\u2581": lambda s: Piece(s.lstrip("\u2581").encode(), s.startswith("\u2581"), False),
    "\u0120": _of_bytes,
}
