"""Tags of tokens and the entities they mark: IOB1, IOB2 and BIOES."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

SCHEMES = ("iob1", "iob2", "bioes")


class Entity(NamedTuple):
    """A kind, and the first and last of its tokens."""

    kind: str
    first: int
    last: int


def entities(tags: Sequence[str]) -> list[Entity]:
    """What a sequence of tags marks, in any of the schemes.

    An entity begins with B or S, and where I or E do not go on with one of their kind; it ends with
    E or S, and before what does not go on with it: as in CoNLL's evaluation, so that every sequence
    that a model may predict has a meaning.
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


def write(marked: Sequence[Entity], length: int, scheme: str) -> list[str]:
    """The tags of entities, of which none overlaps another, in a scheme."""
    tags, ends = ["O"] * length, {e.last: e.kind for e in marked}
    for kind, first, last in marked:
        tags[first : last + 1] = [f"I-{kind}"] * (last + 1 - first)
        if scheme != "iob1" or ends.get(first - 1) == kind:
            tags[first] = f"B-{kind}"
        if scheme == "bioes":
            tags[last] = f"{'S' if first == last else 'E'}-{kind}"
    return tags


def first_fault(tags: Sequence[str], scheme: str) -> int | None:
    """The place of the first tag that stands where the scheme has another, or that marks nothing;
    None if all are well."""
    right = write(entities(tags), len(tags), scheme)
    return next((n for n, tag in enumerate(tags) if tag != right[n] or tag.endswith("-")), None)


def _split(tags: Sequence[str]) -> Iterator[tuple[str, str]]:
    for tag in tags:
        mark, _, kind = tag.partition("-")
        yield mark or "O", kind
