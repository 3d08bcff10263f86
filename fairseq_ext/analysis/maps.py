"""Draw attention maps of checkpoints, for a sentence of a split or one given as text.

Rows are the tokens that attend, columns those attended to; in the decoder a row is the token that
is predicted. The target is the reference, or for --sentence the model's own translation (beam 5).
Text for translation must be tokenised, in the case of the training data; subwords are made of it
if there are merges in DATA_BIN/bpe.codes. Encoders take plain text. Layers and heads count from 0.

--head all draws all heads of all layers, with the first head of --layer large, all:N with head N.
Several checkpoints stand side by side, --columns of them in a row; --initial puts before them what
they were before training, as their seeds drew it. Beside a picture all maps are written as .json,
which has negative weights too (of raw hybrid attention; pictures begin at 0). An .html file is a
page on which sites, layers, heads and tokens are chosen, these first; it needs no network.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from fairseq_ext.analysis import pages, streams
from fairseq_ext.analysis.heatmaps import LABELS, Grid, Picture, draw_beside, draw_grids, draw_map
from fairseq_ext.analysis.subjects import SITES, Subject
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.pictures import check_picture, save
from fairseq_ext.files import check_writable

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
    """Of one sentence in one model: site -> layer -> [H, T, S], site -> tokens of rows, columns.

    Of a long sentence, T and S are those that are shown.
    """

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
    add_sentence(parser, "test")
    parser.add_argument("--site", choices=SITES, default="encoder", help="default: encoder")
    parser.add_argument("--layer", type=int, metavar="N", help="default: the last one")
    parser.add_argument(
        "--head", default="mean", metavar="N|mean|all|all:N", help="default: mean of all"
    )
    parser.add_argument("--columns", type=int, metavar="N", help="default: all in one row")
    parser.add_argument("--initial", action="store_true", help="also before training")


def add_sentence(parser: argparse.ArgumentParser, split: str) -> None:
    """Which sentence, and how much of it."""
    sentence = parser.add_mutually_exclusive_group()
    sentence.add_argument("--sentence", metavar="TEXT", help="source text of maps")
    sentence.add_argument("--split", default=split, help=f"default: {split}")
    parser.add_argument("--index", type=int, metavar="N", help="of the split; default: 0")
    add_tokens(parser)


def add_tokens(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tokens",
        type=int,
        default=LABELS,
        metavar="N",
        help=f"of a longer sentence the maps of the first N are shown; default: {LABELS}",
    )


def check_tokens(given: argparse.Namespace) -> None:
    if given.tokens < 1:
        raise UsageError(f"--tokens is {given.tokens} and must be at least 1")


def check_sentence(given: argparse.Namespace) -> None:
    check_tokens(given)
    if given.sentence is not None and given.index is not None:
        raise UsageError(
            f"--index {given.index} is of a split, and --sentence is given; leave one of both out"
        )


def run(given: argparse.Namespace) -> None:
    page = given.out.suffix.lower() == PAGE
    if page:
        check_writable(given.out.parent, 0)
    else:
        check_picture(given.out)
    check_sentence(given)
    _check_columns(given, page)
    found = [maps_of(subject, given) for subject in subjects(given)]
    begin = check_choice(found, given)
    if page:
        pages.write_maps(found, given.out, begin)
    else:
        figure = draw(found, given)
        write(found, given.out.with_suffix(".json"))
        save(figure, given.out)


def _check_columns(given: argparse.Namespace, page: bool) -> None:
    if given.columns is None:
        return
    if given.columns < 1:
        raise UsageError(f"--columns is {given.columns} and must be at least 1")
    if page or given.head.startswith("all") or len(given.checkpoints) == 1 and not given.initial:
        raise UsageError(
            f"--columns {given.columns} is for pictures of one head in several models; leave it out"
        )


def subjects(given: argparse.Namespace) -> Iterator[Subject]:
    """Before all, if asked for, each training's model as it began."""
    runs = {path.parent: path for path in given.checkpoints if given.initial}
    for path in runs.values():
        yield Subject(path, given.data, untrained=True)
    yield from streams.subjects(given)


