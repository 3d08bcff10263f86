"""WordPiece, which splits words into the longest pieces of a vocabulary: "injur ##y"."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import WhitespaceSplit

from fairseq_ext.data.tokenisers import SPECIAL
from fairseq_ext.errors import UsageError
from fairseq_ext.files import read_lines

MARK = "##"
UNKNOWN = "[UNK]"
LONGEST = 100  # characters of a word
INSIDE, NOTHING = " ", "  "  # what ## and [UNK] are to the tokeniser: no word has a space


class Pieces:
    """Splitter of words into WordPiece pieces.

    Args:
        vocabulary: pieces, as in a file; pieces that could not be joined again are not used.
    """

    def __init__(self, vocabulary: Iterable[str]) -> None:
        self.pieces = [UNKNOWN, *filter(is_usable, vocabulary)]
        inside = [NOTHING, *(_inside(piece) for piece in self.pieces[1:])]
        model = WordPiece(
            {piece: number for number, piece in enumerate(inside)},
            unk_token=NOTHING,
            continuing_subword_prefix=INSIDE,
            max_input_chars_per_word=LONGEST,
        )
        self.tokenizer = Tokenizer(model)
        self.tokenizer.pre_tokenizer = WhitespaceSplit()

    def encode(self, lines: Sequence[str]) -> list[str]:
        """Return lines of pieces, separated by spaces."""
        parted = [" ".join(line.split()) for line in lines]  # Python knows more white space
        found = self.tokenizer.encode_batch_fast(parted)
        return [" ".join([self.pieces[number] for number in line.ids]) for line in found]


def decode(line: str) -> str:
    """Return the words of a line of pieces."""
    return f" {line}".replace(f" {MARK}", "").removeprefix(" ")


def is_usable(piece: str) -> bool:
    """Return whether a piece can be joined to words again: it is neither ## nor special."""
    return piece not in SPECIAL and piece not in ("", MARK)


def _inside(piece: str) -> str:
    return INSIDE + piece.removeprefix(MARK) if piece.startswith(MARK) else piece


def load(path: Path) -> list[str]:
    """Return the pieces of a vocabulary file.

    Raises:
        UsageError: the file cannot be read, or is no vocabulary.
    """
    pieces = list(read_lines(path))
    if bad := [piece for piece in pieces if piece.split() != [piece]]:
        raise UsageError(
            f"{path} has the line {bad[0][:40]!r}, which is no piece; give a vocabulary, a piece a "
            "line, of `python -m fairseq_ext.prepare.wordpiece learn` or BERT"
        )
    if UNKNOWN not in pieces:
        raise UsageError(f"{path} has no {UNKNOWN}, so it is no vocabulary; give one, as BERT's")
    return pieces
