"""Tags of tokens in IOB1, IOB2 and BIOES, and the entities they mark; and tags of no entities."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

SCHEMES = ("iob1", "iob2", "bioes")
PLAIN = "none"  # tags that mark no entities, such as parts of speech

Tags = Sequence[str]
"""The tags of a sentence, one for each token."""


class Entity(NamedTuple):
    """An entity: its kind, its first and its last token."""

    kind: str
    first: int
    last: int


def entities(tags: Tags) -> list[Entity]:
    """Return the entities that a sequence of tags marks, in any of the schemes.

    An entity begins at B or S, and at an I or E that does not continue one of its kind. It ends at
    E or S, and before a tag that does not continue it. These are the rules of CoNLL's evaluation:
    every sequence that a model may predict has a meaning.
    """
    found: list[Entity] = []
    opened: tuple[str, int] | None = None
    for place, (mark, kind) in enumerate(_split(tags)):
        if opened and (mark not in "IE" or kind != opened[0]):
            found.append(Entity(*opened, place - 1))
            opened = None
        if mark != "O" and not opened:
            opened = kind, place
        if opened and mark in "ES":
            found.append(Entity(*opened, place))
            opened = None
    return found + ([Entity(*opened, len(tags) - 1)] if opened else [])


def count_matches(predicted: Tags, right: Tags) -> tuple[int, int, int]:
    """Return how many entities are the same on both sides, were predicted, and are right.

    Two are the same if their kinds and both of their ends are.
    """
    found, marked = set(entities(predicted)), set(entities(right))
    return len(found & marked), len(found), len(marked)


def write(marked: Sequence[Entity], length: int, scheme: str) -> list[str]:
    """Return the tags of entities that do not overlap, in a scheme."""
    tags, ends = ["O"] * length, {e.last: e.kind for e in marked}
    for kind, first, last in marked:
        tags[first : last + 1] = [f"I-{kind}"] * (last + 1 - first)
        if scheme != "iob1" or ends.get(first - 1) == kind:
            tags[first] = f"B-{kind}"
        if scheme == "bioes":
            tags[last] = f"{'S' if first == last else 'E'}-{kind}"
    return tags


def first_fault(tags: Tags, scheme: str) -> int | None:
    """Return the index of the first tag that is wrong in the scheme or names no kind, or None."""
    if scheme == PLAIN:
        return next((place for place, tag in enumerate(tags) if not tag.strip()), None)
    right = write(entities(tags), len(tags), scheme)
    return next((n for n, tag in enumerate(tags) if tag != right[n] or tag.endswith("-")), None)


def describe_fault(tag: str, scheme: str) -> str:
    """Return what to write, or to give, in the place of a tag that is wrong in a scheme."""
    if scheme == PLAIN:
        return "which is empty; write a tag for each word"
    if tag in ("0", "o"):
        return "which is not the letter O; write O for words outside of entities"
    if match := re.fullmatch(r"([BILSEUbilseu])(?:([-_.:/ ])(.*))?", tag):
        mark, link, kind = match.groups()
        upper = mark.upper().translate(str.maketrans("LU", "ES"))
        if not kind:
            return f"which names no kind; write {upper}-KIND, or give --tag-scheme {PLAIN}"
        if link != "-" or mark != upper:
            return f"which is no tag of an entity; write {upper}-{kind}"
        return f"where {scheme} has another; give --tag-scheme, one of {', '.join(SCHEMES)}"
    return (
        "which marks no entity, as O, B-KIND and I-KIND do; write these, or give --tag-scheme "
        f"{PLAIN} for tags without entities, as parts of speech"
    )


def _split(tags: Tags) -> Iterator[tuple[str, str]]:
    for tag in tags:
        mark, _, kind = tag.partition("-")
        yield mark or "O", kind
