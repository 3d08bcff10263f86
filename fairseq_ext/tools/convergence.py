"""Convergence of masked language models: do they predict better than by frequencies alone?"""

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.runs import Run, find_logged_value, read_runs

if TYPE_CHECKING:
    from torch import Tensor

MARGIN = 0.5
"""Bits below the unigram distribution from which a model has converged; those of a plateau, which
know frequencies and the place of <s>, stay within 0.1 of it."""


@cache
def measure_unigrams(data: Path, length: int) -> float:
    """Return the cross-entropy of validation data by training's frequencies, in bits a token.

    H = -sum_v n_valid(v) / N_valid * log2((n_train(v) + 1) / (N_train + V)), in rows of `length`
    tokens that begin with <s>, as fairseq's masked_lm cuts text.

    Args:
        data: folder of scripts/prepare_mlm.sh.
        length: --tokens-per-sample.
    """
    train, valid = (_count_tokens(data / part, length) for part in ("train", "valid"))
    smoothed = train + 1
    return float(-(valid / valid.sum() * (smoothed / smoothed.sum()).log2()).sum())


def _count_tokens(prefix: Path, length: int) -> "Tensor":
    """Return the count of each token of the dictionary, [V]."""
    import torch
    from fairseq.data import Dictionary, data_utils

    words = Dictionary.load(str(prefix.with_name("dict.txt")))
    text = torch.cat(list(data_utils.load_indexed_dataset(str(prefix), words)))
    counts = text.bincount(minlength=len(words)).double()
    counts[words.bos()] += -(-len(text) // (length - 1))
    return counts


def count_converged(folders: Sequence[str]) -> Iterator[str]:
    """Print how many trainings of each masked language model have converged.

    A training has if its best loss of validation is `MARGIN` or more below `measure_unigrams`.

    Raises:
        UsageError: a run is no masked language model, or as in `read_runs`.
    """
    for variant, runs in read_runs([Path(folder) for folder in folders]).items():
        losses = [find_logged_value(run, "loss") for run in runs]
        unigrams = [_measure_unigrams_of(run) for run in runs]
        number = sum(a <= b - MARGIN for a, b in zip(losses, unigrams, strict=True))
        listed = ", ".join(f"{loss:.3f}" for loss in losses)
        yield (
            f"{variant}: {number} of {len(runs)} converged ({listed} bits; by frequencies "
            f"{unigrams[0]:.3f}, so from {unigrams[0] - MARGIN:.3f})"
        )


def _measure_unigrams_of(run: Run) -> float:
    settings = run.facts.settings
    if settings.get("task._name") != "masked_lm":
        raise UsageError(
            f"{run.folder} has the task {settings.get('task._name')}, not masked_lm; give masked "
            "language models"
        )
    return measure_unigrams(Path(settings["task.data"]), settings["task.tokens_per_sample"])
