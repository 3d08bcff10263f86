"""Draw the trained weights of heads: hybrid attention's u, and gates, over training and by layer.

Of a run, what its log has over the updates (Ding et al. 2020, Figure 3: the mean u of a layer; a
gate for each head); of its last checkpoint, or of any checkpoint, the weight of each head by layer
(Figures 4 and 5). Several checkpoints of one run are joined over their updates, and the last of
them is drawn by layer. Repetitions of a variant (VARIANT/seed-N) are averaged over training.
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, NamedTuple

from fairseq_ext.analysis import streams
from fairseq_ext.analysis.loading import short_name
from fairseq_ext.analysis.subjects import Subject
from fairseq_ext.attention import Attention
from fairseq_ext.attention.normalisers import Hybrid
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.pictures import save
from fairseq_ext.evaluation.runs import CHECKPOINT, TRAINING_KINDS, read_facts
from fairseq_ext.files import check_writable
from fairseq_ext.training_logs import LOG, name_variants, read_log

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EXAMPLE = """\
  fairseq-ext weights checkpoints/study/hna/seed-* --out weights
  fairseq-ext weights checkpoints/checkpoint{1,2,3}.pt --data data-bin/mine --out weights"""

LOGGED = re.compile(r"(encoder|decoder|cross)(\d+)_(u|gate)(\d*)")
TITLES = {"u": "share u of doubly-normalised attention", "gate": "gate of a head"}


class Weight(NamedTuple):
    """Of a model: the run or checkpoint that says so, a kind ("u", "gate"), a layer, a head (None:
    the mean of the layer), at an update (None: in the checkpoint)."""

    model: str
    run: str
    kind: str
    site: str
    layer: int
    head: int | None
    update: int | None
    value: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="or a checkpoint")
    parser.add_argument(
        "--data", type=Path, metavar="DATA_BIN", help="default: what the checkpoint names"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")


def run(given: argparse.Namespace) -> None:
    check_writable(given.out, 0)
    folders = [path for path in given.runs if path.is_dir()]
    names = dict(zip(folders, name_variants(folders), strict=True))
    found = []
    for path in folders:
        if (path / LOG).is_file():
            found += logged(path, names[path])
        if (path / CHECKPOINT).is_file() or not (path / LOG).is_file():
            found += trained(Subject(path / CHECKPOINT, given.data), names[path])
    files = [path for path in given.runs if path not in names]
    for folder in dict.fromkeys(path.parent for path in files):
        found += saved([path for path in files if path.parent == folder], given.data)
    write(found, given.out)


def write(found: Sequence[Weight], out: Path) -> None:
    """Raises UsageError if there are no weights at all."""
    if not found:
        raise UsageError(
            "no model given has hybrid weights or gates of heads; give those of transformer_hna, "
            "roberta_hna or --head-gate"
        )
    streams.write_rows([weight._asdict() for weight in found], out / "weights")
    for kind in dict.fromkeys(weight.kind for weight in found):
        own = [weight for weight in found if weight.kind == kind]
        save(draw(own, TITLES[kind]), out / f"weights_{kind}.png")


def logged(folder: Path, name: str) -> list[Weight]:
    """From the lines within epochs, or from those of epochs if there are no others."""
    found: dict[str, list[Weight]] = {kind: [] for kind in TRAINING_KINDS}
    for record in read_log(folder):
        for key, value in record.values.items():
            if record.kind in found and (match := LOGGED.fullmatch(key)):
                site, layer, kind, head = match.groups()
                place = name, str(folder), kind, site, int(layer), int(head) if head else None
                found[record.kind].append(Weight(*place, record.update, value))
    return next(filter(None, found.values()), [])


def saved(files: Sequence[Path], data: Path | None) -> list[Weight]:
    """Of checkpoints of one run: of several over their updates, and by layer of the last one."""
    if len(files) == 1:
        subject = Subject(files[0], data)
        return trained(subject, subject.title)
    updates = {file: read_facts(file).updates for file in files}
    found, last = [], max(files, key=updates.__getitem__)
    for file in sorted(files, key=updates.__getitem__):
        subject = Subject(file, data)
        name = f"{subject.name}, {short_name(file).rpartition('/')[0]}"
        own = trained(subject, name)
        found += [weight._replace(update=updates[file]) for weight in own]
        found += own if file == last else []
    return found


def trained(subject: Subject, name: str) -> list[Weight]:
    """One for each head that has one."""
    found, run = [], str(subject.checkpoint)
    for module in subject.model.modules():
        if not isinstance(module, Attention):
            continue
        first = 0
        for group in module.groups:
            if isinstance(group.normaliser, Hybrid):
                for head, value in enumerate(group.normaliser.u().tolist(), first):
                    place = name, run, "u", module.site, module.layer, head
                    found.append(Weight(*place, None, value))
            first += group.num_heads
        for head, offset in enumerate([] if module.gate is None else module.gate.tolist()):
            place = name, run, "gate", module.site, module.layer, head
            found.append(Weight(*place, None, 1 + offset))
    return found


def draw(found: Sequence[Weight], title: str) -> "Figure":
    """A row for each model: over the updates, a line for each layer, or for each head of it; by
    layer, a point for each head and a line through the means. What nobody knows is left out."""
    from matplotlib.figure import Figure

    models = list(dict.fromkeys(weight.model for weight in found))
    panels = [
        panel
        for panel, known in {
            _over_updates: any(weight.update is not None for weight in found),
            _by_layer: any(weight.update is None for weight in found),
        }.items()
        if known
    ]
    size = 0.5 + 4.5 * len(panels), 0.6 + 2.9 * len(models)
    figure = Figure(figsize=size, layout="constrained")
    every = figure.subplots(len(models), len(panels), squeeze=False, sharey=True)
    for line, model in zip(every, models, strict=True):
        for axes, panel in zip(line, panels, strict=True):
            panel(axes, [weight for weight in found if weight.model == model])
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
        line[0].set(ylabel=title, title=model)
    return figure


def _over_updates(axes: "Axes", own: Sequence[Weight]) -> None:
    from matplotlib import colormaps

    last = max(weight.layer for weight in own)
    for layer in range(last + 1):
        colour = colormaps["viridis"](layer / max(last, 1))
        axes.plot([], [], color=colour, label=f"layer {layer}")
        for path in _paths([weight for weight in own if weight.layer == layer]):
            axes.plot(list(path), list(path.values()), color=colour)
    axes.set_xlabel("updates")
    axes.legend(frameon=False, fontsize=7, ncols=2)


def _by_layer(axes: "Axes", own: Sequence[Weight]) -> None:
    heads = [weight for weight in own if weight.update is None]
    layers = sorted({weight.layer for weight in heads})
    means = [mean(w.value for w in heads if w.layer == layer) for layer in layers]
    axes.scatter([w.layer for w in heads], [w.value for w in heads], s=14, alpha=0.5)
    axes.plot(layers, means, color="0.2")
    axes.set_xlabel("layer, a point for each head")
    axes.xaxis.get_major_locator().set_params(integer=True)


def _paths(own: Sequence[Weight]) -> list[dict[int, float]]:
    """Of each site and head, update -> mean over repetitions."""
    values: dict[tuple[str, int | None], dict[int, list[float]]] = {}
    for weight in own:
        if weight.update is not None:
            path = values.setdefault((weight.site, weight.head), {})
            path.setdefault(weight.update, []).append(weight.value)
    return [{update: mean(path[update]) for update in sorted(path)} for path in values.values()]
