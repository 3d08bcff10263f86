"""Draw mode collapse: what steps of attention make of two clusters (DNA, Appendix E).

Each step moves every point to the mean of all points, weighted by attention among them (queries,
keys and values are the points themselves). The clusters are around (1.8, 0.7) and (-1, -1): 500
and 50 points in unbalanced.png (the paper's Figures 6 and 9), 225 each in balanced.png (Figure 8).
Their deviation is ours, since the paper's is lost. distances.png has, from Equations 13 and 14, how
far two clusters of one place each are apart after a step, over the ratio of their sizes (Figure 7);
there are none for --kernel dot.
Beside each picture are its numbers: .csv, and .json for the distances between the clusters' means.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fairseq_ext.analysis.streams import write_json
from fairseq_ext.attention.normalisers import Normaliser, build_normaliser
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.layout import rows_as_csv
from fairseq_ext.evaluation.pictures import COLOURS, check_picture, save
from fairseq_ext.files import atomic_writer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXAMPLE = """\
  fairseq-ext collapse --out collapse
  fairseq-ext collapse --out hybrid --normalisers softmax doubly hybrid --hna-init 0.9
  fairseq-ext collapse --out dot --kernel dot --deviation 0.1"""

CENTRES = (1.8, 0.7), (-1.0, -1.0)
SIZES = {"unbalanced": (500, 50), "balanced": (225, 225)}
STEPS = 4
SHOWN = (0, 1, 2, 4)
NAMES = {"softmax": "UNA", "doubly": "DNA", "hybrid": "HNA"}
DISTANCES = (1.0, 1.5, 2.0, 3.0)  # ours; the paper's are lost
RATIOS = np.geomspace(1, 100, 81)

KERNELS = {
    "gaussian": lambda x: -(x[:, None] - x).square().sum(-1) / 2,
    "dot": lambda x: x @ x.T,
}
"""points [n, D] -> scores [n, n]: exp(-|x - y|² / 2), the paper's, or exp(x·y) after exp."""

Trace = list[Tensor]
"""The points [n, 2] at each step, from 0."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--normalisers", nargs="+", choices=NAMES, default=["softmax", "doubly"], metavar="NAME",
        help=f"rows, of {', '.join(NAMES)}; default: softmax doubly",
    )  # fmt: skip
    parser.add_argument("--hna-init", type=float, metavar="U", help="u of hybrid; default: 0.5")
    parser.add_argument("--kernel", choices=KERNELS, default="gaussian", help="default: gaussian")
    parser.add_argument("--deviation", type=float, default=0.5, help="of a cluster; default: 0.5")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")


def run(given: argparse.Namespace) -> None:
    check_picture(given.out / "distances.png")
    if not 0 <= given.deviation < np.inf:
        raise UsageError(f"--deviation is {given.deviation:g}; give a number from 0 upwards")
    if given.hna_init is not None and "hybrid" not in given.normalisers:
        raise UsageError(
            f"--hna-init {given.hna_init:g} is of hybrid, which --normalisers has not; give both"
        )
    init = 0.5 if given.hna_init is None else given.hna_init
    built = {
        NAMES[name]: build_normaliser(name, 1, hna_init=init, hna_weight="raw")
        for name in given.normalisers
    }
    settings: dict = {"kernel": given.kernel, "deviation": given.deviation, "seed": given.seed}
    if "hybrid" in given.normalisers:
        settings["hna_init"] = init
    for name, sizes in SIZES.items():
        start = clusters(sizes, given.deviation, given.seed)
        traces = {row: trace(start, given.kernel, part) for row, part in built.items()}
        report(name, sizes, traces, settings, given.out)
    if given.kernel == "gaussian":
        save(draw_distances(), given.out / "distances.png")
        write_distances(given.out / "distances.csv")


def report(
    name: str, sizes: tuple[int, int], traces: Mapping[str, Trace], settings: dict, out: Path
) -> None:
    """The picture and the numbers of clusters of these sizes."""
    apart = {row: [distance(x, sizes[0]) for x in each] for row, each in traces.items()}
    for row, each in apart.items():
        print(f"{name}, {row}: distance {' '.join(f'{d:.3f}' for d in each)}")
    save(draw(traces, apart, sizes[0]), out / f"{name}.png")
    write_points(traces, sizes[0], out / f"{name}.csv")
    found = {"sizes": sizes, "centres": CENTRES, **settings, "distances": apart}
    write_json(found, out / f"{name}.json")


def clusters(sizes: Sequence[int], deviation: float, seed: int) -> Tensor:
    """[n, 2] float64, the points of the first cluster first."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.tensor(CENTRES, dtype=torch.float64).repeat_interleave(torch.tensor(sizes), 0)
    noise = torch.randn(centres.shape, dtype=torch.float64, generator=generator)
    return centres + deviation * noise


