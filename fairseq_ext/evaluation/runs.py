"""Facts and scores of finished runs, side by side.

A run is the folder that `fairseq-train --save-dir` filled, with the output of `fairseq-generate`
beside the checkpoint.
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fairseq_ext import safe_loading
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.translation import Score, read_hypotheses, read_lines, score

CHECKPOINT = "checkpoint_last.pt"
GENERATED = "generate-test.txt"

# Stored with the parameters but never trained: a format number, and a device marker.
BUFFERS = ("version", "_float_tensor")


class Facts(NamedTuple):
    """What a checkpoint says about its training; ``seconds`` is the time spent in it."""

    architecture: str
    parameters: int
    updates: int
    seconds: float


def count_parameters(state: Mapping[str, torch.Tensor]) -> int:
    """Numbers that training can change; matrices that are equal are one, saved under many names.

    By value, since fairseq unties what it copies from a GPU.
    """
    counted: list[torch.Tensor] = []
    for name, value in state.items():
        tied = value.dim() > 1 and any(
            value.shape == other.shape and torch.equal(value, other) for other in counted
        )
        if name.rpartition(".")[2] not in BUFFERS and not tied:
            counted.append(value)
    return sum(value.numel() for value in counted)


def architecture(config: Any) -> str:
    """The name given to --arch, from the model's part of a checkpoint's configuration."""
    values = config if isinstance(config, Mapping) else vars(config)
    return values.get("arch") or values["_name"]


def facts(checkpoint: Path) -> Facts:
    """Read a checkpoint without running anything in it; raises UsageError if that cannot be."""
    if not checkpoint.is_file():
        raise UsageError(f"there is no checkpoint {checkpoint}; give the --save-dir of a training")
    state = safe_loading.load_checkpoint(str(checkpoint), map_location="cpu")
    return Facts(
        architecture(state["cfg"]["model"]),
        count_parameters(state["model"]),
        state["optimizer_history"][-1]["num_updates"],
        state["extra_state"]["previous_training_time"],
    )


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def row(facts: Facts, scores: Iterable[Score]) -> list[str]:
    values = [f"{each.value:.2f}" for each in scores]
    numbers = [f"{facts.parameters:,}", f"{facts.updates:,}"]
    return [facts.architecture, *numbers, *values, duration(facts.seconds)]


def table(rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([first.ljust(widths[0]), *map(str.rjust, rest, widths[1:])]).rstrip()
        for first, *rest in rows
    )


def compare(runs: Sequence[Path], reference: Path) -> str:
    """A table of runs on one test set, and the signatures of its scores below."""
    references = read_lines(reference)
    scores = [score(read_hypotheses(run / GENERATED), references) for run in runs]
    names = [each.name for each in scores[0]]
    header = ["architecture", "parameters", "updates", *names, "training time"]
    rows = [row(facts(run / CHECKPOINT), each) for run, each in zip(runs, scores, strict=True)]
    signatures = [f"{each.name}: {each.signature}" for each in scores[0]]
    return "\n".join([table([header, *rows]), "", *signatures])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m fairseq_ext.evaluation.runs", description=__doc__
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--reference", type=Path, required=True, help="tokenised text")
    given = parser.parse_args(arguments)
    print(compare(given.runs, given.reference))


if __name__ == "__main__":
    main()
