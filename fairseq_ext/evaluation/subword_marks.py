"""Detection of words that are still split into subwords, which no score may take for words."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from fairseq_ext.errors import UsageError


class Subwords(NamedTuple):
    """A kind of subwords, by the mark of a split word.

    Attributes:
        mark: a pattern.
        undo: the option of fairseq-generate that joins the words.
        share: the share of lines that may hold the mark with another meaning.
    """

    mark: str
    undo: str
    share: float = 0


# Where digits are masked, ## stands for a number, which may have an ending: ##th, ##kg.
ENDINGS = "st|nd|rd|th|s|ers|km|kg|mins|secs"
SUBWORDS = {
    "subword-nmt": Subwords(r"@@( |$)", "--remove-bpe"),
    "sentencepiece": Subwords("\u2581", "--remove-bpe=sentencepiece"),
    "WordPiece": Subwords(rf" ##(?!(?:{ENDINGS})\b)[^\W\d_]", "--bpe wordpiece", share=0.01),
}


def find_subwords(lines: Sequence[str]) -> tuple[str, str] | None:
    """Return the kind of subwords in a text and a line that has one, or None."""
    for kind, (mark, _, share) in SUBWORDS.items():
        marked = [line for line in lines if re.search(mark, line)]
        if len(marked) > share * len(lines):
            return kind, marked[0]
    return None


def refuse_subwords(place: object, lines: list[str]) -> list[str]:
    """Return the lines; raise UsageError, naming their place, if words are split."""
    if marked := find_subwords(lines):
        kind, line = marked
        raise UsageError(
            f"{place} has words split by {kind} ({line[:60]!r}), which would be scored as words; "
            f"undo that, for fairseq-generate with {SUBWORDS[kind].undo}"
        )
    return lines
