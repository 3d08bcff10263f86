"""Plot which share of units adversaries mask, by layer and in all (ASA, Figure 5).

For each training with adversaries (a criterion with _asa) the last epoch in its log counts, or what
was logged since the last epoch. Repetitions of a variant (VARIANT/seed-N, VARIANT/fold-N) are
averaged. Beside the picture are its numbers, as CSV.

Example:
  fairseq-ext masking checkpoints/asa/finetune/{rte,sts}/asa/seed-* --out masked.png
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation import pictures
from fairseq_ext.training_logs import MASKED_SHARE, name_variants, read_log

Shares = dict[int, float]
"""The masked share of a layer's units, 0 to 1, by layer; `ALL` is the key of all layers together.
"""

ALL = -1

LAYER = re.compile(rf"{MASKED_SHARE}_(\d+)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `fairseq-ext masking`."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder with a train.log")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help=".png, .svg, .pdf")


def run(args: argparse.Namespace) -> None:
    """Write the picture and its numbers, and print the shares."""
    pictures.check_picture(args.out)
    shares = read_shares(args.runs)
    if naive := [variant for variant, share in shares.items() if share.keys() == {ALL}]:
        raise UsageError(
            f"{naive[0]} has masks without adversaries; give trainings that have "
            f"{MASKED_SHARE}_0 or another layer in their logs"
        )
    for variant, share in shares.items():
        layers = " ".join(f"{share[layer]:.3f}" for layer in sorted(share.keys() - {ALL}))
        print(f"{variant}: {share[ALL]:.3f} of all; from the lowest layer {layers}")
    pictures.save(draw(shares), args.out, list_shares(shares))
    pictures.announce(args.out)


def read_shares(runs: Sequence[Path]) -> dict[str, Shares]:
    """Return the mean shares of each variant's repetitions.

    Raises:
        UsageError: nothing is masked in a run, or repetitions have adversaries in other layers.
    """
    groups: dict[str, list[Shares]] = {}
    for path, variant in zip(runs, name_variants(runs), strict=True):
        groups.setdefault(variant, []).append(_read_last_shares(path))
    for variant, repetitions in groups.items():
        if len({tuple(sorted(each)) for each in repetitions}) > 1:
            raise UsageError(
                f"the runs of {variant} have adversaries in different layers, so they are no "
                "repetitions of one variant; give each variant a folder of its own"
            )
    return {
        name: {layer: float(np.mean([each[layer] for each in group])) for layer in group[0]}
        for name, group in zip(_shorten(list(groups)), groups.values(), strict=True)
    }


def _shorten(names: Sequence[str]) -> list[str]:
    """Return paths without the parts that all of them begin or end with."""
    parts = [Path(name).parts for name in names]
    for end in (0, -1):
        while min(map(len, parts)) > 1 and len({each[end] for each in parts}) == 1 < len(parts):
            parts = [each[1:] if end == 0 else each[:-1] for each in parts]
    return ["/".join(each) for each in parts]


def _read_last_shares(run: Path) -> Shares:
    """Return what was masked last in a training; naive masks have no shares of layers."""
    logged = [
        r.values for r in read_log(run) if r.kind.startswith("train") and MASKED_SHARE in r.values
    ]
    if not logged:
        raise UsageError(
            f"{run} has no {MASKED_SHARE} in its log; give trainings of a criterion with _asa "
            "that have adversaries"
        )
    matches = ((LAYER.fullmatch(name), share) for name, share in logged[-1].items())
    return {ALL: logged[-1][MASKED_SHARE]} | {
        int(match[1]): share for match, share in matches if match
    }


def list_shares(shares: Mapping[str, Shares]) -> list[dict[str, Any]]:
    """Return a record for each variant and layer."""
    return [
        {"variant": variant, "layer": "all" if layer == ALL else layer, "share": value}
        for variant, share in shares.items()
        for layer, value in share.items()
    ]


def draw(shares: Mapping[str, Shares]) -> Figure:
    """Draw layers on the left, a line for each variant; on the right a bar for all layers."""
    figure = pictures.new_figure(9, 3.6)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2), sharey=True)
    for name, colour in pictures.assign_colours(shares).items():
        share = shares[name]
        layers = sorted(share.keys() - {ALL})
        if layers:  # naive masks have none
            left.plot(layers, [share[i] for i in layers], marker="o", color=colour, label=name)
        right.bar(name, share[ALL], color=colour)
    left.set(xlabel="layer", ylabel="share of units masked", ylim=(0, 1))
    pictures.use_whole_numbers(left.xaxis)
    right.set_title("all layers", fontsize="medium")
    right.set_xlabel("variant")
    right.tick_params(axis="x", rotation=30)
    for axes in (left, right):
        pictures.style_axes(axes)
    left.legend(frameon=False)
    return figure
