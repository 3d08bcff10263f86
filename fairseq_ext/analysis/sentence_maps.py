"""The attention maps of one sentence in one model: how they are read, chosen and written.

They are written as JSON, or as a part of an HTML page that needs no network. Texts from
checkpoints, data and logs are shown as text, never as markup.
"""

import base64
import json
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_ext.analysis.heatmaps import HeadGrid, TitledMap
from fairseq_ext.analysis.inspector import ModelInspector
from fairseq_ext.analysis.recording import SITES
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.pictures import write_json
from fairseq_ext.files import atomic_writer
from fairseq_ext.tasks.text_columns import COLUMNS, parse_text

STATIC = Path(__file__).parent / "static"
FILES = ("page.html", "page.css", "maps.js")

AXES = {
    "encoder": ("attending token", "attended token"),
    "decoder": ("predicted token", "attended token"),
    "cross": ("predicted token", "attended source token"),
}
"""Titles of the rows and the columns of maps, by site."""


class SentenceMaps(NamedTuple):
    """The maps of one sentence in one model.

    Attributes:
        sites: maps [H, T, S] by site and layer; T and S are cut to the tokens that are shown.
        tokens: by site, the tokens of rows and of columns.
    """

    title: str
    sites: dict[str, dict[int, Tensor]]
    tokens: dict[str, tuple[list[str], list[str]]]

    def grid(self, site: str, layer: int | None = None, head: str = "all") -> HeadGrid:
        """Return the maps of a site as a grid, in which `choose_head` decides the large one."""
        layers = self.sites[site]
        title = f"{self.title}\n{SITES[site]}"
        return HeadGrid(title, layers, *self.tokens[site], choose_head(layers, layer, head))

    def title_map(self, site: str, layer: int | None, head: str) -> TitledMap:
        """Return the map that `choose_map` chooses of a site, with its title and tokens."""
        weights, name = choose_map(self.sites[site], layer, head)
        return TitledMap(f"{self.title}\n{SITES[site]}, {name}", weights, *self.tokens[site])


def read_maps(inspector: ModelInspector, args: Namespace) -> SentenceMaps:
    """Return the maps of the sentence that was asked for.

    Args:
        args: sentence (text, or None), else split and index; tokens, the most that are shown.
    """
    if args.sentence is None:
        batch = inspector.load_sentence(args.split, args.index or 0)
    else:
        batch = read_sentence(inspector, args.sentence)
    batch, shown = inspector.keep_first_row(batch), args.tokens
    sites = {
        site: {layer: maps[0, :, :shown, :shown] for layer, maps in layers.items()}
        for site, layers in inspector.maps(batch).items()
    }
    tokens = {site: inspector.label_axes(batch, site) for site in sites}
    longest = max(len(texts) for both in tokens.values() for texts in both)
    title = inspector.title
    return SentenceMaps(
        title if longest <= shown else f"{title}, {shown} of {longest} tokens",
        sites,
        {site: (rows[:shown], columns[:shown]) for site, (rows, columns) in tokens.items()},
    )


def read_sentence(
    inspector: ModelInspector, text: str, target: Tensor | None = None
) -> dict[str, Any]:
    """Return a batch with one sentence given as text.

    A model of labelled text reads what `fairseq-ext predict` reads as a line, with tabs.

    Args:
        target: [T], what a translation model predicts; by default its own translation.

    Raises:
        UsageError: the text is empty or too long, or has other columns than the model reads.
    """
    task = inspector.task
    if (inspector.data / "input1").is_dir():
        raise UsageError(f"{inspector.checkpoint} reads fairseq's pairs; give --split and --index")
    if not text.strip() or not any(isinstance(task, kind) for kind in COLUMNS):
        return inspector.batch(inspector.words(text.split()).numbers, target)
    rows = task.build_rows()
    dataset = task.build_dataset([*parse_text(task, [("the sentence", text)])], rows)
    if rows.lost:
        raise UsageError(f"the sentence does not fit into {rows.room} tokens; give a shorter one")
    return dataset.collater([dataset[0]])


def write_maps(models: Sequence[SentenceMaps], out: Path) -> None:
    """Write the numbers of all maps as JSON."""
    numbers = [{"model": maps.title, "sites": _round(maps)} for maps in models]
    write_json(numbers, out, indent=None)


