"""Draw two_heads.png, an encoder head of two models, and print what is said of it, from its maps.

The maps are in docs/pictures/two_heads.json. A rule chooses them, by what a key receives from all
queries of its sentence together, times S, the number of keys; DNA keeps that at 1 or above (Ding
et al. 2020, Theorem 2). Softmax: of all sentences of the test set and all encoder heads, the map
with the least of it. DNA: of the same sentence the head with the least of it.

Example:
  python docs/draw_heads.py            # says which files are not of these maps
  python docs/draw_heads.py --write
  python docs/draw_heads.py --write --choose SOFTMAX.pt DNA.pt --data DATA     # the maps anew
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import draw_results
import numpy as np
from effects import wrap
from records import ROOT

PICTURE = ROOT / "docs" / "pictures" / "two_heads.png"
MAPS = PICTURE.with_suffix(".json")
SIDES = ("softmax", "doubly-normalised attention")
TITLE = "One sentence in two encoders: softmax, and doubly-normalised attention"
PLACE = re.compile(r"!\[[^]]*\]\((?P<folder>\S*)two_heads\.png\)\n\n(?:.+\n)+")
ROUNDING = 1e-4


def choose_maps(checkpoints: list[Path], data: Path) -> dict[str, Any]:
    """Return the maps that the rule chooses, and how many keys of each model get less than 1/S."""
    from fairseq_ext import registry  # noqa: F401
    from fairseq_ext.analysis.inspector import ModelInspector

    chosen: dict[str, Any] = {"maps": []}
    for side, checkpoint in zip(SIDES, checkpoints, strict=True):
        inspector = ModelInspector(checkpoint, data)
        heads, keys, below = rank_heads(inspector)
        sentence = chosen.setdefault("sentence", min(heads)[1])
        _, _, layer, head = min(each for each in heads if each[1] == sentence)
        batch = inspector.keep_first_row(inspector.load_sentence("test", sentence))
        weights = inspector.maps(batch)["encoder"][layer][0, head]
        chosen["sentences"] = len({each[1] for each in heads})
        chosen["tokens"] = inspector.label_axes(batch, "encoder")[0]
        about = {"side": side, "layer": layer, "head": head, "keys": keys, "below": below}
        rows = [[round(weight, 5) for weight in row] for row in weights.tolist()]
        chosen["maps"].append({**about, "weights": rows})
    return chosen


def rank_heads(inspector: Any) -> tuple[list[tuple[float, int, int, int]], int, int]:
    """Return each map's least product and its place, the number of keys, and of those below 1/S.

    A place is sentence, layer and head.
    """
    heads, keys, below = [], 0, 0
    for batch in inspector.batches("test"):
        layers: list[Any] = []
        inspector.record_attention(batch, layers.append)
        for attention in (each for each in layers if each.site == "encoder"):
            view, maps = attention.view, attention.maps.double()
            sums = maps.masked_fill(~view.queries[:, None, :, None], 0.0).sum(2)
            products = sums * view.keys.sum(1)[:, None, None]
            products = products.masked_fill(~view.keys[:, None], np.inf)
            keys += int(products.isfinite().sum())
            below += int((products < 1 - ROUNDING).sum())
            for sentence, own in zip(batch["id"].tolist(), products.amin(2).tolist(), strict=True):
                heads += [(x, sentence, attention.layer, head) for head, x in enumerate(own)]
    return heads, keys, below


def describe(chosen: dict[str, Any], folder: str) -> str:
    """Return the picture with what is said of it, on a page that has the pictures in a folder."""
    tokens = chosen["tokens"]
    softmax, doubly = (np.array(each["weights"]).sum(0) for each in chosen["maps"])
    counts = [(each["below"], each["keys"]) for each in chosen["maps"]]
    shares = [f"{100 * below / keys:.2f} %" if below else "none" for below, keys in counts]
    size, most, least = len(tokens), softmax.argmax(), softmax.argmin()
    received = [f'"{tokens[key]}" {softmax[key]:.2g}' for key in (least, most)]
    text = (
        "One test sentence in two small models after 600 updates. Of all encoder heads and "
        f"{chosen['sentences']:,} sentences, the [rule]({folder}two_heads.sh) takes the softmax "
        "map (left) in which a token receives least, and likewise a doubly-normalised (DNA) map of "
        f"this sentence (right). Under softmax the {size} tokens together give "
        f"{' and '.join(received)}; under DNA none gets less than 1/{size} = {1 / size:.2g}, here "
        f"{doubly.min():.2g}. In all, {shares[0]} of the keys are below that bound under softmax, "
        f"{shares[1]} under DNA."
    )
    return f"![{TITLE}]({folder}two_heads.png)\n\n{wrap(text)}\n"


def print_targets(chosen: dict[str, Any]) -> Iterator[tuple[Path, str, str]]:
    """Yield each page that shows the picture, its text, and what that would be."""
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = path.read_text("utf-8")
        if PLACE.search(text):
            yield path, text, PLACE.sub(lambda match: describe(chosen, match["folder"]), text)


def draw(figure: Any, chosen: dict[str, Any]) -> None:
    """Draw each map, and below it what each key receives, with the bound as a line."""
    tokens, maps = chosen["tokens"], chosen["maps"]
    figure.set_size_inches(8.6, 5.2)
    panels = figure.subplots(2, len(maps), sharex=True, sharey="row", height_ratios=(3, 1))
    highest = max(np.max(each["weights"]) for each in maps)
    for (axes, bars), each in zip(panels.T, maps, strict=True):
        weights = np.array(each["weights"])
        image = axes.imshow(weights, cmap="Blues", vmin=0, vmax=highest, aspect="auto")
        axes.set_title(f"{each['side']}, layer {each['layer']}, head {each['head']}", fontsize=9)
        axes.set_yticks(range(len(tokens)), tokens, parse_math=False)
        axes.tick_params(length=0)
        bars.bar(range(len(tokens)), weights.sum(0), color=draw_results.POINT)
        bars.axhline(1 / len(tokens), color=draw_results.MEAN, linewidth=1)
        bars.annotate("1/S", (1.01, 1 / len(tokens)), xycoords=("axes fraction", "data"))
        bars.set_xticks(range(len(tokens)), tokens, parse_math=False, rotation=45, ha="right")
        bars.spines[["top", "right"]].set_visible(False)
        bars.set_yscale("log")
    panels[0, 0].set_ylabel("attending token")
    panels[1, 0].set_ylabel("received in all")
    figure.supxlabel("attended token", fontsize=8)
    figure.colorbar(image, ax=panels[0], label="attention weight", pad=0.01)


def main() -> int:
    """Say which files are not of these maps, or write them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write them")
    parser.add_argument("--choose", nargs=2, type=Path, metavar="CHECKPOINT", help="softmax, DNA")
    parser.add_argument("--data", type=Path, help="their folder of data")
    args = parser.parse_args()
    if args.choose:
        chosen = choose_maps(args.choose, args.data)
        MAPS.write_text(json.dumps(chosen, ensure_ascii=False) + "\n", "utf-8")
    chosen = json.loads(MAPS.read_text("utf-8"))
    old = [(path, new) for path, text, new in print_targets(chosen) if text != new]
    digest = draw_results.hash_value(chosen)
    drawn = draw_results.has_digest(PICTURE, digest)
    for path in [*(path for path, _ in old), *([] if drawn else [PICTURE])]:
        print(path.relative_to(ROOT))
    if args.write:
        for path, new in old:
            path.write_text(new, "utf-8")
        if not drawn:
            draw_results.save_picture(PICTURE, digest, lambda figure: draw(figure, chosen), 128)
    return int(bool(old or not drawn) and not args.write)


if __name__ == "__main__":
    sys.exit(main())
