"""HTML pages that need no network, and the part of a page that shows attention maps.

Texts from checkpoints, data and logs are shown as text, never as markup.
"""

import base64
import json
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_ext.analysis.recording import SITES
from fairseq_ext.analysis.sentence_maps import AXES, SentenceMaps
from fairseq_ext.files import atomic_writer

STATIC = Path(__file__).parent / "static"
FILES = ("page.html", "page.css", "maps.js")


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
    """Return maps [H, T, S] with each weight in 16 bits, little-endian, as base64."""
    heads, rows, columns = maps.shape
    shares = (maps.clamp(0, 1) * 65535).round().to(torch.int32).numpy().astype("<u2")
    weights = base64.b64encode(shares.tobytes()).decode("ascii")
    return {"heads": heads, "rows": rows, "columns": columns, "weights": weights}


def script_json(value: Any) -> str:
    """Return JSON that is safe inside a script element, whatever its texts contain."""
    text = json.dumps(value, ensure_ascii=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
