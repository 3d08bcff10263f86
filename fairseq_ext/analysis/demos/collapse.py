"""Plot mode collapse: two clusters of points under steps of attention (DNA, Appendix E).

Each step moves every point to the mean of all points, weighted by attention among them (queries,
keys and values are the points themselves). The clusters are around (1.8, 0.7) and (-1, -1): 500
and 50 points in unbalanced.png (the paper's Figures 6 and 9), 225 each in balanced.png (Figure 8).
Their deviation is ours, since the paper's is lost. distances.png shows, from Equations 13 and 14,
how far apart two clusters are after a step if each has all its points at one place, over the ratio
of their sizes (Figure 7); there is none for --kernel dot. Beside each picture are its numbers:
.csv, and .json for the distances between the clusters' means.

Example:
  fairseq-ext collapse --out collapse
  fairseq-ext collapse --out hybrid --normalisers softmax doubly hybrid --hna-init 0.9
  fairseq-ext collapse --out dot --kernel dot --deviation 0.1
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from fairseq_ext.analysis import arguments
from fairseq_ext.attention.normalisers import Normaliser, build_normaliser
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation import pictures

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
"""Scores [n, n] of points [n, D]; exponentiated they are exp(-|x - y|² / 2), the paper's kernel, or
exp(x·y)."""

Trace = list[Tensor]
"""The points [n, 2] at each step, from 0."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `fairseq-ext collapse`."""
    arguments.add(parser, "--out")
    add, default = parser.add_argument, ["softmax", "doubly"]
    rows = f"rows, of {', '.join(NAMES)}; default: {' '.join(default)}"
    add("--normalisers", nargs="+", choices=NAMES, default=default, metavar="NAME", help=rows)
    add("--hna-init", type=float, metavar="U", help="u of hybrid; default: 0.5")
    add("--kernel", choices=KERNELS, default="gaussian", help="default: gaussian")
    add("--deviation", type=float, default=0.5, help="of a cluster; default: 0.5")
    add("--seed", type=arguments.number, default=0, help="default: 0")


def run(args: argparse.Namespace) -> None:
    """Write the pictures and their numbers, and print the distances between clusters."""
    pictures.check_picture(args.out / "distances.png")
    arguments.check_deviation(args, "deviation")
    if args.hna_init is not None and "hybrid" not in args.normalisers:
        raise UsageError(
            f"--hna-init {args.hna_init:g} is of hybrid, which --normalisers has not; give both"
        )
    init = 0.5 if args.hna_init is None else args.hna_init
    normalisers = {
        NAMES[name]: build_normaliser(name, 1, hna_init=init, hna_weight="raw")
        for name in args.normalisers
    }
    settings: dict = {"kernel": args.kernel, "deviation": args.deviation, "seed": args.seed}
    if "hybrid" in args.normalisers:
        settings["hna_init"] = init
    for name, sizes in SIZES.items():
        start = sample_clusters(sizes, args.deviation, args.seed)
        traces = {row: trace(start, args.kernel, each) for row, each in normalisers.items()}
        write_traces(args.out / name, sizes, traces, settings)
    pictures.remove(args.out / f"distances.{end}" for end in ("csv", "png"))
    if args.kernel == "gaussian":
        pictures.save(draw_distances(), args.out / "distances.png", list_distances())
    pictures.announce(args.out)


def write_traces(
    stem: Path, sizes: tuple[int, int], traces: Mapping[str, Trace], settings: dict
) -> None:
    """Write the picture and the numbers of clusters of these sizes, and print their distances."""
    distances = {row: [distance(x, sizes[0]) for x in steps] for row, steps in traces.items()}
    for row, steps in distances.items():
        print(f"{stem.name}, {row}: distance {' '.join(f'{d:.3f}' for d in steps)}")
    points = list_points(traces, sizes[0])
    pictures.save(draw(traces, distances, sizes[0]), stem.with_suffix(".png"), points)
    numbers = {"sizes": sizes, "centres": CENTRES, **settings, "distances": distances}
    pictures.write_json(numbers, stem.with_suffix(".json"))


