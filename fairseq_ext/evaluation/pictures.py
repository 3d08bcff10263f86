"""Figures of runs: colours, axes, bar charts, and the files of pictures and of their numbers."""

import io
import json
import logging
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.layout import records_as_csv, standard_error
from fairseq_ext.files import atomic_writer, check_writable, rename_when_complete

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

logging.getLogger("matplotlib").setLevel(logging.WARNING)  # fairseq sets everyone to DEBUG

# Okabe and Ito: distinguishable on white with every kind of colour vision.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]

DPI = 150

POWER = r"$\mathdefault"  # how matplotlib begins numbers on logarithmic axes


def assign_colours(names: Iterable[str]) -> dict[str, Any]:
    """Return a colour for each name: from `COLOURS`, or from a scale if there are more names."""
    distinct = list(dict.fromkeys(names))
    if len(distinct) <= len(COLOURS):
        return dict(zip(distinct, COLOURS, strict=False))
    from matplotlib import colormaps

    scale = colormaps["nipy_spectral"]
    return {name: scale(number / len(distinct)) for number, name in enumerate(distinct)}


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure of this size in inches, whose layout makes room for all texts."""
    from matplotlib.figure import Figure  # slow to import: only what draws waits for it

    return Figure(figsize=(width, height), layout="constrained")


def style_axes(axes: "Axes", grid: bool = True) -> None:
    """Hide the upper and right frame of a plot; with `grid`, draw a pale grid."""
    if grid:
        axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def use_whole_numbers(*axes: Any) -> None:
    """Put the ticks of each axis (`plot.xaxis`, `plot.yaxis`) at whole numbers only."""
    for axis in axes:
        axis.get_major_locator().set_params(integer=True)


def plot_line(axes: "Axes", updates: Sequence[float], values: Sequence[float], **style: Any) -> Any:
    """Plot values over updates and return the line; a single value is a point, which is seen."""
    point = {"marker": "o"} if len(updates) == 1 else {}
    (line,) = axes.plot(updates, values, **point | style)
    return line


def draw_means(values: Mapping[str, Sequence[float]], title: str, baseline: str) -> "Figure":
    """Draw a point for each variant: the mean of its repetitions, with the mean's standard error.

    Small points are the repetitions, a line marks the mean of the baseline. The axis need not
    begin at 0, so that small differences are visible; bars would mislead there.
    """
    from matplotlib.lines import Line2D

    means = {name: statistics.mean(each) for name, each in values.items()}
    figure = new_figure(1.6 + 0.9 * len(means), 4.2)
    axes = figure.add_subplot(ylabel=title, xlabel="variant")
    for place, (name, each) in enumerate(values.items()):
        colour = COLOURS[name != baseline]
        axes.scatter([place + 0.15] * len(each), each, s=9, color=colour, alpha=0.5)
        error = standard_error(each) or 0.0
        axes.errorbar(place, means[name], error, fmt="o", color=colour, capsize=4)
    line = axes.axhline(means[baseline], color=COLOURS[0], lw=1, ls="--")
    dots = [Line2D([], [], ls="", marker="o", ms=size, color="0.4") for size in (6, 3)]
    texts = "mean ± standard error", "a repetition", f"mean of {baseline}"
    figure.legend([*dots, line], texts, loc="outside lower center", fontsize=7)
    axes.set_xticks(range(len(means)), list(means))
    axes.set_xlim(-0.6, len(means) - 0.4)
    style_axes(axes)
    for label in axes.get_xticklabels():
        label.set(rotation=30, horizontalalignment="right")
    return figure


def check_picture(out: Path) -> None:
    """Raise UsageError unless a picture can be written to this path."""
    from matplotlib.backend_bases import FigureCanvasBase

    accepted = sorted(FigureCanvasBase.get_supported_filetypes())
    if out.suffix.removeprefix(".").lower() not in accepted:
        raise UsageError(f"{out} is no picture; end its name with one of .{', .'.join(accepted)}")
    check_writable(out.parent, 0)


def save(figure: "Figure", out: Path, numbers: Sequence[Mapping[str, Any]] = ()) -> None:
    """Write a figure, whose type the path's suffix decides, and maybe its numbers beside it.

    Raises:
        Unfinished: the file cannot be written.
    """
    with rename_when_complete(out) as part:
        part.write_bytes(render(figure, out.suffix.removeprefix(".").lower()))
    if numbers:
        save_numbers(numbers, out)


def announce(*paths: Path) -> None:
    """Print which files were written, as a command's last line; of a folder, what it has."""
    for path in paths:
        if path.is_dir():
            print(f"{path} has {', '.join(sorted(each.name for each in path.iterdir()))}")
        else:
            numbers = path.with_suffix(".csv")
            beside = f" and {numbers} are" if path != numbers and numbers.is_file() else " is"
            print(f"{path}{beside} ready")


def remove(files: Iterable[Path]) -> None:
    """Delete files that an earlier run wrote, where this one may have nothing to write."""
    for file in files:
        file.unlink(missing_ok=True)


def save_numbers(records: Sequence[Mapping[str, Any]], out: Path) -> None:
    """Write the numbers that a picture shows, as CSV beside it."""
    with atomic_writer(out.with_suffix(".csv")) as file:
        file.write(records_as_csv(records))


def write_rows(rows: Sequence[Mapping[str, Any]], stem: Path, **about: Any) -> None:
    """Write rows to STEM.csv, and to STEM.json together with facts about them."""
    save_numbers(rows, stem)
    write_json({**about, "rows": [dict(row) for row in rows]}, stem.with_suffix(".json"))


def write_json(value: Any, path: Path, indent: int | None = 1) -> None:
    """Write a value as JSON; numbers that are not finite become null, paths become strings."""
    with atomic_writer(path) as file:
        json.dump(_without_nan(value), file, indent=indent, ensure_ascii=False, default=str)
        file.write("\n")


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_nan(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def render(figure: "Figure", kind: str) -> bytes:
    """Return the contents of a picture file of this kind, such as "svg".

    Names of runs and tokens are shown as they are: matplotlib would read text between two $ as a
    formula. Only the powers that it writes itself on logarithmic axes are set as formulas, and axes
    have these texts only after a first pass over the figure.
    """
    from matplotlib import rc_context
    from matplotlib.text import Text

    file = io.BytesIO()
    with rc_context({"text.parse_math": False}):
        for text in figure.findobj(Text):
            text.set_parse_math(False)
        figure.draw_without_rendering()
        for text in figure.findobj(Text):
            text.set_parse_math(text.get_text().startswith(POWER))
        figure.savefig(file, format=kind, dpi=DPI, bbox_inches="tight")
    return file.getvalue()
