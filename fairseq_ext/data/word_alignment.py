"""Alignment of a sentence's tokens with the words of its parse.

Text and parse are compared by their characters, without case, accents, white space and other
characters that are not seen; quotes and dashes of all kinds are alike, and escapes of Moses
(&apos;, @-@) and of the Penn Treebank (-LRB-) are undone. An unknown token agrees with any
characters, one at least. A token belongs to the word that it begins in. In text that is separated
into words (words, or subword-nmt's pieces) no token may reach into the next word; pieces of other
text, like ")." of a byte-level BPE, may.
"""

import html
import re
import unicodedata
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import lru_cache

from fairseq_ext.data.pieces import Piece

Token = Piece | None
"""A token's piece; None is an unknown token, a word or a part of one."""

State = tuple[int, int]
"""A state of the search: so many words match the text up to a place."""

BEGIN, REST = UNKNOWN = "\0\1"  # of an unknown token, for its first character and all others
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
    """Return the place of each token's word, or None if tokens and words do not agree.

    Args:
        tokens: of a sentence.
        words: of its parse, at least one.
        surfaces: word -> (the word after it, what is written), as in `Sentence`. The words ("in",
            "dem") are tried first, then what is written ("im"), whose tokens belong to the first
            of its words.
    """
    text, begins = _characters(tokens)
    bounds = {*begins, len(text)} if _shows_word_ends(tokens) else range(len(text) + 1)
    ends = _match_words(text, bounds, words, surfaces)
    if ends is None:
        return None
    places, word = [], 0
    for begin in begins:
        while ends[word] <= min(begin, len(text) - 1):
            word += 1
        places.append(word)
    return places


def group_words(tokens: Sequence[Token]) -> tuple[list[str], list[int]]:
    """Return the words that tokens make, for a parser, and the place of each token's word.

    Where tokens do not show where words end, letters are separated from other characters.
    """
    words: list[bytes] = []
    places = []
    separated = _shows_word_ends(tokens)
    for group in _group_by_word(tokens):
        words.append(b"")
        for part in group:
            if not separated and _changes_kind(words[-1], part or b""):
                words.append(b"")
            words[-1] += b"<unk>" if part is None else part
            places.append(len(words) - 1)
    return [_unescape(word.decode(errors="ignore")).strip() or "_" for word in words], places


def _unescape(text: str) -> str:
    return re.sub(ESCAPE, lambda match: PENN.get(match[0]) or html.unescape(match[0]), text)


def _shows_word_ends(tokens: Sequence[Token]) -> bool:
    return any(token is not None and token.ends_word for token in tokens)


def _changes_kind(before: bytes, after: bytes) -> bool:
    """Return whether a letter or digit meets another character."""
    last, first = before.decode(errors="ignore")[-1:], after.decode(errors="ignore")[:1]
    return bool(last and first) and last.isalnum() != first.isalnum()


def _group_by_word(tokens: Sequence[Token]) -> list[list[bytes | None]]:
    """Return the tokens of each word of the text, as bytes; None is an unknown one."""
    groups: list[list[bytes | None]] = []
    word_is_over = True
    for token in tokens:
        if word_is_over or token is None or token.starts_word:
            groups.append([])
        groups[-1].append(token and token.text)
        word_is_over = token is None or token.ends_word
    return groups


def _characters(tokens: Sequence[Token]) -> tuple[str, list[int]]:
    """Return the characters that are compared, and where among them each token begins."""
    text, begins = "", []
    for group in _group_by_word(tokens):
        seen, places = (UNKNOWN, (0,)) if group == [None] else _characters_of_word(tuple(group))
        begins += [len(text) + place for place in places]
        text += seen
    return text, begins


@lru_cache(2**16)
def _characters_of_word(parts: tuple[bytes, ...]) -> tuple[str, tuple[int, ...]]:
    """Return the characters of one word, and where among them each of its parts begins.

    A part that begins within a character, or at one that is not seen, begins with the last one.
    """
    text, place_of_byte = "", []
    for unit in UNITS.findall(b"".join(parts).decode(errors="surrogateescape")):
        seen = _normalise(unit)
        place = len(text) if seen else max(len(text) - 1, 0)
        place_of_byte += [place] * len(unit.encode(errors="surrogateescape"))
        text += seen
    place_of_byte = place_of_byte or [0]
    begins, start = [], 0
    for part in parts:
        begins.append(place_of_byte[start if part else max(start - 1, 0)])
        start += len(part)
    return text, tuple(begins)


@lru_cache(2**16)
def _normalise(unit: str) -> str:
    """Return a character or an escape as it is compared; nothing if it is not seen."""
    plain = unicodedata.normalize("NFKD", _unescape(unit).translate(ALIKE)).casefold()
    return "".join(letter for letter in plain if unicodedata.category(letter) not in UNSEEN)


def _match_words(
    text: str,
    bounds: Container[int],
    words: Sequence[str],
    surfaces: Mapping[int, tuple[int, str]],
) -> list[int] | None:
    """Return where each word ends in the text, at one of the bounds, or None if they do not agree.

    This is a depth-first search, since a word may be written in two ways.
    """
    stack: list[tuple[State, State | None]] = [((0, 0), None)]
    before: dict[State, State | None] = {}
    while stack:
        state, previous = stack.pop()
        if state in before:
            continue
        before[state] = previous
        word, place = state
        if word == len(words):
            if place == len(text):
                return _ends_of_words(state, before)
            continue
        forms = [(word + 1, words[word])]
        if word in surfaces:
            forms.insert(0, surfaces[word])  # the last form is tried first
        for following, form in forms:
            ends = [end for end in _match(text, place, form) if end in bounds]
            stack += [((following, end), state) for end in ends]
    return None


def _match(text: str, place: int, form: str) -> list[int]:
    """Return where a form that is written at a place can end: in unknown text at several places.

    The likeliest place is the last one: most often an unknown token is a whole word.
    """
    seen, _ = _characters_of_word((form.encode(),))
    if seen and text.startswith(seen, place):
        return [place + len(seen)]
    ends = {place}
    for letter in seen or UNKNOWN[: text.startswith(BEGIN, place)]:
        ends = {end for at in ends for end in _follow(text, at, letter)}
    ends |= {end + 1 for end in ends if text.startswith(REST, end)}
    return sorted(ends, key=lambda end: (text.startswith(REST, end), end), reverse=True)


def _follow(text: str, place: int, letter: str) -> Iterator[int]:
    """Yield the places after a letter that is written at a place, or is a part of unknown text."""
    if text.startswith(REST, place):
        yield place
        place += 1
    if text.startswith((BEGIN, letter), place):
        yield place + 1


def _ends_of_words(state: State, before: Mapping[State, State | None]) -> list[int]:
    """Return the end of each word on the way to a state; words written as one end together."""
    ends: list[int] = []
    while previous := before[state]:
        ends += [state[1]] * (state[0] - previous[0])
        state = previous
    return ends[::-1]
