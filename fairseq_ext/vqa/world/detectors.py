"""Detectors that find boxes in a scene, and measure their place, shape, colour and size.

A detector misses some things, small and hidden ones more often, finds large things several times,
and raises false alarms. It measures each of its boxes by itself, so that two boxes of one thing
differ. It sees one property well, and the others dimly, with more noise, or not at all.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
from PIL import Image

from fairseq_ext.vqa.world.scenes import (
    COLOURS,
    RADII,
    SHAPES,
    SIDE,
    Scene,
    Thing,
    fill_outline,
)

FEWEST, MOST = 10, 40  # boxes of a picture
FALSE_ALARMS = 1.0  # their mean number
WAVES = 3  # along each axis; their phases tell the place
SIZES = 4  # features of the size
GRID = 8  # cells of an outline
SMALLEST, LARGEST = 6.0, 28.0  # half sides of boxes
NOISE = 0.1  # deviation of a feature that a detector sees well

BLUR = 0.05  # deviation of a box's centre and of the logarithm of its size, in halves of its side
OUTLINE_WIDTH, COLOUR_WIDTH = 0.1, 40.0  # distances within which likeness falls

PLACE = slice(0, 4 * WAVES)
SHAPE = slice(PLACE.stop, PLACE.stop + len(SHAPES))
COLOUR = slice(SHAPE.stop, SHAPE.stop + len(COLOURS))
SIZE = slice(COLOUR.stop, COLOUR.stop + SIZES)
WIDTH = SIZE.stop


class Box(NamedTuple):
    """A square in a picture.

    Attributes:
        x: of its centre.
        y: of its centre.
        half: half of its side.
        thing: the number of the thing that it shows, from 1; 0 if it is a false alarm.
    """

    x: float
    y: float
    half: float
    thing: int

    def corners(self, share: float = 1.0) -> tuple[int, int, int, int]:
        """Return left, top, right and bottom of its middle; the middle is a `share` of its side."""
        half = share * self.half
        edges = self.x - half, self.y - half, self.x + half, self.y + half
        left, top, right, bottom = (round(edge) for edge in edges)
        return left, top, max(right, left + 1), max(bottom, top + 1)


class Detector(NamedTuple):
    """A detector.

    Attributes:
        sees: the features that it measures well, beside the place.
        noise: deviation of all other features; None if they are 0, not seen at all.
        misses: how probable it is that a small thing, seen in full, is missed; a large one is
            missed a quarter as often.
        copies: the mean number of further boxes of the largest thing.
        vagueness: deviation of the place that its features give, in halves of a box's side.
    """

    sees: slice
    noise: float | None
    misses: float
    copies: float
    vagueness: float


def encode_place(centre: np.ndarray) -> np.ndarray:
    """Return the cosine and the sine of each wave along both axes at a place [2] in pixels.

    The longest wave is twice as long as a side of the picture, each other half of the next one. The
    product of two places is the sum of cosines of their distances: 2 WAVES if they are equal.
    """
    phases = np.pi * np.outer(2.0 ** np.arange(WAVES), centre / SIDE - 0.5).ravel()
    return np.concatenate([np.cos(phases), np.sin(phases)])


def encode(value: float, least: float, greatest: float, count: int) -> np.ndarray:
    """Return [count]: how close a value is to each of as many points between two ends.

    The closeness is 1 at the point and exp(-1/2) at a neighbour.
    """
    points = np.linspace(least, greatest, count)
    return np.exp(-0.5 * ((value - points) / (points[1] - points[0])) ** 2)


def crop_outline(pixels: np.ndarray, box: Box) -> np.ndarray:
    """Return [GRID, GRID]: the share of True in each cell of a box, of pixels [SIDE, SIDE] bool."""
    image = Image.fromarray(pixels.astype(np.uint8) * 255)
    cells = image.crop(box.corners()).resize((GRID, GRID), Image.Resampling.BOX)
    return np.asarray(cells) / 255


@cache
def make_templates() -> np.ndarray:
    """Return [shapes, GRID, GRID]: the outline of each whole shape in a box that it fills."""
    middle, radius = SIDE / 2, SIDE / 4
    things = [Thing(shape, "red", "large", middle, middle, radius) for shape in SHAPES]
    outlines = [fill_outline(thing) for thing in things]
    return np.stack([crop_outline(each, surround(each)) for each in outlines])


def surround(pixels: np.ndarray, thing: int = 0) -> Box:
    """Return the least square around the pixels [SIDE, SIDE] that are True."""
    rows, columns = (np.flatnonzero(pixels.any(axis)) for axis in (1, 0))
    (top, bottom), (left, right) = ((ends[0], ends[-1] + 1) for ends in (rows, columns))
    half = max(bottom - top, right - left) / 2
    return Box((left + right) / 2, (top + bottom) / 2, half, thing)


def average_middle(picture: Image.Image, box: Box) -> np.ndarray:
    """Return the mean pixel, [] or [channels], in the middle of a box."""
    left, top, right, bottom = (min(max(edge, 0), SIDE) for edge in box.corners(0.5))
    left, top = min(left, SIDE - 1), min(top, SIDE - 1)
    middle = picture.crop((left, top, max(right, left + 1), max(bottom, top + 1)))
    return np.asarray(middle, float).mean((0, 1))


def measure_shape(scene: Scene, box: Box) -> np.ndarray:
    """Return how probably the visible outline in a box is that of each shape.

    The outline is that of the box's thing; a false alarm takes all things for one.
    """
    pixels = scene.shown == box.thing if box.thing else scene.shown > 0
    apart = ((crop_outline(pixels, box) - make_templates()) ** 2).mean((1, 2))
    likeness = np.exp((apart.min() - apart) / (2 * OUTLINE_WIDTH**2))
    return likeness / likeness.sum()


def measure_colour(scene: Scene, box: Box) -> np.ndarray:
    """Return how much the mean pixel in the middle of a box is like each colour."""
    mean = average_middle(scene.picture, box)
    apart = ((mean - np.array(list(COLOURS.values()))) ** 2).sum(1)
    return np.exp(-apart / (2 * COLOUR_WIDTH**2))


def measure_size(box: Box) -> np.ndarray:
    """Return the size of a box, on a logarithmic scale."""
    return encode(np.log(box.half), np.log(SMALLEST), np.log(LARGEST), SIZES)


DETECTORS = {
    "shape": Detector(SHAPE, noise=0.5, misses=0.1, copies=7.0, vagueness=0.3),
    "colour": Detector(COLOUR, noise=None, misses=0.1, copies=9.0, vagueness=0.3),
    "size": Detector(SIZE, noise=None, misses=0.1, copies=3.0, vagueness=0.15),
}
"""The views, the primary one first."""


def find_boxes(scene: Scene, detector: Detector, rng: np.random.Generator) -> list[Box]:
    """Return the boxes that a detector finds, from `FEWEST` to `MOST`, in random order.

    Where there are few, some things are found once more.
    """
    boxes: list[Box] = []
    for number, (thing, visible) in enumerate(zip(scene.things, scene.visible, strict=True), 1):
        missed = detector.misses * (0.25 if thing.size == "large" else 1) + 0.3 * (1 - visible)
        if rng.random() >= missed:
            share = (thing.radius / RADII["large"][1]) ** 2
            count = 1 + rng.poisson(detector.copies * share)
            boxes += [surround(scene.shown == number, number)] * count
    alarms = rng.poisson(FALSE_ALARMS) if boxes else FEWEST
    again = max(0, FEWEST - alarms - len(boxes))
    boxes += [boxes[place] for place in rng.integers(len(boxes) or 1, size=again)]
    boxes = [_blur(box, rng) for box in boxes] + [_raise_alarm(rng) for _ in range(alarms)]
    order = rng.permutation(len(boxes))[:MOST]
    return [boxes[place] for place in order]


def _blur(box: Box, rng: np.random.Generator) -> Box:
    dx, dy, grown = rng.normal(0, BLUR, 3)
    half = box.half * np.exp(grown)
    return Box(box.x + dx * box.half, box.y + dy * box.half, half, box.thing)


def _raise_alarm(rng: np.random.Generator) -> Box:
    x, y = rng.uniform(0, SIDE, 2)
    return Box(x, y, rng.uniform(SMALLEST, LARGEST), 0)


def describe_boxes(
    scene: Scene, boxes: list[Box], detector: Detector, rng: np.random.Generator
) -> np.ndarray:
    """Return the features [boxes, WIDTH] float16 of boxes."""
    noise = np.full(WIDTH, detector.noise or 0.0)
    noise[PLACE] = noise[detector.sees] = NOISE
    seen = np.zeros((len(boxes), WIDTH))
    for row, box in zip(seen, boxes, strict=True):
        vague = rng.normal(0, detector.vagueness * box.half, 2)
        row[PLACE] = encode_place(np.add((box.x, box.y), vague))
        row[SHAPE] = measure_shape(scene, box)
        row[COLOUR] = measure_colour(scene, box)
        row[SIZE] = measure_size(box)
    features = np.where(noise > 0, seen + rng.normal(0, noise, seen.shape), 0.0)
    return features.astype(np.float16)
