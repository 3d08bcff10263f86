"""Pictures of attention maps and of numbers by layer and head."""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from fairseq_ext.evaluation.pictures import new_figure, use_whole_numbers

CELL = 0.27  # inches of a token
LABELS = 64  # on an axis; with more tokens cells are smaller and not all are labelled
LETTER = 0.08  # inches of a letter in a title, on average
SMALL = 1.1  # inches of a map in a grid
SMALL_LABELS = 12  # the most tokens that are labelled in a grid
LABEL_ROOM = 1.2  # inches
SCALE = "attention weight"


class TitledMap(NamedTuple):
    """A map [T, S] with its tokens and title."""

    title: str
    weights: Tensor
    rows: Sequence[str]
    columns: Sequence[str]


class HeadGrid(NamedTuple):
    """The maps [H, T, S] of a model's site by layer, and the layer and head of the large one."""

    title: str
    layers: dict[int, Tensor]
    rows: Sequence[str]
    columns: Sequence[str]
    large: tuple[int, int]

    @property
    def across(self) -> int:
        """The greatest number of heads in a layer."""
        return max(len(maps) for maps in self.layers.values())

    @property
    def large_map(self) -> TitledMap:
        """The large map, whose title names its layer and head."""
        layer, head = self.large
        title = f"{self.title}\nlayer {layer}, head {head}"
        return TitledMap(title, self.layers[layer][head], self.rows, self.columns)


def draw_numbers(axes: Axes, numbers: Any, highest: float = 1) -> Any:
    """Draw numbers [L, H], layers down and heads across, coloured from 0 to `highest`.

    Returns:
        The image, for a colour bar.
    """
    image = axes.imshow(numbers, cmap="Blues", vmin=0, vmax=highest, aspect="auto")
    use_whole_numbers(axes.xaxis, axes.yaxis)
    axes.tick_params(labelsize=6)
    return image


def arrange(rows: Sequence[Mapping], name: str, layers: Sequence, heads: Sequence) -> np.ndarray:
    """Return numbers [L, H] of rows that have a layer and a head; NaN where there is no row."""
    numbers = {(row["layer"], row["head"]): row[name] for row in rows}
    return np.array([[numbers.get((i, j), np.nan) for j in heads] for i in layers], dtype=float)


def draw_map(picture: TitledMap, ylabel: str, xlabel: str) -> Figure:
    """Draw a map, white for 0, with a token at each row and column."""
    height, width = _size(picture.weights)
    figure = Figure(figsize=(width, height))  # of the cells; saving adds what surrounds them
    axes = figure.add_axes((0, 0, 1, 1), ylabel=ylabel, xlabel=xlabel)
    image = _draw_titled(axes, picture)
    bar = axes.inset_axes((1 + 0.1 / width, 0, 0.13 / width, 1))
    figure.colorbar(image, cax=bar, label=SCALE)
    return figure


def draw_beside(pictures: Sequence[TitledMap], across: int, ylabel: str, xlabel: str) -> Figure:
    """Draw maps side by side in rows of `across`, all on one scale."""
    heights, widths = zip(*(_size(picture.weights) for picture in pictures), strict=True)
    down = ceil(len(pictures) / across)
    lines = (line for picture in pictures for line in picture.title.split("\n"))
    wide = max(max(widths) + LABEL_ROOM, LETTER * max(map(len, lines)))
    figure = new_figure(across * wide + LABEL_ROOM, down * (max(heights) + LABEL_ROOM))
    panels = list(figure.subplots(down, across, squeeze=False).flat)
    highest = max(float(picture.weights.max()) for picture in pictures)
    for axes, picture in zip(panels, pictures, strict=False):
        image = _draw_titled(axes, picture, highest)
    for axes in panels[len(pictures) :]:
        axes.remove()
    figure.supylabel(ylabel, fontsize=10)
    figure.supxlabel(xlabel, fontsize=10)
    figure.colorbar(image, ax=figure.axes, shrink=0.6, pad=0.02, label=SCALE)
    return figure


