"""Pictures of attention maps: one, several side by side, or all heads of all layers."""

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CELL = 0.27  # inches
LABELS = 64  # on an axis; with more tokens cells are smaller and not all are labelled
LETTER = 0.08  # inches of a letter in a title, on average
SMALL = 1.1  # inches of a map in a grid
NAMED = 12  # tokens, at most, that are labelled in a grid


class Picture(NamedTuple):
    """A map [T, S] with its tokens and title."""

    title: str
    weights: Tensor
    rows: Sequence[str]
    columns: Sequence[str]


class Grid(NamedTuple):
    """Maps of a model's site by layer, [H, T, S] each, and the large one: a layer and a head."""

    title: str
    layers: dict[int, Tensor]
    rows: Sequence[str]
    columns: Sequence[str]
    large: tuple[int, int]


def draw_map(
    weights: Tensor, rows: Sequence[str], columns: Sequence[str], ylabel: str = "", xlabel: str = ""
) -> "Figure":
    """A picture of weights [T, S], white for 0, with a token at each row and column."""
    from matplotlib.figure import Figure

    height, width = _size(weights)
    figure = Figure(figsize=(width, height))  # of the cells: what is around them is added later
    axes = figure.add_axes((0, 0, 1, 1), ylabel=ylabel, xlabel=xlabel)
    image = _fill(axes, weights)
    _name(axes, rows, columns)
    figure.colorbar(image, cax=axes.inset_axes((1 + 0.1 / width, 0, 0.13 / width, 1)))
    return figure


def draw_beside(pictures: Sequence[Picture], across: int, ylabel: str, xlabel: str) -> "Figure":
    """Maps in rows of `across`, all on one scale."""
    from matplotlib.figure import Figure

    heights, widths = zip(*(_size(picture.weights) for picture in pictures), strict=True)
    down = ceil(len(pictures) / across)
    room = 1.2  # for labels
    lines = (line for picture in pictures for line in picture.title.split("\n"))
    wide = max(max(widths) + room, LETTER * max(map(len, lines)))
    size = (across * wide + room, down * (max(heights) + room))
    figure = Figure(figsize=size, layout="constrained")
    every = list(figure.subplots(down, across, squeeze=False).flat)
    most = max(float(picture.weights.max()) for picture in pictures)
    for axes, picture in zip(every, pictures, strict=False):
        image = _fill(axes, picture.weights, most)
        _name(axes, picture.rows, picture.columns)
        axes.set_title(picture.title, fontsize=10)
    for axes in every[len(pictures) :]:
        axes.remove()
    figure.supylabel(ylabel, fontsize=10)
    figure.supxlabel(xlabel, fontsize=10)
    figure.colorbar(image, ax=figure.axes, shrink=0.6, pad=0.02)
    return figure


def draw_grids(grids: Sequence[Grid], ylabel: str, xlabel: str) -> "Figure":
    """Of each model one head large and, below, all heads (columns) of all layers (rows)."""
    from matplotlib.figure import Figure

    large = [grid.layers[grid.large[0]][grid.large[1]] for grid in grids]
    tall = max(_size(weights)[0] for weights in large) + 1.2
    down = max(len(grid.layers) for grid in grids) * SMALL
    widths = [
        max(_size(w)[1] + 2, _across(grid) * SMALL) for grid, w in zip(grids, large, strict=True)
    ]
    figure = Figure(figsize=(sum(widths), tall + down + 1), layout="constrained")
    parts = figure.subfigures(
        2, len(grids), squeeze=False, width_ratios=widths, height_ratios=(tall, down)
    )
    for (above, below), grid, weights in zip(parts.T, grids, large, strict=True):
        axes = above.add_subplot(ylabel=ylabel, xlabel=xlabel)
        image = _fill(axes, weights)
        axes.set_aspect("equal")
        _name(axes, grid.rows, grid.columns)
        axes.set_title("{}\nlayer {}, head {}".format(grid.title, *grid.large), fontsize=10)
        above.colorbar(image, ax=axes, shrink=0.8)
        _draw_small(below, grid)
    return figure


def _draw_small(figure: Any, grid: Grid) -> None:
    """Each map on a scale of its own; only those at the left and below have labels."""
    every = figure.subplots(len(grid.layers), _across(grid), squeeze=False)
    for (layer, maps), line in zip(grid.layers.items(), every, strict=True):
        for head, axes in enumerate(line):
            if head >= len(maps):
                axes.remove()
                continue
            _fill(axes, maps[head])
            axes.set(xticks=[], yticks=[])
            last = layer == max(grid.layers)
            _name(
                axes,
                grid.rows if head == 0 and len(grid.rows) <= NAMED else (),
                grid.columns if last and len(grid.columns) <= NAMED else (),
                fontsize=5,
            )
            if head == 0:
                axes.set_ylabel(f"layer {layer}", fontsize=7)
            if layer == min(grid.layers):
                axes.set_title(f"head {head}", fontsize=7)
            if (layer, head) == grid.large:
                axes.spines[:].set(color="#D55E00", linewidth=2)


def _across(grid: Grid) -> int:
    return max(len(maps) for maps in grid.layers.values())


def _size(weights: Tensor) -> tuple[float, float]:
    """Height and width of the cells, in inches."""
    height, width = (CELL * max(5, min(size, LABELS)) for size in weights.shape)
    return height, width


def _fill(axes: "Axes", weights: Tensor, most: float | None = None) -> Any:
    return axes.imshow(
        weights, cmap="Blues", vmin=0, vmax=most, interpolation="nearest", aspect="auto"
    )


def _name(axes: "Axes", rows: Sequence[str], columns: Sequence[str], fontsize: float = 9) -> None:
    for axis, texts in ((axes.yaxis, rows), (axes.xaxis, columns)):
        shown = range(0, len(texts), ceil(len(texts) / LABELS) or 1)
        axis.set_ticks(shown, [texts[i] for i in shown], parse_math=False, fontsize=fontsize)
    for label in axes.get_xticklabels():
        label.set(rotation=45, ha="right", rotation_mode="anchor")
    axes.tick_params(length=0)
