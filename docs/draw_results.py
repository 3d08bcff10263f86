"""Draw the pictures of docs/pictures/results/ from the records in docs/results/records/.

Each record whose claims have numbers gets a picture: a point for each run, the mean, the 95 %
interval of the difference to the baseline, and a line at the baseline. overview.png has all
differences to plain models by task, of the records with a field `overview`, its title there. A
picture's metadata hold a hash of what it shows.

Example:
  python docs/draw_results.py          # says which pictures are not of these records
  python docs/draw_results.py --write
"""

import argparse
import hashlib
import io
import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import records
from effects import choose_effect, label
from print_results import PICTURES
from records import ROOT, Record

DESCRIPTION = re.compile(rb"Description\0data (\w{16})")
DPI, COLOURS = 120, 16
LINE, POINT, MEAN = "#888888", "#7aa6c2", "#1b4f72"


class Bar(NamedTuple):
    """A row of a panel: a side with its runs, its mean, and the interval of its difference."""

    name: str
    runs: list[float]
    mean: float
    low: float
    high: float


class Panel(NamedTuple):
    """Sides by one measure, the best on top, and where the baseline is."""

    title: str
    line: float
    bars: list[Bar]


def list_panels(record: Record) -> list[Panel]:
    """Return what the claims of a record compare."""
    tests = [test for claim in record.get("claims", ()) for test in claim.get("tests", ())]
    keys = dict.fromkeys((x.get("group", ""), x["baseline"], x["measure"]) for x in tests)
    panels: dict[tuple[str, str], Panel] = {}
    for group, baseline, measure in keys:  # the first baseline of several
        panels.setdefault((group, measure), make_panel(record, group, baseline, measure))
    return [panel for panel in panels.values() if panel.bars]


def make_panel(record: Record, group: str, baseline: str, measure: str) -> Panel:
    """Return the sides of a group by a measure."""
    means = {s: cell for (g, s), cell in records.summarise(record, measure).items() if g == group}
    effects = records.compare(record)
    found = {k[1]: e for k, e in effects.items() if (k[0], *k[2:]) == (group, baseline, measure)}
    chosen = {side: choose_effect(each) for side, each in found.items()}
    line = means[baseline][1] if baseline in means else 1.0  # of ratios
    bars = []
    for side in dict.fromkeys([*means, *chosen]):
        rows = records.tabulate(record).get((group, side), ())
        runs = [row[measure] for row in rows if row[measure] != "" and math.isfinite(row[measure])]
        _, mean, error = means.get(side) or (0, chosen[side].difference, math.nan)
        low = high = mean
        if side in chosen and chosen[side].interval:
            low, high = (line + end - chosen[side].null for end in chosen[side].interval)
        elif not runs and math.isfinite(error):
            low, high = mean - error, mean + error
        if math.isfinite(mean):
            bars.append(Bar(label(record, side), runs, mean, low, high))
    about = record["measures"][measure]
    bars.sort(key=lambda bar: bar.mean, reverse=about["better"] == "lower")
    title = f"{label(record, group)} {about['title']}".strip()
    title += f", {about['unit']}" if about.get("unit", title) not in title else ""
    if means and not record.get("runs") and not any(each.interval for each in chosen.values()):
        title += f", mean ± {record.get('spread', 'standard error')}"
    return Panel(title, line, bars)


def list_overview(all_records: list[Record]) -> list[Panel]:
    """Return a panel for each task, of differences to the plain model; more is better."""
    panels = []
    for record in filter(lambda record: "overview" in record, all_records):
        measure = next(iter(record["measures"]))
        sign = -1 if record["measures"][measure]["better"] == "lower" else 1
        test = next(test for claim in record["claims"] for test in claim.get("tests", ()))
        bars = []
        for (group, side, baseline, name), effects in records.compare(record).items():
            if (baseline, name) == (test["baseline"], measure):
                effect = choose_effect(effects)
                ends = effect.interval or (effect.difference, effect.difference)
                low, high = sorted(sign * end for end in ends)
                title = " ".join(filter(None, [label(record, side), label(record, group)]))
                bars.append(Bar(title, [], sign * effect.difference, low, high))
        panels.append(Panel(record["overview"], 0.0, sorted(bars, key=lambda bar: bar.mean)))
    return panels


