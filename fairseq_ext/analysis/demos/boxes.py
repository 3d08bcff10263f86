"""Plot how the weight u of hybrid attention moves while three views of a scene are combined.

This is a synthetic version of the paper's multi-view attention for questions on pictures (DNA,
Section 6.1 and Figure 3, where u soon is 1). It assumes of the paper's boxes that three detectors
see the same objects, that all of them find some objects many times and the others once, and that
looks are noisy. A scene has ten objects. Each view has one box of each object and 30 more boxes of
two of them, whose features are the object's look and noise; the second and the third view each add
a binary property. For each box of the primary view both properties are asked, so its twins in the
other views must be found.

boxes.png shows u over the steps, and the accuracy on new scenes with softmax (UNA), doubly
normalised (DNA) and hybrid attention (HNA); boxes.csv has u, boxes.json settings and accuracies.
Here u rises too, but to about 0.6 (0.7 with --copies 0), and hybrid attention does better than
either. So these assumptions do not reproduce the paper's u of 1.

Example:
  fairseq-ext boxes --out boxes
  fairseq-ext boxes --out boxes-even --copies 0 --seeds 1 2 3 4 5
"""

import argparse
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import NamedTuple

import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn
from tqdm import tqdm

from fairseq_ext.analysis import arguments
from fairseq_ext.attention.multi_view import MultiView
from fairseq_ext.attention.normalisers import Hybrid
from fairseq_ext.evaluation import pictures
from fairseq_ext.evaluation.layout import as_text, make_column, make_mean_column, standard_error

OBJECTS = 10  # in a scene
FREQUENT = 2  # objects that detectors find many times
LOOK = 6  # features of an object's look
VIEWS = 3
BATCH, RATE = 32, 0.01
HELD_OUT, HELD_OUT_SEED = 1000, 2**20
NAMES = {"softmax": "UNA", "doubly": "DNA", "hybrid": "HNA"}


class Scenes(NamedTuple):
    """A batch of scenes.

    Attributes:
        views: boxes [B, N, C] of each view, the primary one first. The first boxes show the objects
            in their order, frequent ones first.
        answers: [B, OBJECTS] int64, 2 * one property + the other.
    """

    views: list[Tensor]
    answers: Tensor


class Run(NamedTuple):
    """A training of one kind of attention.

    Attributes:
        u: its value after each step; empty except for HNA.
        frequent: accuracy on boxes of frequent objects.
        rare: accuracy on the other boxes.
    """

    name: str
    seed: int
    u: list[float]
    frequent: float
    rare: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `fairseq-ext boxes`."""
    arguments.add(parser, "--out")
    add = parser.add_argument
    add(
        "--seeds",
        type=arguments.number,
        nargs="+",
        default=[1, 2, 3],
        metavar="N",
        help="default: 1 2 3",
    )
    add("--steps", type=arguments.number, default=300, metavar="N", help="default: 300")
    copies = "further boxes in each view, of two of the objects; default: 30"
    add("--copies", type=arguments.number, default=30, metavar="N", help=copies)
    add("--noise", type=float, default=0.5, help="its deviation; default: 0.5")


def run(args: argparse.Namespace) -> None:
    """Train all models, print their accuracy, and write the picture and the numbers."""
    pictures.check_picture(args.out / "boxes.png")
    arguments.check_at_least(args, steps=1, copies=0)
    arguments.check_deviation(args, "noise")
    seeds = list(dict.fromkeys(args.seeds))
    with tqdm(total=len(NAMES) * len(seeds) * args.steps, desc="training", unit=" steps") as bar:
        each = args.steps, args.copies, args.noise, bar
        runs = [train(name, seed, *each) for name in NAMES for seed in seeds]
    print(format_table(runs), end="")
    steps = [{"seed": r.seed, "step": n, "u": u} for r in runs for n, u in enumerate(r.u, 1)]
    pictures.save(draw(runs), args.out / "boxes.png", steps)
    settings = {"steps": args.steps, "copies": args.copies, "noise": args.noise}
    accuracies = [each._asdict() | {"u": each.u[-1] if each.u else None} for each in runs]
    pictures.write_json(settings | {"runs": accuracies}, args.out / "boxes.json")
    pictures.announce(args.out)


def sample_scenes(count: int, copies: int, noise: float, generator: torch.Generator) -> Scenes:
    """Return `count` scenes, with `copies` further boxes of frequent objects in each view."""
    looks = torch.randn(count, OBJECTS, LOOK, generator=generator)
    properties = torch.randint(2, (count, OBJECTS, VIEWS - 1), generator=generator)
    views = []
    for view in range(VIEWS):
        more = torch.randint(FREQUENT, (count, copies), generator=generator)
        shown = torch.cat([torch.arange(OBJECTS).expand(count, -1), more], 1)
        look = looks.gather(1, shown.unsqueeze(-1).expand(-1, -1, LOOK))
        look = look + noise * torch.randn(look.shape, generator=generator)
        bits = torch.zeros(*shown.shape, VIEWS - 1, 2)  # [B, N, property, its one-hot value]
        if view:
            bits[:, :, view - 1] = F.one_hot(properties[..., view - 1].gather(1, shown), 2).float()
        views.append(torch.cat([look, bits.flatten(2)], -1))
    return Scenes(views, 2 * properties[..., 0] + properties[..., 1])


class Reader(nn.Module):
    """Multi-view attention and a linear classifier of the primary view's first boxes."""

    def __init__(self, name: str) -> None:
        super().__init__()
        width = LOOK + 2 * (VIEWS - 1)
        self.attention = MultiView(width, name)
        self.output = nn.Linear(width, 2 ** (VIEWS - 1))

    def forward(self, views: Sequence[Tensor]) -> Tensor:
        """Return scores of answers [B, OBJECTS, 4] for views [B, N, C]."""
        return self.output(self.attention(views)[:, :OBJECTS])


