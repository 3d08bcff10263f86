"""Draw how the weight u of hybrid attention moves where three views of a scene are put together.

A synthetic picture of the paper's multi-view attention for questions on pictures (DNA, Section 6.1
and Figure 3, where u soon is 1). Assumed of the paper's boxes: three detectors see the same
objects; all of them find some objects many times and the others once; looks are noisy. A scene has
ten objects. Each view has one box of each and 30 more of two of them, whose features are the
object's look and noise; the second and third view add a binary property each. For a box of the
primary view both properties are asked, so its twins in the other views must be found.

boxes.png shows u over the steps, and the accuracy on new scenes with softmax (UNA), doubly
normalised (DNA) and hybrid attention (HNA); boxes.csv has u, boxes.json settings and accuracies.
Here u rises too, but to about 0.6 (0.7 with --copies 0), and hybrid attention does better than
either. So the paper's u of 1 is not repeated by these assumptions.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from fairseq_ext.analysis.streams import write_json
from fairseq_ext.attention.multi_view import MultiView
from fairseq_ext.attention.normalisers import Hybrid
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.layout import (
    as_text,
    make_column,
    make_mean_column,
    rows_as_csv,
    standard_error,
)
from fairseq_ext.evaluation.pictures import COLOURS, check_picture, save
from fairseq_ext.files import atomic_writer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXAMPLE = """\
  fairseq-ext boxes --out boxes
  fairseq-ext boxes --out boxes-even --copies 0 --seeds 1 2 3 4 5"""

OBJECTS, FREQUENT, LOOK = 10, 2, 6  # in a scene; found many times; features of a look
VIEWS = 3
BATCH, RATE = 32, 0.01
HELD_OUT, HELD_OUT_SEED = 1000, 2**20
NAMES = {"softmax": "UNA", "doubly": "DNA", "hybrid": "HNA"}


class Scenes(NamedTuple):
    """Views [B, N, C], the primary one first; its first boxes are of the objects in their order,
    frequent ones first. What is asked of these, [B, OBJECTS]: 2 * one property + the other."""

    views: list[Tensor]
    answers: Tensor


class Run(NamedTuple):
    """A training: u after each step (none but for HNA) and the accuracy on boxes of either kind."""

    name: str
    seed: int
    u: list[float]
    frequent: float
    rare: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[1, 2, 3], metavar="N", help="default: 1 2 3"
    )
    parser.add_argument("--steps", type=int, default=300, metavar="N", help="default: 300")
    parser.add_argument(
        "--copies", type=int, default=30, metavar="N",
        help="further boxes in each view, of two of the objects; default: 30",
    )  # fmt: skip
    parser.add_argument("--noise", type=float, default=0.5, help="its deviation; default: 0.5")


def run(given: argparse.Namespace) -> None:
    check_picture(given.out / "boxes.png")
    for flag, number, least in (("steps", given.steps, 1), ("copies", given.copies, 0)):
        if number < least:
            raise UsageError(f"--{flag} is {number}; give a whole number from {least} upwards")
    if not 0 <= given.noise < float("inf"):
        raise UsageError(f"--noise is {given.noise:g}; give a number from 0 upwards")
    seeds = list(dict.fromkeys(given.seeds))
    with tqdm(total=len(NAMES) * len(seeds) * given.steps, desc="training", unit=" steps") as bar:
        runs = [
            train(name, seed, given.steps, given.copies, given.noise, bar)
            for name in NAMES
            for seed in seeds
        ]
    print(summary(runs), end="")
    save(draw(runs), given.out / "boxes.png")
    write_u(runs, given.out / "boxes.csv")
    settings = {"steps": given.steps, "copies": given.copies, "noise": given.noise}
    accuracies = [each._asdict() | {"u": each.u[-1] if each.u else None} for each in runs]
    write_json(settings | {"runs": accuracies}, given.out / "boxes.json")


def scenes(count: int, copies: int, noise: float, generator: torch.Generator) -> Scenes:
    looks = torch.randn(count, OBJECTS, LOOK, generator=generator)
    properties = torch.randint(2, (count, OBJECTS, VIEWS - 1), generator=generator)
    views = []
    for view in range(VIEWS):
        more = torch.randint(FREQUENT, (count, copies), generator=generator)
        shown = torch.cat([torch.arange(OBJECTS).expand(count, -1), more], 1)
        look = looks.gather(1, shown.unsqueeze(-1).expand(-1, -1, LOOK))
        look = look + noise * torch.randn(look.shape, generator=generator)
        told = torch.zeros(*shown.shape, VIEWS - 1, 2)
        if view:
            told[:, :, view - 1] = F.one_hot(properties[..., view - 1].gather(1, shown), 2).float()
        views.append(torch.cat([look, told.flatten(2)], -1))
    return Scenes(views, 2 * properties[..., 0] + properties[..., 1])


class Reader(nn.Module):
    """Multi-view attention, then what a linear map reads from the first boxes."""

    def __init__(self, name: str) -> None:
        super().__init__()
        width = LOOK + 2 * (VIEWS - 1)
        self.attention = MultiView(width, name)
        self.output = nn.Linear(width, 2 ** (VIEWS - 1))

    def forward(self, views: Sequence[Tensor]) -> Tensor:
        """[B, OBJECTS, 4] from views [B, N, C]."""
        return self.output(self.attention(views)[:, :OBJECTS])


def train(name: str, seed: int, steps: int, copies: int, noise: float, bar: tqdm) -> Run:
    """One model, from the seed; all are tested on the same scenes."""
    torch.manual_seed(seed)
    model, u = Reader(name), []
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        views, answers = scenes(BATCH, copies, noise, generator)
        loss = F.cross_entropy(model(views).flatten(0, 1), answers.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if isinstance(model.attention.normaliser, Hybrid):
            u.append(model.attention.normaliser.u().item())
        bar.update()
    return Run(NAMES[name], seed, u, *accuracy(model, copies, noise))


@torch.no_grad()
def accuracy(model: nn.Module, copies: int, noise: float) -> tuple[float, float]:
    """On boxes of objects that are found many times, and on the others."""
    new = scenes(HELD_OUT, copies, noise, torch.Generator().manual_seed(HELD_OUT_SEED))
    right = (model(new.views).argmax(-1) == new.answers).float()
    return right[:, :FREQUENT].mean().item(), right[:, FREQUENT:].mean().item()


def by_name(runs: Sequence[Run]) -> dict[str, list[Run]]:
    return {name: [each for each in runs if each.name == name] for name in NAMES.values()}


def summary(runs: Sequence[Run]) -> str:
    """A table of accuracies in per cent, and where u ended."""
    groups = by_name(runs)
    columns = [make_column("attention", groups)]
    for kind in ("frequent", "rare"):
        values = [[100 * getattr(each, kind) for each in group] for group in groups.values()]
        columns.append(make_mean_column(f"{kind} objects", values, 1))
    ends = [each.u[-1] for each in groups["HNA"]]
    seeds = ", ".join(str(each.seed) for each in groups["HNA"])
    notes = [f"accuracy in %, mean ± standard error of the mean; seeds {seeds}"]
    return as_text(columns, [*notes, f"u of HNA: 0.50 at first, {mean(ends):.2f} at the end"])


def draw(runs: Sequence[Run]) -> "Figure":
    """On the left u over the steps, a thin line for each seed and their mean; on the right the
    accuracy of each kind of attention."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    groups = by_name(runs)
    paths = [[0.5, *each.u] for each in groups["HNA"]]
    for path in paths:
        left.plot(path, color=COLOURS[0], lw=0.8, alpha=0.4)
    left.plot([mean(each) for each in zip(*paths, strict=True)], color=COLOURS[0], lw=2)
    left.set(xlabel="steps", ylabel="u, the share of DNA in HNA", ylim=(0, 1))
    _bars(right, groups)
    for axes in (left, right):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _bars(axes, groups: Mapping[str, Sequence[Run]]) -> None:
    for shift, kind, colour in ((-0.2, "frequent", COLOURS[0]), (0.2, "rare", COLOURS[1])):
        values = [[getattr(each, kind) for each in group] for group in groups.values()]
        places = [place + shift for place in range(len(groups))]
        errors = [standard_error(each) or 0.0 for each in values]
        heights = [mean(each) for each in values]
        axes.bar(places, heights, 0.4, yerr=errors, color=colour, label=f"{kind} objects")
    axes.set_xticks(range(len(groups)), list(groups))
    axes.set(ylabel="accuracy on new scenes", ylim=(0, 1))
    axes.legend(frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1))


def write_u(runs: Sequence[Run], path: Path) -> None:
    """One line for each seed and step."""
    rows = [(each.seed, step, u) for each in runs for step, u in enumerate(each.u, 1)]
    with atomic_writer(path) as file:
        file.write(rows_as_csv(("seed", "step", "u"), rows))
