"""Words that are still split into subwords, which no score may take for words."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from fairseq_ext.errors import UsageError


class Subwords(NamedTuple):
    """How a kind of subwords marks a word that it splits.

    Attributes:
        mark: a pattern.
        undo: the option of fairseq-generate that puts words together.
        share: of lines with the mark, up to which it may mean something else.
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
    """The kind of subwords in a text, and a line that has one."""
    for kind, (mark, _, share) in SUBWORDS.items():
        marked = [line for line in lines if re.search(mark, line)]
        if len(marked) > share * len(lines):
            return kind, marked[0]
    return None


def refuse_subwords(place: object, lines: list[str]) -> list[str]:
    """The lines; UsageError, which names their place, if words are split."""
    if found := find_subwords(lines):
        kind, line = found
        raise UsageError(
            f"{place} has words split by {kind} ({line[:60]!r}), which would be scored as words; "
            f"undo that, for fairseq-generate with {SUBWORDS[kind].undo}"
        )
    return lines
