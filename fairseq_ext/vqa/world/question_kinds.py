"""Questions about scenes with their true answers: existence, count, colour, comparison, spatial.

Most of them are about two properties of a thing, which different detectors see well. Half of the
questions of each kind that are answered by yes or no are meant to have each answer, and a "no" is
about kinds that the picture has, of different things.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fairseq_ext.vqa.world.scenes import COLOURS, RARE, SIDE, THINGS, Thing

SIDES: dict[str, Callable[[Thing], float]] = {
    "on the left": lambda thing: SIDE / 2 - thing.x,
    "on the right": lambda thing: thing.x - SIDE / 2,
    "at the top": lambda thing: SIDE / 2 - thing.y,
    "at the bottom": lambda thing: thing.y - SIDE / 2,
}
"""Halves of a picture, each with how many pixels a thing's centre lies within it."""
MARGIN = 10.0  # least distance of a centre that is asked about to the middle
TRIES = 20


class Question(NamedTuple):
    """A question and its true answer.

    Attributes:
        kind: a name of `KINDS`.
        rare: whether it, or its answer, is about a rare kind of things.
    """

    text: str
    answer: str
    kind: str
    rare: bool


class Wanted(NamedTuple):
    """A description of things; an empty property fits all."""

    size: str
    colour: str
    shape: str

    def find(self, things: Sequence[Thing]) -> list[Thing]:
        """Return the things that it describes."""
        kinds = set(filter(None, self))
        return [thing for thing in things if kinds <= thing.kinds]

    def say(self, plural: bool = False) -> str:
        """Return it in words."""
        noun = self.shape or "thing"
        ending = ("es" if noun.endswith("s") else "s") if plural else ""
        return " ".join(filter(None, (self.size, self.colour, noun + ending)))


Draft = tuple[str, str] | None
"""A question's text and answer; None if the scene does not allow what was tried."""


def sample_question(things: Sequence[Thing], kind: str, rng: np.random.Generator) -> Question:
    """Return a question of a kind, or of the kind "count" if the scene allows none."""
    yes = rng.random() < 0.5
    drafts = (KINDS[kind](things, yes, rng) for _ in range(TRIES))
    draft = next(filter(None, drafts), None)
    if draft is None:
        kind, draft = "count", ask_count(things, yes, rng)
    text, answer = draft
    rare = any(name in f"{text} {answer}" for name in RARE)
    return Question(text, answer, kind, rare)


def pick(items: Sequence, rng: np.random.Generator) -> int:
    """Return a place of a sequence."""
    return int(rng.integers(len(items)))


def answer_yes(yes: bool) -> str:
    """Return "yes" or "no"."""
    return "yes" if yes else "no"


def describe(things: Sequence[Thing], rng: np.random.Generator, parts: int = 2) -> Wanted:
    """Return a description by so many properties, each of them that of some thing.

    In half of the cases all are of one thing; else they may fit no thing at all.
    """
    same = rng.random() < 0.5
    one = pick(things, rng)
    chosen = set(rng.permutation(3)[:parts].tolist())
    values = []
    for place, name in enumerate(Wanted._fields):
        thing = things[one if same else pick(things, rng)]
        values.append(getattr(thing, name) if place in chosen else "")
    return Wanted(*values)


def tell_apart(thing: Thing, things: Sequence[Thing], more: str) -> Wanted | None:
    """Return a description that fits one thing alone, by its shape or one property more.

    It is None if other things are the same in both.
    """
    wanted = Wanted("", "", thing.shape)
    for each in (wanted, wanted._replace(**{more: getattr(thing, more)})):
        if len(each.find(things)) == 1:
            return each
    return None


def ask_existence(things: Sequence[Thing], yes: bool, rng: np.random.Generator) -> Draft:
    """Ask whether there is a thing of two properties, each of which some thing has."""
    wanted = describe(things, rng)
    if bool(wanted.find(things)) != yes:
        return None
    return f"Is there a {wanted.say()}?".replace(" a orange", " an orange"), answer_yes(yes)


def ask_count(things: Sequence[Thing], _: bool, rng: np.random.Generator) -> tuple[str, str]:
    """Ask how many things have one or two properties."""
    wanted = describe(things, rng, parts=int(rng.integers(1, 3)))
    return f"How many {wanted.say(plural=True)} are there?", str(len(wanted.find(things)))


def ask_colour(things: Sequence[Thing], _: bool, rng: np.random.Generator) -> Draft:
    """Ask for the colour of a thing that its shape, or shape and size, tells from all others."""
    thing = things[pick(things, rng)]
    wanted = tell_apart(thing, things, "size")
    return wanted and (f"What colour is the {wanted.say()}?", thing.colour)


def ask_comparison(things: Sequence[Thing], yes: bool, rng: np.random.Generator) -> Draft:
    """Ask whether there are more things of one description than of another.

    The two differ in one property of two; the numbers of things differ.
    """
    one = describe(things, rng)
    named = [name for name in one._fields if getattr(one, name)]
    name = named[pick(named, rng)]
    other = one._replace(**{name: getattr(things[pick(things, rng)], name)})
    difference = len(one.find(things)) - len(other.find(things))
    if difference == 0:
        return None
    pair = (one, other) if (difference > 0) == yes else (other, one)
    said = " than ".join(wanted.say(plural=True) for wanted in pair)
    return f"Are there more {said}?", answer_yes(yes)


def ask_spatial(things: Sequence[Thing], yes: bool, rng: np.random.Generator) -> Draft:
    """Ask on which side of the picture a thing is, or for the colour of the one on a side."""
    thing = things[pick(things, rng)]
    sides = list(SIDES)
    side = sides[pick(sides, rng)]
    if rng.random() < 0.7:
        wanted = tell_apart(thing, things, "colour")
        depth = SIDES[side](thing)
        if wanted is None or abs(depth) < MARGIN or (depth > 0) != yes:
            return None
        return f"Is the {wanted.say()} {side}?", answer_yes(yes)
    wanted = Wanted("", "", thing.shape)
    depths = [SIDES[side](each) for each in wanted.find(things)]
    alone = len(depths) > 1 and sum(depth > 0 for depth in depths) == 1
    if not alone or SIDES[side](thing) < 0 or min(abs(depth) for depth in depths) < MARGIN:
        return None
    return f"What colour is the {wanted.say()} {side}?", thing.colour


KINDS: dict[str, Callable[[Sequence[Thing], bool, np.random.Generator], Draft]] = {
    "existence": ask_existence,
    "count": ask_count,
    "colour": ask_colour,
    "comparison": ask_comparison,
    "spatial": ask_spatial,
}
"""Writers of questions; they get the things, whether yes would be right, and a generator."""

ANSWERS = {
    "yes/no": ["yes", "no"],
    "number": [str(number) for number in range(THINGS[1])],
    "other": list(COLOURS),
}
"""All answers, by answer type."""
