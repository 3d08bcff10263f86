"""Pictures of flat things, drawn by Pillow, with the pixels at which each thing is visible."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

SIDE = 128  # of a picture, in pixels
THINGS = (2, 7)  # least number of a picture, and one more than the highest
RADII = {"small": (7.0, 11.0), "large": (20.0, 28.0)}
LARGE_SHARE = 0.35
RARE_SHARE = 0.1  # of shapes, and of colours
APART = 12.0  # least distance of two centres
VISIBLE = 0.4  # least share of a thing that nothing hides
GROUND = 220

Point = tuple[float, float]


def _turn(*points: tuple[float, float]) -> list[Point]:
    """Return points of polar coordinates, angles in turns from the top."""
    return [(r * math.sin(math.tau * a), -r * math.cos(math.tau * a)) for r, a in points]


def _heart(turn: float) -> Point:
    t = math.tau * turn
    y = 13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)
    return math.sin(t) ** 3, -(y + 2.5) / 15


SHAPES: dict[str, list[Point]] = {
    "circle": _turn(*((0.95, n / 24) for n in range(24))),
    "square": [(-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)],
    "triangle": [(0, -0.95), (1, 0.85), (-1, 0.85)],
    "diamond": [(0, -1), (0.75, 0), (0, 1), (-0.75, 0)],
    "star": _turn(*((0.4 if n % 2 else 1.0, n / 10) for n in range(10))),
    "cross": [
        *((-0.3, -1), (0.3, -1), (0.3, -0.3), (1, -0.3), (1, 0.3), (0.3, 0.3)),
        *((0.3, 1), (-0.3, 1), (-0.3, 0.3), (-1, 0.3), (-1, -0.3), (-0.3, -0.3)),
    ],
    "heart": [_heart(n / 30) for n in range(30)],
}
"""Outlines by name, in a square from -1 to 1, y downwards."""

COLOURS = {
    "red": (205, 40, 40),
    "green": (40, 150, 60),
    "blue": (45, 75, 205),
    "yellow": (235, 205, 45),
    "purple": (130, 50, 160),
    "orange": (240, 130, 30),
    "pink": (240, 130, 175),
}

RARE = frozenset(("star", "cross", "heart", "purple", "orange", "pink"))
"""Kinds that few things are of."""


class Thing(NamedTuple):
    """A thing in a picture.

    Attributes:
        shape: a name of `SHAPES`.
        colour: a name of `COLOURS`.
        size: a name of `RADII`.
        x: of its centre, in pixels from the left.
        y: of its centre, in pixels from the top.
        radius: half of its width, in pixels.
    """

    shape: str
    colour: str
    size: str
    x: float
    y: float
    radius: float

    @property
    def kinds(self) -> frozenset[str]:
        """Names of its shape, colour and size."""
        return frozenset((self.shape, self.colour, self.size))


class Scene(NamedTuple):
    """A picture and its contents.

    Attributes:
        things: in the order in which they were drawn, later ones over earlier ones.
        picture: RGB.
        shown: [SIDE, SIDE] uint8, the number of the thing that is visible at a pixel, from 1; 0 is
            the ground.
        visible: [things], the share of each thing that is visible.
    """

    things: list[Thing]
    picture: Image.Image
    shown: np.ndarray
    visible: np.ndarray


def sample_scene(rng: np.random.Generator) -> Scene:
    """Return a scene in which all things can be seen, if only in part."""
    count = int(rng.integers(*THINGS))
    things: list[Thing] = []
    areas: list[int] = []
    shown = np.zeros((SIDE, SIDE), np.uint8)
    visible = np.ones(0)
    while len(things) < count:
        thing = sample_thing(rng)
        if any(math.hypot(thing.x - t.x, thing.y - t.y) < APART for t in things):
            continue
        inside = fill_outline(thing)
        after = np.where(inside, np.uint8(len(things) + 1), shown)
        full: list[int] = [*areas, int(inside.sum())]
        shares = np.bincount(after.ravel(), minlength=len(full) + 1)[1:] / np.array(full)
        if shares.min() >= VISIBLE:
            things, areas, shown, visible = [*things, thing], full, after, shares
    return Scene(things, draw_picture(things, rng), shown, visible)


def sample_thing(rng: np.random.Generator) -> Thing:
    """Return a thing that lies within the picture."""
    size = "large" if rng.random() < LARGE_SHARE else "small"
    radius = rng.uniform(*RADII[size])
    x, y = rng.uniform(radius, SIDE - radius, 2)
    return Thing(sample_kind(SHAPES, rng), sample_kind(COLOURS, rng), size, x, y, radius)


def sample_kind(kinds: Sequence[str] | dict, rng: np.random.Generator) -> str:
    """Return a name, a rare one with the probability `RARE_SHARE`."""
    rare = rng.random() < RARE_SHARE
    names = [name for name in kinds if (name in RARE) == rare]
    return names[rng.integers(len(names))]


def place_outline(thing: Thing) -> list[Point]:
    """Return the outline of a thing in pixels."""
    return [
        (thing.x + thing.radius * x, thing.y + thing.radius * y) for x, y in SHAPES[thing.shape]
    ]


def fill_outline(thing: Thing) -> np.ndarray:
    """Return [SIDE, SIDE] bool: the pixels of a thing, if nothing hid it."""
    image = Image.new("L", (SIDE, SIDE))
    ImageDraw.Draw(image).polygon(place_outline(thing), fill=1)
    return np.asarray(image) > 0


def draw_picture(things: Sequence[Thing], rng: np.random.Generator) -> Image.Image:
    """Return a picture of things; each has a shade of its colour, and every pixel some noise."""
    image = Image.new("RGB", (SIDE, SIDE), (GROUND,) * 3)
    draw = ImageDraw.Draw(image)
    for thing in things:
        shade = np.clip(np.add(COLOURS[thing.colour], rng.normal(0, 10, 3)), 0, 255)
        draw.polygon(place_outline(thing), fill=tuple(shade.astype(int).tolist()))
    noise = rng.normal(0, 6, (SIDE, SIDE, 1))
    return Image.fromarray(np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8))