def draw_panel(axes: Any, panel: Panel) -> None:
    """Draw one panel."""
    axes.axvline(panel.line, color=LINE, linewidth=1)
    rows = range(len(panel.bars))
    runs = [(value, row) for row, bar in zip(rows, panel.bars, strict=True) for value in bar.runs]
    _, _, means, lows, highs = zip(*panel.bars, strict=True)
    axes.hlines(rows, lows, highs, color=MEAN, linewidth=1.2)
    axes.plot(*zip(*runs, strict=True) if runs else ([], []), "o", color=POINT, markersize=3.5)
    axes.plot(means, rows, "D", color=MEAN, markersize=4)
    axes.set_yticks(rows, [bar.name for bar in panel.bars])
    axes.set_ylim(-0.7, len(panel.bars) - 0.3)
    axes.set_xlabel(panel.title)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", alpha=0.25)
    axes.locator_params(axis="x", nbins=5)


def draw_record(figure: Any, panels: list[Panel]) -> None:
    """Draw the panels of a record below each other."""
    heights = [len(panel.bars) + 1.5 for panel in panels]
    figure.set_size_inches(5.6, 0.22 * sum(heights) + 0.4)
    grid = figure.subplots(len(panels), squeeze=False, height_ratios=heights)
    for axes, panel in zip(grid[:, 0], panels, strict=True):
        draw_panel(axes, panel)


def draw_overview(figure: Any, panels: list[Panel]) -> None:
    """Draw the largest panel on the left and the others on the right."""
    first, *others = sorted(panels, key=lambda panel: -len(panel.bars))
    figure.set_size_inches(8.6, 0.19 * sum(len(panel.bars) + 3 for panel in others))
    left, right = figure.subfigures(1, 2)
    draw_panel(left.subplots(), first)
    heights = [len(panel.bars) + 1.5 for panel in others]
    grid = right.subplots(len(others), squeeze=False, height_ratios=heights)
    for axes, panel in zip(grid[:, 0], others, strict=True):
        draw_panel(axes, panel)


Draw = Callable[[Any, list[Panel]], None]


def list_pictures() -> Iterator[tuple[Path, list[Panel], Draw]]:
    """Yield each picture, what it shows, and how it is drawn."""
    all_records = records.read_records()
    for record in all_records:
        if panels := list_panels(record):
            yield PICTURES / f"{record['name']}.png", panels, draw_record
    yield PICTURES / "overview.png", list_overview(all_records), draw_overview


def hash_panels(panels: list[Panel]) -> str:
    """Return a hash of what a picture shows."""
    return hash_value([[p.title, f"{p.line:.6g}", [_round(bar) for bar in p.bars]] for p in panels])


def hash_value(value: Any) -> str:
    """Return a hash of a value that JSON can hold."""
    return hashlib.sha256(json.dumps(value, ensure_ascii=False).encode()).hexdigest()[:16]


def _round(bar: Bar) -> list[Any]:
    name, runs, *ends = bar
    return [name, [f"{value:.6g}" for value in [*runs, *ends]]]


def is_current(path: Path, panels: list[Panel]) -> bool:
    """Return whether a picture is there and shows this."""
    return has_digest(path, hash_panels(panels))


def has_digest(path: Path, digest: str) -> bool:
    """Return whether a picture is there and was drawn of what has this hash."""
    found = DESCRIPTION.search(path.read_bytes()) if path.is_file() else None
    return bool(found) and found[1].decode() == digest


def save(path: Path, panels: list[Panel], draw: Draw) -> None:
    """Draw a picture of panels into its file."""
    save_picture(path, hash_panels(panels), lambda figure: draw(figure, panels))


def save_picture(
    path: Path, digest: str, draw: Callable[[Any], None], colours: int = COLOURS
) -> None:
    """Draw a picture into its file, with the hash of what it shows."""
    import matplotlib
    from matplotlib.figure import Figure
    from PIL import Image, PngImagePlugin

    with matplotlib.rc_context({"font.size": 8}):
        figure = Figure(layout="constrained", facecolor="white", dpi=DPI)
        draw(figure)
        figure.savefig(buffer := io.BytesIO())
    about = PngImagePlugin.PngInfo()
    about.add_text("Description", f"data {digest}")
    path.parent.mkdir(exist_ok=True)
    Image.open(buffer).convert("RGB").quantize(colours).save(path, optimize=True, pnginfo=about)


def main() -> int:
    """Say which pictures are old, or draw them, and remove those of no record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="draw them")
    write = parser.parse_args().write
    listed = [*list_pictures()]
    old = [each for each in listed if not is_current(*each[:2])]
    left = {*PICTURES.glob("*.png")} - {path for path, _, _ in listed}
    for path in [*(path for path, _, _ in old), *left]:
        print(path.relative_to(ROOT))
    if write:
        for each in old:
            save(*each)
        for path in left:
            path.unlink()
    return int(bool(old or left) and not write)


if __name__ == "__main__":
    sys.exit(main())
