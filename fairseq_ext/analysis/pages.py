"""Pages of HTML that need no network: attention maps to choose from, and what reports are made of.

Whatever comes from checkpoints, data and logs is shown as text, never as markup.
"""

import base64
import json
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fairseq_ext.analysis.subjects import SITES
from fairseq_ext.files import atomic_writer

if TYPE_CHECKING:
    from fairseq_ext.analysis.maps import Maps

STATIC = Path(__file__).parent / "static"

PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; \
style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<h1>{title}</h1>
{body}
<script>
{script}</script>
</body>
</html>
"""


def write_page(out: Path, title: str, parts: Iterable[str]) -> None:
    """A file that has its name when it is complete."""
    page = PAGE.format(
        title=escape(title),
        style=(STATIC / "page.css").read_text("utf-8"),
        script=(STATIC / "maps.js").read_text("utf-8"),
        body="\n".join(parts),
    )
    with atomic_writer(out) as file:
        file.write(page)


def write_maps(
    found: "Sequence[Maps]", out: Path, begin: tuple[str, int, int] | None = None
) -> None:
    title = "Attention of " + " and ".join(dict.fromkeys(maps.title for maps in found))
    write_page(out, title, [maps_part(found, begin)])


def maps_part(found: "Sequence[Maps]", begin: tuple[str, int, int] | None = None) -> str:
    """The element that static/maps.js fills.

    Args:
        begin: site, layer and head that it shows first (default: the first, last and first ones).
    """
    models = [{"title": maps.title, "sites": _sites(maps)} for maps in found]
    flags = ""
    if begin is not None:
        site, layer, head = begin
        flags = f' data-site="{SITES[site]}" data-layer="{layer}" data-head="{head}"'
    script = f'<script type="application/json">{as_json(models)}</script>'
    return f"<div data-maps{flags}>{script}</div>"


def _sites(maps: "Maps") -> dict[str, Any]:
    from fairseq_ext.analysis.maps import AXES

    return {
        SITES[site]: {
            "axes": AXES[site],
            "rows": maps.tokens[site][0],
            "columns": maps.tokens[site][1],
            "layers": [{"layer": layer, **_packed(found)} for layer, found in layers.items()],
        }
        for site, layers in maps.sites.items()
    }


def _packed(maps: Tensor) -> dict[str, Any]:
    """[H, T, S], each weight in 16 bits."""
    heads, rows, columns = maps.shape
    shares = (maps.clamp(0, 1) * 65535).round().to(torch.int32).numpy().astype("<u2")
    weights = base64.b64encode(shares.tobytes()).decode("ascii")
    return {"heads": heads, "rows": rows, "columns": columns, "weights": weights}


def as_json(value: Any) -> str:
    """JSON that can stand in a script element, whatever the texts in it are."""
    text = json.dumps(value, ensure_ascii=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
