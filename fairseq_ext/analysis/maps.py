"""Draw attention maps of checkpoints, for a sentence of a split or one given as text.

Rows are the tokens that attend, columns those attended to; in the decoder a row is the token that
is predicted. The target is the reference, or for --sentence the model's own translation (beam 5).
Text for translation must be tokenised, in the case of the training data; subwords are made of it
if there are merges in DATA_BIN/bpe.codes. Encoders take plain text. Layers and heads count from 0.

--head all draws all heads of all layers, with the one of --layer (the first head) large. Several
checkpoints stand side by side, --columns of them in a row; --initial puts before them what they
were before training, as their seeds drew it. Beside a picture all maps are written as .json, which
has negative weights too (of raw hybrid attention; pictures begin at 0). An .html file is a page on
which sites, layers, heads and tokens are chosen; it needs no network.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from fairseq_ext.analysis import pages, streams
from fairseq_ext.analysis.heatmaps import Grid, Picture, draw_beside, draw_grids, draw_map
from fairseq_ext.analysis.pictures import check_picture, save
from fairseq_ext.analysis.subjects import SITES, Subject
from fairseq_ext.data.check import check_writable
from fairseq_ext.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXAMPLE = """\
  fairseq-ext map checkpoints/study/dna/seed-1/checkpoint_best.pt --data data-bin/multi30k.en-de \\
    --sentence 'a man in an orange hat .' --layer 3 --head 1 --out map.png
  fairseq-ext map checkpoints/study/{una,dna}/seed-1/checkpoint_best.pt \\
    --data data-bin/multi30k.en-de --split valid --index 7 --site cross --head all --out cross.svg
  fairseq-ext map checkpoints/{ag,plain}/checkpoint_1_100.pt \\
    checkpoints/{ag,plain}/checkpoint_last.pt --initial --columns 2 --layer 0 --head 0 \\
    --sentence 'welcome to the show .' --out figure1.png
  fairseq-ext map encoders/minilm/model.pt --sentence 'a smile on your face' --out maps.html"""

AXES = {
    "encoder": ("attending token", "attended token"),
    "decoder": ("predicted token", "attended token"),
    "cross": ("predicted token", "attended source token"),
}
PAGE = ".html"


class Maps(NamedTuple):
    """Of one sentence in one model: site -> layer -> [H, T, S], site -> tokens of rows, columns."""

    title: str
    sites: dict[str, dict[int, Tensor]]
    tokens: dict[str, tuple[list[str], list[str]]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoints", nargs="+", type=Path, metavar="CHECKPOINT")
    parser.add_argument(
        "--data", type=Path, metavar="DATA_BIN", help="default: what the checkpoint names"
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help=".png, .svg, .pdf, .html"
    )
    sentence = parser.add_mutually_exclusive_group()
    sentence.add_argument("--sentence", metavar="TEXT", help="source text")
    sentence.add_argument("--split", default="test", help="default: test")
    parser.add_argument("--index", type=int, default=0, help="sentence of the split; default: 0")
    parser.add_argument("--site", choices=SITES, default="encoder", help="default: encoder")
    parser.add_argument("--layer", type=int, metavar="N", help="default: the last one")
    parser.add_argument("--head", default="mean", metavar="N|mean|all", help="default: mean of all")
    parser.add_argument("--columns", type=int, metavar="N", help="default: all in one row")
    parser.add_argument("--initial", action="store_true", help="also before training")


def run(given: argparse.Namespace) -> None:
    if given.out.suffix.lower() == PAGE:
        check_writable(given.out.parent, 0)
    else:
        check_picture(given.out)
    if given.columns is not None and given.columns < 1:
        raise UsageError(f"--columns is {given.columns} and must be at least 1")
    found = [maps_of(subject, given) for subject in subjects(given)]
    if given.out.suffix.lower() == PAGE:
        pages.write_maps(found, given.out)
    else:
        figure = draw(found, given)
        write(found, given.out.with_suffix(".json"))
        save(figure, given.out)


def subjects(given: argparse.Namespace) -> list[Subject]:
    """Before all, if asked for, each training's model as it began."""
    runs = {path.parent: path for path in given.checkpoints if given.initial}
    first = [Subject(path, given.data, untrained=True) for path in runs.values()]
    return [*first, *streams.subjects(given)]


def maps_of(subject: Subject, given: argparse.Namespace) -> Maps:
    if given.sentence is None:
        batch = subject.sentence(given.split, given.index)
    else:
        batch = subject.batch(subject.words(given.sentence.split()).numbers)
    batch = subject.first_row(batch)
    sites = {
        site: {layer: maps[0] for layer, maps in layers.items()}
        for site, layers in subject.maps(batch).items()
    }
    return Maps(subject.title, sites, {site: subject.labels(batch, site) for site in sites})


def write(found: Sequence[Maps], out: Path) -> None:
    """The numbers of all maps, as JSON."""
    streams.write_json([{"model": maps.title, "sites": _numbers(maps)} for maps in found], out)


def _numbers(maps: Maps) -> dict[str, dict]:
    return {
        site: {
            "rows": maps.tokens[site][0],
            "columns": maps.tokens[site][1],
            "layers": {layer: each.tolist() for layer, each in layers.items()},
        }
        for site, layers in maps.sites.items()
    }


def draw(found: Sequence[Maps], given: argparse.Namespace) -> "Figure":
    for maps in found:
        if given.site not in maps.sites:
            raise UsageError(
                f"{maps.title} has no {SITES[given.site]}; give --site {' or '.join(maps.sites)}"
            )
    axes = AXES[given.site]
    if given.head == "all":
        return draw_grids([grid(maps, given.site, given.layer) for maps in found], *axes)
    pictures = [picture(maps, given) for maps in found]
    if len(pictures) > 1:
        return draw_beside(pictures, given.columns or len(pictures), *axes)
    (one,) = pictures
    figure = draw_map(one.weights, one.rows, one.columns, *axes)
    figure.axes[0].set_title(one.title, fontsize=10)
    return figure


def grid(maps: Maps, site: str, layer: int | None = None) -> Grid:
    layers = maps.sites[site]
    return Grid(
        f"{maps.title}\n{SITES[site]}", layers, *maps.tokens[site], (_layer(layers, layer), 0)
    )


def picture(maps: Maps, given: argparse.Namespace) -> Picture:
    weights, where = choose(maps.sites[given.site], given.layer, given.head)
    title = f"{maps.title}\n{SITES[given.site]}, {where}"
    return Picture(title, weights, *maps.tokens[given.site])


def choose(layers: Mapping[int, Tensor], layer: int | None, head: str) -> tuple[Tensor, str]:
    """One map [T, S] of layer -> [H, T, S], and words for which it is."""
    layer = _layer(layers, layer)
    maps = layers[layer]
    if head == "mean":
        return maps.mean(0), f"layer {layer}, mean of {len(maps)} heads"
    if not head.isdecimal() or int(head) >= len(maps):
        raise UsageError(f"--head is {head} and must be 0 to {len(maps) - 1}, mean or all")
    return maps[int(head)], f"layer {layer}, head {head}"


def _layer(layers: Mapping[int, Tensor], layer: int | None) -> int:
    layer = max(layers) if layer is None else layer
    if layer not in layers:
        accepted = ", ".join(map(str, layers))
        raise UsageError(f"--layer is {layer} and must be one of {accepted}")
    return layer