def train(name: str, seed: int, steps: int, copies: int, noise: float, bar: tqdm) -> Run:
    """Train one model from a seed; all models are tested on the same scenes."""
    torch.manual_seed(seed)
    model, u = Reader(name), []
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        views, answers = sample_scenes(BATCH, copies, noise, generator)
        loss = F.cross_entropy(model(views).flatten(0, 1), answers.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if isinstance(model.attention.normaliser, Hybrid):
            u.append(model.attention.normaliser.u().item())
        bar.update()
    return Run(NAMES[name], seed, u, *measure_accuracy(model, copies, noise))


@torch.no_grad()
def measure_accuracy(model: nn.Module, copies: int, noise: float) -> tuple[float, float]:
    """Return the accuracy on boxes of frequent objects, and on the others, in new scenes."""
    new = sample_scenes(HELD_OUT, copies, noise, torch.Generator().manual_seed(HELD_OUT_SEED))
    right = (model(new.views).argmax(-1) == new.answers).float()
    return right[:, :FREQUENT].mean().item(), right[:, FREQUENT:].mean().item()


def group_by_name(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the runs of each kind of attention."""
    return {name: [each for each in runs if each.name == name] for name in NAMES.values()}


def format_table(runs: Sequence[Run]) -> str:
    """Return a text table of accuracies in per cent, with the last value of u."""
    groups = group_by_name(runs)
    columns = [make_column("attention", groups)]
    for kind in ("frequent", "rare"):
        values = [[100 * getattr(each, kind) for each in group] for group in groups.values()]
        columns.append(make_mean_column(f"{kind} objects", values, 1))
    ends = [each.u[-1] for each in groups["HNA"]]
    seeds = ", ".join(str(each.seed) for each in groups["HNA"])
    notes = [f"accuracy in %, mean ± standard error of the mean; seeds {seeds}"]
    return as_text(columns, [*notes, f"u of HNA: 0.50 at first, {mean(ends):.2f} at the end"])


def draw(runs: Sequence[Run]) -> Figure:
    """Draw u over the steps on the left, and the accuracy of each kind of attention on the right.

    u has a thin line for each seed and a thick one for their mean.
    """
    figure = pictures.new_figure(9, 3.6)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    groups = group_by_name(runs)
    paths = [[0.5, *each.u] for each in groups["HNA"]]
    for path in paths:
        left.plot(path, color=pictures.COLOURS[0], lw=0.8, alpha=0.4)
    left.plot([mean(each) for each in zip(*paths, strict=True)], color=pictures.COLOURS[0], lw=2)
    left.set(xlabel="steps", ylabel="u, the share of DNA in HNA", ylim=(0, 1))
    _draw_accuracies(right, groups)
    for axes in (left, right):
        pictures.style_axes(axes)
    return figure


def _draw_accuracies(axes: Axes, groups: Mapping[str, Sequence[Run]]) -> None:
    kinds = zip((-0.2, 0.2), ("frequent", "rare"), pictures.COLOURS, strict=False)
    for shift, kind, colour in kinds:
        values = [[getattr(each, kind) for each in group] for group in groups.values()]
        places = [place + shift for place in range(len(groups))]
        errors = [standard_error(each) or 0.0 for each in values]
        heights = [mean(each) for each in values]
        axes.bar(places, heights, 0.4, yerr=errors, color=colour, label=f"{kind} objects")
    axes.set_xticks(range(len(groups)), list(groups))
    axes.set(xlabel="attention", ylabel="accuracy on new scenes", ylim=(0, 1))
    axes.legend(frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1))
