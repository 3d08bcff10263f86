"""Tags of tokens in IOB1, IOB2 and BIOES, and the entities they mark."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

SCHEMES = ("iob1", "iob2", "bioes")

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
    right = write(entities(tags), len(tags), scheme)
    return next((n for n, tag in enumerate(tags) if tag != right[n] or tag.endswith("-")), None)


def _split(tags: Tags) -> Iterator[tuple[str, str]]:
    for tag in tags:
        mark, _, kind = tag.partition("-")
        yield mark or "O", kind
