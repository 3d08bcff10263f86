"""Plot the trained weights of heads over updates and by layer: hybrid u and static gates.

For a run, the picture shows what its log has over the updates (Ding et al. 2020, Figure 3: the mean
u of each layer; a gate for each head), and by layer the weight of each head in its last checkpoint
(Figures 4 and 5). For a checkpoint it shows the weights by layer. Several checkpoints of one run
are joined over their updates, and the last of them is drawn by layer. Repetitions of a variant
(VARIANT/seed-N) are averaged over training.

Example:
  fairseq-ext weights checkpoints/study/hna/seed-* --out weights
  fairseq-ext weights checkpoints/checkpoint{1,2,3}.pt --data data-bin/mine --out weights
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fairseq_ext.analysis import arguments
from fairseq_ext.analysis.checkpoint_kinds import Inspector, open_inspector
from fairseq_ext.analysis.loading import short_name
from fairseq_ext.analysis.recording import SITES
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation import pictures
from fairseq_ext.evaluation.runs import CHECKPOINT, TRAINING_KINDS, read_facts
from fairseq_ext.files import check_writable
from fairseq_ext.training_logs import LOG, name_variants, read_log

TITLES = {"u": "share u of doubly-normalised attention", "gate": "gate of a head"}
SHOWN = 16  # layers with a number each
STYLES = ("-", "--", ":", "-.")  # of the lines of each site


class Weight(NamedTuple):
    """A trained weight of a head.

    Attributes:
        model: the variant or title under which it is drawn.
        run: the run's folder or the checkpoint that has it.
        kind: "u" or "gate".
        head: None for the mean of the layer.
        update: None for the weights by layer.
    """

    model: str
    run: str
    kind: str
    site: str
    layer: int
    head: int | None
    update: int | None
    value: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `fairseq-ext weights`."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="or a checkpoint")
    arguments.add(parser, "--data", "--out")


def run(args: argparse.Namespace) -> None:
    """Write the weights and their pictures."""
    check_writable(args.out, 0)
    folders = [path for path in args.runs if path.is_dir()]
    names = dict(zip(folders, name_variants(folders), strict=True))
    weights = []
    for path in folders:
        if (path / LOG).is_file():
            weights += read_logged(path, names[path])
        if (path / CHECKPOINT).is_file() or not (path / LOG).is_file():
            weights += read_checkpoint(open_inspector(path / CHECKPOINT, args.data), names[path])
    files = [path for path in args.runs if path not in names]
    parents = list(dict.fromkeys(path.parent for path in files))
    short = [short_name(folder / CHECKPOINT) for folder in parents]
    for folder, name in zip(parents, short, strict=True):
        of_folder = [path for path in files if path.parent == folder]
        weights += join_checkpoints(of_folder, args.data, distinct=short.count(name) == 1)
    write(weights, args.out)
    pictures.announce(args.out)


def write(weights: Sequence[Weight], out: Path) -> None:
    """Write weights.csv, weights.json and a picture of each kind.

    Raises:
        UsageError: there are no weights.
    """
    remove(out)
    if not weights:
        raise UsageError(
            "no model has hybrid weights or static gates; give one of transformer_hna, "
            "roberta_hna, vqa_multi_view_hna or with --head-gate static"
        )
    pictures.write_rows([weight._asdict() for weight in weights], out / "weights")
    for kind, own in group_by_kind(weights).items():
        pictures.save(draw(own, TITLES[kind]), out / f"weights_{kind}.png")


def remove(out: Path) -> None:
    """Delete what an earlier run wrote."""
    numbers = ("weights.csv", "weights.json")
    pictures.remove(out / name for name in (*numbers, *(f"weights_{kind}.png" for kind in TITLES)))


def group_by_kind(weights: Sequence[Weight]) -> dict[str, list[Weight]]:
    """Return the weights of each kind."""
    kinds = dict.fromkeys(weight.kind for weight in weights)
    return {kind: [weight for weight in weights if weight.kind == kind] for kind in kinds}


def read_logged(run: Path, name: str) -> list[Weight]:
    """Return the weights in a log: within epochs, or of whole epochs if there are no others."""
    logged = re.compile(rf"({'|'.join(SITES)})(\d+)_(u|gate)(\d*)")
    weights: dict[str, list[Weight]] = {kind: [] for kind in TRAINING_KINDS}
    for record in read_log(run):
        for key, value in record.values.items():
            if record.kind in weights and (match := logged.fullmatch(key)):
                site, layer, kind, head = match.groups()
                place = name, str(run), kind, site, int(layer), int(head) if head else None
                weights[record.kind].append(Weight(*place, record.update, value))
    return next(filter(None, weights.values()), [])


def join_checkpoints(
    files: Sequence[Path], data: Path | None, distinct: bool = True
) -> list[Weight]:
    """Return the weights of checkpoints of one run.

    A single one has them by layer. Several have them over their updates, and the last one also by
    layer. They are named by their folder, with its whole path where the end of it is not distinct.
    """
    if len(files) == 1:
        inspector = open_inspector(files[0], data)
        title = inspector.title if distinct else f"{inspector.name}, {files[0]}"
        return read_checkpoint(inspector, title)
    updates = {file: read_facts(file).updates for file in files}
    weights, last = [], max(files, key=updates.__getitem__)
    for file in sorted(files, key=updates.__getitem__):
        inspector = open_inspector(file, data)
        folder = short_name(file).rpartition("/")[0] if distinct else file.parent
        name = f"{inspector.name}, {folder}"
        own = read_checkpoint(inspector, name)
        weights += [weight._replace(update=updates[file]) for weight in own]
        weights += own if file == last else []
    return weights


def read_checkpoint(inspector: Inspector, name: str) -> list[Weight]:
    """Return the weights of a model, one for each head that has one."""
    run = str(inspector.checkpoint)
    return [
        Weight(name, run, kind, site, layer, head, None, value)
        for kind, site, layer, head, value in inspector.head_weights()
    ]


def draw(weights: Sequence[Weight], title: str) -> Figure:
    """Draw a row of panels for each model: over the updates, and by layer.

    Over the updates there is a line for each layer, or for each head of it; by layer a point for
    each head and a line through the means. A panel without any weights is left out.
    """
    models = list(dict.fromkeys(weight.model for weight in weights))
    panels = []
    if any(weight.update is not None for weight in weights):
        panels.append(_draw_over_updates)
    if any(weight.update is None for weight in weights):
        panels.append(_draw_by_layer)
    figure = pictures.new_figure(0.5 + 4.5 * len(panels), 0.6 + 2.9 * len(models))
    grid = figure.subplots(len(models), len(panels), squeeze=False, sharey=True)
    for line, model in zip(grid, models, strict=True):
        for axes, panel in zip(line, panels, strict=True):
            panel(axes, [weight for weight in weights if weight.model == model])
            pictures.style_axes(axes)
        line[0].set(ylabel=title, title=model)
    return figure


def _draw_over_updates(axes: Axes, weights: Sequence[Weight]) -> None:
    last, sites = max(weight.layer for weight in weights), _list_sites(weights)
    for layer in range(last + 1):
        colour = colormaps["viridis"](layer / max(last, 1))
        axes.plot([], [], color=colour, label=f"layer {layer}")
        for site, style in zip(sites, STYLES, strict=False):
            own = [weight for weight in weights if (weight.layer, weight.site) == (layer, site)]
            for path in _average_paths(own):
                pictures.plot_line(axes, [*path], [*path.values()], ls=style, color=colour)
    if len(sites) > 1:
        for site, style in zip(sites, STYLES, strict=False):
            axes.plot([], [], style, color="0.2", label=SITES[site])
    axes.set_xlabel("updates")
    axes.legend(frameon=False, fontsize=7, ncols=2)


def _draw_by_layer(axes: Axes, weights: Sequence[Weight]) -> None:
    heads = [weight for weight in weights if weight.update is None]
    layers, sites = sorted({weight.layer for weight in heads}), _list_sites(heads)
    for site, colour in pictures.assign_colours(sites).items():
        own = [weight for weight in heads if weight.site == site]
        reached = sorted({weight.layer for weight in own})
        means = [mean(w.value for w in own if w.layer == layer) for layer in reached]
        axes.scatter([w.layer for w in own], [w.value for w in own], s=14, alpha=0.5, color=colour)
        axes.plot(reached, means, color=colour, label=SITES[site])
    if len(sites) > 1:
        axes.legend(frameon=False, fontsize=7)
    axes.set(xlabel="layer, a point for each head", xlim=(layers[0] - 0.5, layers[-1] + 0.5))
    if len(layers) > SHOWN:
        pictures.use_whole_numbers(axes.xaxis)
    else:
        axes.set_xticks(layers)


def _list_sites(weights: Sequence[Weight]) -> list[str]:
    present = {weight.site for weight in weights}
    return [site for site in SITES if site in present]


def _average_paths(weights: Sequence[Weight]) -> list[Mapping[int, float]]:
    """Return the mean over repetitions by update, for each site and head."""
    values: dict[tuple[str, int | None], dict[int, list[float]]] = {}
    for weight in weights:
        if weight.update is not None:
            path = values.setdefault((weight.site, weight.head), {})
            path.setdefault(weight.update, []).append(weight.value)
    return [{update: mean(path[update]) for update in sorted(path)} for path in values.values()]