def sample_clusters(sizes: Sequence[int], deviation: float, seed: int) -> Tensor:
    """Return points [n, 2] float64, with the points of the first cluster first."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.tensor(CENTRES, dtype=torch.float64).repeat_interleave(torch.tensor(sizes), 0)
    noise = torch.randn(centres.shape, dtype=torch.float64, generator=generator)
    return centres + deviation * noise


def trace(points: Tensor, kernel: str, normaliser: Normaliser, steps: int = STEPS) -> Trace:
    """Move points [n, 2] by steps of attention."""
    trace = [points]
    with torch.no_grad():
        for _ in range(steps):
            scores = KERNELS[kernel](trace[-1])[None, None]
            weights = normaliser.weights(scores, None, None, slice(None))
            trace.append(weights[0, 0] @ trace[-1])
    return trace


def distance(points: Tensor, first: int) -> float:
    """Return the distance from the mean of the `first` points to the mean of the others."""
    return float((points[:first].mean(0) - points[first:].mean(0)).norm())


def una_distance(d: np.ndarray | float, ratio: np.ndarray | float) -> np.ndarray:
    """Return the distance of two clusters after a step of softmax attention (Equation 13).

    d' = d (1 - w²) / (1 + w² + w (ρ + 1/ρ)), w = exp(-d²/2), ρ = n₁/n₂. Each cluster has all its
    points at one place; the two places are d apart.
    """
    w = np.exp(-np.square(d) / 2)
    return d * (1 - w**2) / (1 + w**2 + w * (ratio + 1 / ratio))


def dna_distance(d: np.ndarray | float, ratio: np.ndarray | float) -> np.ndarray:
    """Return the distance of two clusters after a step of doubly-normalised attention.

    It is Equation 13 with σ = ρ (1 + ρ w) / (ρ + w) in the place of ρ (Equation 14).
    """
    w = np.exp(-np.square(d) / 2)
    return una_distance(d, ratio * (1 + ratio * w) / (ratio + w))


EQUATIONS = {"UNA": una_distance, "DNA": dna_distance}


def draw(
    traces: Mapping[str, Trace], distances: Mapping[str, Sequence[float]], first: int
) -> Figure:
    """Draw a row for each normaliser and a column for each step that is shown."""
    figure = pictures.new_figure(2.3 * len(SHOWN), 2.2 * len(traces) + 0.3)
    grid = figure.subplots(len(traces), len(SHOWN), sharex=True, sharey=True, squeeze=False)
    for row, (name, steps) in zip(grid, traces.items(), strict=True):
        row[0].set_ylabel(name)
        for axes, step in zip(row, SHOWN, strict=True):
            clusters = steps[step][:first], steps[step][first:]
            for points, colour in zip(clusters, pictures.COLOURS, strict=False):
                axes.scatter(*points.T.tolist(), s=7, color=colour, alpha=0.5, linewidths=0)
            axes.set_title(f"step {step}, distance {distances[name][step]:.2f}", fontsize="small")
            axes.set_aspect("equal")
            axes.grid(alpha=0.25)
    return figure


def draw_distances() -> Figure:
    """Draw a colour for each initial distance and a style for each normaliser."""
    figure = pictures.new_figure(6, 4.2)
    axes = figure.add_subplot(xscale="log", ylim=(0, max(DISTANCES)))
    axes.set(xlabel="n₁/n₂", ylabel="distance after a step")
    for d, colour in zip(DISTANCES, pictures.COLOURS, strict=False):
        for (name, after), style in zip(EQUATIONS.items(), ("--", "-"), strict=True):
            axes.plot(RATIOS, after(d, RATIOS), style, color=colour, label=f"{name}, from {d:g}")
    axes.xaxis.set_major_formatter("{x:g}")
    pictures.style_axes(axes)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def list_points(traces: Mapping[str, Trace], first: int) -> list[dict[str, Any]]:
    """Return a record for each point at each step."""
    return [
        {"normaliser": name, "step": step, "cluster": 1 + (i >= first), "x": x, "y": y}
        for name, steps in traces.items()
        for step, points in enumerate(steps)
        for i, (x, y) in enumerate(points.tolist())
    ]


def list_distances() -> list[dict[str, float]]:
    """Return the distances after a step, for each initial distance and ratio of sizes."""
    return [
        {"distance": d, "ratio": float(ratio)}
        | {name: float(after(d, ratio)) for name, after in EQUATIONS.items()}
        for d in DISTANCES
        for ratio in RATIOS
    ]