def maps_of(subject: Subject, given: argparse.Namespace) -> Maps:
    if given.sentence is None:
        batch = subject.sentence(given.split, given.index or 0)
    else:
        batch = subject.batch(subject.words(given.sentence.split()).numbers)
    batch, most = subject.first_row(batch), given.tokens
    sites = {
        site: {layer: maps[0, :, :most, :most] for layer, maps in layers.items()}
        for site, layers in subject.maps(batch).items()
    }
    tokens = {site: subject.labels(batch, site) for site in sites}
    longest = max(len(texts) for both in tokens.values() for texts in both)
    return Maps(
        subject.title if longest <= most else f"{subject.title}, {most} of {longest} tokens",
        sites,
        {site: (rows[:most], columns[:most]) for site, (rows, columns) in tokens.items()},
    )


def write(found: Sequence[Maps], out: Path) -> None:
    """The numbers of all maps, as JSON."""
    every = [{"model": maps.title, "sites": _numbers(maps)} for maps in found]
    streams.write_json(every, out, indent=None)


def _numbers(maps: Maps) -> dict[str, dict]:
    return {
        site: {
            "rows": maps.tokens[site][0],
            "columns": maps.tokens[site][1],
            "layers": {
                layer: each.double().round(decimals=7).tolist() for layer, each in layers.items()
            },
        }
        for site, layers in maps.sites.items()
    }


def check_choice(found: Sequence[Maps], given: argparse.Namespace) -> tuple[str, int, int]:
    """Site, layer and head that are chosen, in the first model; raises UsageError if any of them
    has not got these."""
    for maps in found:
        if given.site not in maps.sites:
            raise UsageError(
                f"{maps.title} has no {SITES[given.site]}; give --site {' or '.join(maps.sites)}"
            )
    chosen = [large(maps.sites[given.site], given.layer, given.head) for maps in found]
    return given.site, *chosen[0]


def draw(found: Sequence[Maps], given: argparse.Namespace) -> "Figure":
    axes = AXES[given.site]
    if given.head.startswith("all"):
        grids = [grid(maps, given.site, given.layer, given.head) for maps in found]
        return draw_grids(grids, *axes)
    pictures = [picture(maps, given) for maps in found]
    if len(pictures) > 1:
        return draw_beside(pictures, given.columns or len(pictures), *axes)
    (one,) = pictures
    figure = draw_map(one.weights, one.rows, one.columns, *axes)
    figure.axes[0].set_title(one.title, fontsize=10)
    return figure


def grid(maps: Maps, site: str, layer: int | None = None, head: str = "all") -> Grid:
    layers = maps.sites[site]
    title = f"{maps.title}\n{SITES[site]}"
    return Grid(title, layers, *maps.tokens[site], large(layers, layer, head))


def picture(maps: Maps, given: argparse.Namespace) -> Picture:
    weights, where = choose(maps.sites[given.site], given.layer, given.head)
    title = f"{maps.title}\n{SITES[given.site]}, {where}"
    return Picture(title, weights, *maps.tokens[given.site])


def choose(layers: Mapping[int, Tensor], layer: int | None, head: str) -> tuple[Tensor, str]:
    """One map [T, S] of layer -> [H, T, S], and words for which it is."""
    layer, number = large(layers, layer, head)
    maps = layers[layer]
    if head == "mean":
        return maps.mean(0), f"layer {layer}, mean of {len(maps)} heads"
    return maps[number], f"layer {layer}, head {number}"


def large(layers: Mapping[int, Tensor], layer: int | None, head: str) -> tuple[int, int]:
    """Layer and head: the one that is asked for, or among all the one that stands out."""
    layer = _layer(layers, layer)
    number = "0" if head in ("mean", "all") else head.removeprefix("all:")
    heads = len(layers[layer])
    if not number.isdecimal() or int(number) >= heads:
        raise UsageError(
            f"--head is {head} and must be 0 to {heads - 1}, mean, all or all:0 to all:{heads - 1}"
        )
    return layer, int(number)


def _layer(layers: Mapping[int, Tensor], layer: int | None) -> int:
    layer = max(layers) if layer is None else layer
    if layer not in layers:
        accepted = ", ".join(map(str, layers))
        raise UsageError(f"--layer is {layer} and must be one of {accepted}")
    return layer