def draw_grids(
    grids: Sequence[HeadGrid], ylabel: str, xlabel: str, own_scales: bool = False
) -> Figure:
    """Draw one head of each model large and, below, all heads (columns) of all layers (rows).

    All maps have one scale, so that a head that spreads evenly looks pale and even; with
    `own_scales` each small map has a scale of its own.
    """
    heights, widths = zip(*(_size(grid.large_map.weights) for grid in grids), strict=True)
    tall = max(heights) + LABEL_ROOM
    down = max(len(grid.layers) for grid in grids) * SMALL
    wide = [max(w + 2, grid.across * SMALL) for grid, w in zip(grids, widths, strict=True)]
    figure = new_figure(sum(wide), tall + down + 1.4)
    ratios: dict[str, Any] = {"width_ratios": wide, "height_ratios": (tall, down + 0.4)}
    parts = figure.subfigures(2, len(grids), squeeze=False, **ratios)
    maps = [each for grid in grids for each in grid.layers.values()]
    highest = max(float(each.max()) for each in maps)
    for (above, below), grid in zip(parts.T, grids, strict=True):
        axes = above.add_subplot(ylabel=ylabel, xlabel=xlabel)
        image = _draw_titled(axes, grid.large_map, None if own_scales else highest)
        axes.set_aspect("equal")
        above.colorbar(image, ax=axes, shrink=0.8, label=SCALE)
        _draw_small(below, grid, None if own_scales else highest)
        scale = "a scale for each map" if own_scales else "one scale for all maps"
        below.supylabel(ylabel, fontsize=8)
        below.supxlabel(f"{xlabel}; all heads of all layers, {scale}", fontsize=8)
    return figure


def _draw_small(figure: Any, grid: HeadGrid, highest: float | None) -> None:
    """Draw every map, from 0 to `highest`; only those at the left and below have labels."""
    panels = figure.subplots(len(grid.layers), grid.across, squeeze=False)
    few_rows, few_columns = (
        texts if len(texts) <= SMALL_LABELS else () for texts in (grid.rows, grid.columns)
    )
    for (layer, maps), line in zip(grid.layers.items(), panels, strict=True):
        for head, axes in enumerate(line):
            if head >= len(maps):
                axes.remove()
                continue
            _fill(axes, maps[head], highest)
            axes.set(xticks=[], yticks=[])
            last = layer == max(grid.layers)
            _label(axes, () if head else few_rows, few_columns if last else (), fontsize=5)
            if head == 0:
                axes.set_ylabel(f"layer {layer}", fontsize=7)
            if layer == min(grid.layers):
                axes.set_title(f"head {head}", fontsize=7)
            if (layer, head) == grid.large:
                axes.spines[:].set(color="#D55E00", linewidth=2)


def _size(weights: Tensor) -> tuple[float, float]:
    """Return the height and width of the cells in inches."""
    height, width = (CELL * max(5, min(size, LABELS)) for size in weights.shape)
    return height, width


def _draw_titled(axes: Axes, picture: TitledMap, highest: float | None = None) -> Any:
    image = _fill(axes, picture.weights, highest)
    _label(axes, picture.rows, picture.columns)
    axes.set_title(picture.title, fontsize=10)
    return image


def _fill(axes: Axes, weights: Tensor, highest: float | None = None) -> Any:
    return axes.imshow(
        weights, cmap="Blues", vmin=0, vmax=highest, interpolation="nearest", aspect="auto"
    )


def _label(axes: Axes, rows: Sequence[str], columns: Sequence[str], fontsize: float = 9) -> None:
    for axis, texts in ((axes.yaxis, rows), (axes.xaxis, columns)):
        shown = range(0, len(texts), ceil(len(texts) / LABELS) or 1)
        axis.set_ticks(shown, [texts[i] for i in shown], parse_math=False, fontsize=fontsize)
    for label in axes.get_xticklabels():
        label.set(rotation=45, ha="right", rotation_mode="anchor")
    axes.tick_params(length=0)
