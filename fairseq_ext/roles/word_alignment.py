"""Which word of a parse each token of a sentence belongs to.

Text and parse are compared by their characters, without case, accents, white space and what else
is not seen; quotes and dashes of all kinds are alike, and escapes of Moses (&apos;, @-@) and of the
Penn Treebank (-LRB-) are undone. A token belongs to the word that it begins in. In text that has
been parted into words (words, or subword-nmt's) no token may reach into the next word; pieces of
other text, like ")." of a byte-level BPE, may.
"""

import html
import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import lru_cache

from fairseq_ext.roles.pieces import Piece

Token = Piece | None
"""None: an unknown one, which is a whole word."""

UNKNOWN = "\0"
PENN = dict(zip("-LRB- -RRB- -LSB- -RSB- -LCB- -RCB- @-@".split(), "()[]{}-", strict=True))
ESCAPE = r"&(?:amp|lt|gt|quot|apos|#91|#93|#124);|" + "|".join(PENN)
UNITS = re.compile(f"{ESCAPE}|.", re.DOTALL)
ALIKE = str.maketrans(
    dict.fromkeys('"\u201c\u201d\u201e\u201f\u00ab\u00bb', "''")  # as `` and '' are two
    | dict.fromkeys("`\u00b4\u2018\u2019\u201a\u201b\u2039\u203a", "'")
    | dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-")
)
UNSEEN = {"Mn", "Me", "Cc", "Cf", "Zs", "Zl", "Zp"}  # categories of Unicode


def align_tokens(
    tokens: Sequence[Token], words: Sequence[str], surfaces: Mapping[int, tuple[int, str]]
) -> list[int] | None:
    """The place of each token's word; None if tokens and words do not agree.

    Args:
        words: at least one.
        surfaces: as in `Sentence`. The words ("in", "dem") are tried first, then what is written
            ("im"), whose tokens belong to the first of its words.
    """
    text, begins = _characters(tokens)
    bounds = {*begins, len(text)} if _parted(tokens) else range(len(text) + 1)
    ends = _ends(text, bounds, words, surfaces)
    if ends is None:
        return None
    found, word = [], 0
    for begin in begins:
        while ends[word] <= min(begin, len(text) - 1):
            word += 1
        found.append(word)
    return found


def group_words(tokens: Sequence[Token]) -> tuple[list[str], list[int]]:
    """The words that tokens make, for a parser, and the place of each token's word.

    Where tokens do not say where words end, letters and other characters are parted.
    """
    words: list[bytes] = []
    places = []
    parted = _parted(tokens)
    for group in _groups(tokens):
        words.append(b"")
        for part in group:
            if not parted and _changes(words[-1], part or b""):
                words.append(b"")
            words[-1] += b"<unk>" if part is None else part
            places.append(len(words) - 1)
    return [unescaped(word.decode(errors="ignore")).strip() or "_" for word in words], places


def unescaped(text: str) -> str:
    return re.sub(ESCAPE, lambda found: PENN.get(found[0]) or html.unescape(found[0]), text)


def _parted(tokens: Sequence[Token]) -> bool:
    return any(token is not None and token.ends_word for token in tokens)


def _changes(before: bytes, after: bytes) -> bool:
    last, first = before.decode(errors="ignore")[-1:], after.decode(errors="ignore")[:1]
    return bool(last and first) and last.isalnum() != first.isalnum()


def _groups(tokens: Sequence[Token]) -> list[list[bytes | None]]:
    """The tokens of each word of the text."""
    groups: list[list[bytes | None]] = []
    closed = True
    for token in tokens:
        if closed or token is None or token.starts_word:
            groups.append([])
        groups[-1].append(token and token.text)
        closed = token is None or token.ends_word
    return groups


def _characters(tokens: Sequence[Token]) -> tuple[str, list[int]]:
    """What is compared, and where in it each token begins."""
    text, begins = "", []
    for group in _groups(tokens):
        shown, places = (UNKNOWN, (0,)) if group == [None] else _shown(tuple(group))
        begins += [len(text) + place for place in places]
        text += shown
    return text, begins


@lru_cache(2**16)
def _shown(parts: tuple[bytes, ...]) -> tuple[str, tuple[int, ...]]:
    """Those of one word. What begins within a character, or is not seen, begins with the last."""
    text, of_byte = "", []
    for unit in UNITS.findall(b"".join(parts).decode(errors="surrogateescape")):
        seen = _seen(unit)
        place = len(text) if seen else max(len(text) - 1, 0)
        of_byte += [place] * len(unit.encode(errors="surrogateescape"))
        text += seen
    of_byte = of_byte or [0]
    begins, passed = [], 0
    for part in parts:
        begins.append(of_byte[passed if part else max(passed - 1, 0)])
        passed += len(part)
    return text, tuple(begins)


@lru_cache(2**16)
def _seen(unit: str) -> str:
    plain = unicodedata.normalize("NFKD", unescaped(unit).translate(ALIKE)).casefold()
    return "".join(letter for letter in plain if unicodedata.category(letter) not in UNSEEN)


def _ends(
    text: str,
    bounds: Sequence[int] | set[int],
    words: Sequence[str],
    surfaces: Mapping[int, tuple[int, str]],
) -> list[int] | None:
    """Where each word ends in the text, at one of the bounds; None if they do not agree."""
    ways: list[tuple] = [(0, 0, None)]
    tried = set()
    while ways:
        way = word, place, _ = ways.pop()
        if word == len(words) and place == len(text):
            return _traced(way)
        if word == len(words) or (word, place) in tried:
            continue
        tried.add((word, place))
        forms = [(word + 1, words[word])]
        if word in surfaces:
            forms.insert(0, surfaces[word])  # the last is tried first
        for following, form in forms:
            end = _end(text, place, form)
            if end in bounds:
                ways.append((following, end, way))
    return None


def _end(text: str, place: int, form: str) -> int | None:
    if text.startswith(UNKNOWN, place):
        return place + 1
    shown, _ = _shown((form.encode(),))
    return place + len(shown) if text.startswith(shown, place) else None


def _traced(way: tuple) -> list[int]:
    """The end of each word on the way; words written as one end together."""
    ends: list[int] = []
    while way[2]:
        ends += [way[1]] * (way[0] - way[2][0])
        way = way[2]
    return ends[::-1]