def trace(points: Tensor, kernel: str, normaliser: Normaliser, steps: int = STEPS) -> Trace:
    found = [points]
    with torch.no_grad():
        for _ in range(steps):
            scores = KERNELS[kernel](found[-1])[None, None]
            weights = normaliser.weights(scores, None, None, slice(None))
            found.append(weights[0, 0] @ found[-1])
    return found


def distance(points: Tensor, first: int) -> float:
    """Between the mean of the first so many points and that of the others."""
    return float((points[:first].mean(0) - points[first:].mean(0)).norm())


def una_distance(d: np.ndarray | float, ratio: np.ndarray | float) -> np.ndarray:
    """d' = d (1 - w²) / (1 + w² + w (ρ + 1/ρ)), w = exp(-d²/2), ρ = n₁/n₂  (Equation 13).

    How far two clusters, of one place each and a distance of d, are apart after a step.
    """
    w = np.exp(-np.square(d) / 2)
    return d * (1 - w**2) / (1 + w**2 + w * (ratio + 1 / ratio))


def dna_distance(d: np.ndarray | float, ratio: np.ndarray | float) -> np.ndarray:
    """The same with σ = ρ (1 + ρ w) / (ρ + w) in the place of ρ  (Equation 14)."""
    w = np.exp(-np.square(d) / 2)
    return una_distance(d, ratio * (1 + ratio * w) / (ratio + w))


EQUATIONS = {"UNA": una_distance, "DNA": dna_distance}


def draw(traces: Mapping[str, Trace], apart: Mapping[str, Sequence[float]], first: int) -> "Figure":
    """A row for each normaliser, a column for each step shown."""
    from matplotlib.figure import Figure

    size = 2.3 * len(SHOWN), 2.2 * len(traces) + 0.3
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(traces), len(SHOWN), sharex=True, sharey=True, squeeze=False)
    for row, (name, each) in zip(grid, traces.items(), strict=True):
        row[0].set_ylabel(name)
        for axes, step in zip(row, SHOWN, strict=True):
            for points, colour in zip(
                (each[step][:first], each[step][first:]), COLOURS, strict=False
            ):
                axes.scatter(*points.T.tolist(), s=7, color=colour, alpha=0.5, linewidths=0)
            axes.set_title(f"step {step}, distance {apart[name][step]:.2f}", fontsize="small")
            axes.set_aspect("equal")
            axes.grid(alpha=0.25)
    return figure


def draw_distances() -> "Figure":
    """A colour for each initial distance, a style for each normaliser."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4.2), layout="constrained")
    axes = figure.add_subplot(
        xlabel="n₁/n₂", ylabel="distance after a step", xscale="log", ylim=(0, max(DISTANCES))
    )
    for d, colour in zip(DISTANCES, COLOURS, strict=False):
        for (name, after), style in zip(EQUATIONS.items(), ("--", "-"), strict=True):
            label = f"{name}, from {d:g}"
            axes.plot(RATIOS, after(d, RATIOS), style, color=colour, label=label)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def write_points(traces: Mapping[str, Trace], first: int, path: Path) -> None:
    rows = [
        (name, step, 1 + (i >= first), *point)
        for name, each in traces.items()
        for step, points in enumerate(each)
        for i, point in enumerate(points.tolist())
    ]
    _write(path, ("normaliser", "step", "cluster", "x", "y"), rows)


def write_distances(path: Path) -> None:
    rows = [
        (d, float(ratio), *(float(after(d, ratio)) for after in EQUATIONS.values()))
        for d in DISTANCES
        for ratio in RATIOS
    ]
    _write(path, ("distance", "ratio", *EQUATIONS), rows)


def _write(path: Path, names: Sequence[str], rows: Sequence[tuple]) -> None:
    with atomic_writer(path) as file:
        file.write(rows_as_csv(names, rows))