def _round(maps: SentenceMaps) -> dict[str, dict[str, Any]]:
    return {
        site: {
            "rows": maps.tokens[site][0],
            "columns": maps.tokens[site][1],
            "layers": {n: each.double().round(decimals=7).tolist() for n, each in layers.items()},
        }
        for site, layers in maps.sites.items()
    }


def choose_head(layers: Mapping[int, Tensor], layer: int | None, head: str) -> tuple[int, int]:
    """Return the layer and head that are shown, or shown large among all.

    Args:
        layers: maps [H, T, S] by layer.
        layer: by default the last one.
        head: as for `fairseq-ext map --head`: a number, "mean", "all" or "all:" and a number.

    Raises:
        UsageError: there is no such layer or head.
    """
    layer = max(layers) if layer is None else layer
    if layer not in layers:
        accepted = ", ".join(map(str, layers))
        raise UsageError(f"--layer is {layer} and must be one of {accepted}")
    number = "0" if head in ("mean", "all") else head.removeprefix("all:")
    heads = len(layers[layer])
    if not number.isdecimal() or int(number) >= heads:
        raise UsageError(
            f"--head is {head} and must be 0 to {heads - 1}, mean, all or all:0 to all:{heads - 1}"
        )
    return layer, int(number)


def choose_map(layers: Mapping[int, Tensor], layer: int | None, head: str) -> tuple[Tensor, str]:
    """Return one map [T, S] of maps [H, T, S] by layer, and the words that name it."""
    layer, number = choose_head(layers, layer, head)
    maps = layers[layer]
    if head == "mean":
        return maps.mean(0), f"layer {layer}, mean of {len(maps)} heads"
    return maps[number], f"layer {layer}, head {number}"


def write_page(out: Path, title: str, parts: Iterable[str]) -> None:
    """Write a page of these parts of HTML; the file gets its name when it is complete."""
    html, style, script = ((STATIC / name).read_text("utf-8") for name in FILES)
    page = html.format(title=escape(title), body="\n".join(parts), style=style, script=script)
    with atomic_writer(out) as file:
        file.write(page)


def write_maps_page(
    models: Sequence[SentenceMaps], out: Path, begin: tuple[str, int, int] | None = None
) -> None:
    """Write a page of the maps of models; see `maps_part`."""
    title = "Attention of " + " and ".join(dict.fromkeys(maps.title for maps in models))
    write_page(out, title, [maps_part(models, begin)])


def maps_part(models: Sequence[SentenceMaps], begin: tuple[str, int, int] | None = None) -> str:
    """Return the HTML element that static/maps.js fills with maps.

    Args:
        begin: site, layer and head that are shown first (default: the first site, last layer and
            first head).
    """
    data = [{"title": maps.title, "sites": _describe_sites(maps)} for maps in models]
    flags = ""
    if begin is not None:
        site, layer, head = begin
        flags = f' data-site="{SITES[site]}" data-layer="{layer}" data-head="{head}"'
    script = f'<script type="application/json">{script_json(data)}</script>'
    return f"<div data-maps{flags}>{script}</div>"


def _describe_sites(maps: SentenceMaps) -> dict[str, Any]:
    return {
        SITES[site]: {
            "axes": AXES[site],
            "rows": maps.tokens[site][0],
            "columns": maps.tokens[site][1],
            "layers": [{"layer": layer, **_pack(each)} for layer, each in layers.items()],
        }
        for site, layers in maps.sites.items()
    }


def _pack(maps: Tensor) -> dict[str, Any]:
    """Return maps [H, T, S] with each weight in 16 bits, little-endian, as base64.

    These are shares of the way from the least to the most weight, 0 and 1 if none is outside them.
    """
    heads, rows, columns = maps.shape
    least, most = min(0.0, float(maps.min())), max(1.0, float(maps.max()))
    shares = (maps - least) / (most - least) * 65535
    content = shares.round().clamp(0, 65535).to(torch.int32).numpy().astype("<u2").tobytes()
    weights = base64.b64encode(content).decode("ascii")
    sizes = {"heads": heads, "rows": rows, "columns": columns}
    return {**sizes, "least": least, "most": most, "weights": weights}


def script_json(value: Any) -> str:
    """Return JSON that is safe inside a script element, whatever its texts contain."""
    text = json.dumps(value, ensure_ascii=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
