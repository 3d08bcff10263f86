"""Draw what adversaries mask: the share of units in each layer, and of all (ASA, Figure 5).

Of each training with adversaries (a criterion with _asa) the last epoch in its log counts, or what
was logged since the last epoch. Repetitions of a variant (VARIANT/seed-N, VARIANT/fold-N) are
averaged. Beside the picture are its numbers, as CSV.
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairseq_ext.criterions.adversarial.masking_rates import SHARE
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.pictures import check_picture, colours, save, save_numbers
from fairseq_ext.training_logs import name_variants, read_log

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXAMPLE = """\
  fairseq-ext masking checkpoints/asa/finetune/{rte,sts}/asa/seed-* --out masked.png"""

Shares = dict[int, float]
"""layer -> share of its units that is masked, 0 to 1; of all layers together under ALL."""

ALL = -1

LAYER = re.compile(rf"{SHARE}_(\d+)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder with a train.log")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help=".png, .svg, .pdf")


def run(given: argparse.Namespace) -> None:
    check_picture(given.out)
    shares = read_shares(given.runs)
    for name, share in shares.items():
        check_adversaries(name, share)
    for name, share in shares.items():
        layers = " ".join(f"{share[layer]:.3f}" for layer in sorted(share) if layer != ALL)
        print(f"{name}: {share[ALL]:.3f} of all; from the lowest layer {layers}")
    save(draw(shares), given.out)
    save_numbers(records(shares), given.out)


def check_adversaries(variant: str, share: Shares) -> None:
    """Raises UsageError for naive masks, of whose layers nothing is logged."""
    if share.keys() == {ALL}:
        raise UsageError(
            f"{variant} has masks without adversaries; give trainings that have {SHARE}_0 or "
            "another layer in their logs"
        )


def read_shares(runs: Sequence[Path]) -> dict[str, Shares]:
    """By variant; raises UsageError if nothing is masked in a run, or its repetitions differ."""
    found: dict[str, list[Shares]] = {}
    for path, variant in zip(runs, name_variants(runs), strict=True):
        found.setdefault(variant, []).append(_last(path))
    for variant, several in found.items():
        if len({tuple(sorted(each)) for each in several}) > 1:
            raise UsageError(
                f"the runs of {variant} have adversaries in different layers, so they are no "
                "repetitions of one variant; give each variant a folder of its own"
            )
    return {
        name: {layer: float(np.mean([each[layer] for each in several])) for layer in several[0]}
        for name, several in zip(_short(list(found)), found.values(), strict=True)
    }


def _short(names: Sequence[str]) -> list[str]:
    """Paths without what all of them begin and end with; names as they are."""
    parts = [Path(name).parts for name in names]
    for end in (0, -1):
        while min(map(len, parts)) > 1 and len({each[end] for each in parts}) == 1 < len(parts):
            parts = [each[1:] if end == 0 else each[:-1] for each in parts]
    return ["/".join(each) for each in parts]


def _last(path: Path) -> Shares:
    lines = [line for line in read_log(path) if line.kind.startswith("train")]
    logged = [line.values for line in lines if SHARE in line.values]
    if not logged:
        raise UsageError(
            f"{path} has no {SHARE} in its log; give trainings of a criterion with _asa that have "
            "adversaries"
        )
    return {ALL: logged[-1][SHARE], **shares_of_layers(logged[-1])}


def shares_of_layers(values: Mapping[str, float]) -> Shares:
    """Return layer -> share that its adversary masked, from logged values; empty for naive masks."""
    matches = {name: LAYER.fullmatch(name) for name in values}
    return {int(match[1]): values[name] for name, match in matches.items() if match}


def records(shares: Mapping[str, Shares]) -> list[dict[str, Any]]:
    return [
        {"variant": variant, "layer": "all" if layer == ALL else layer, "share": value}
        for variant, share in shares.items()
        for layer, value in share.items()
    ]


def draw(shares: Mapping[str, Shares]) -> "Figure":
    """On the left the layers, a line for each variant; on the right the whole of each."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2), sharey=True)
    for (name, share), colour in zip(shares.items(), colours(shares).values(), strict=True):
        layers = sorted(layer for layer in share if layer != ALL)
        if layers:  # else the masks are naive
            left.plot(layers, [share[i] for i in layers], marker="o", color=colour, label=name)
        right.bar(name, share[ALL], color=colour)
    left.set(xlabel="layer", ylabel="share of units masked", ylim=(0, 1))
    left.xaxis.get_major_locator().set_params(integer=True)
    right.set_title("all layers", fontsize="medium")
    right.tick_params(axis="x", rotation=30)
    for axes in (left, right):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False)
    return figure
