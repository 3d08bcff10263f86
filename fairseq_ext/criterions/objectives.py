"""The table of what is learned: a base criterion, and what terms beside it have to know of it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_ext.criterions import (  # noqa: F401 (bases)
    replaced_tokens,
    sentences,
    sequence_tagging,
)
from fairseq_ext.criterions.adversarial.divergence import Compared
from fairseq_ext.criterions.terms import Sample
from fairseq_ext.data.labelled_dataset import IGNORED


def target_tokens(base: Any, sample: Sample) -> Tensor:
    """Tokens of each target, or 1 with --sentence-avg."""
    real = sample["target"].ne(base.padding_idx).sum(1)
    return real.clamp(max=1) if base.sentence_avg else real


def masked_tokens(base: Any, sample: Sample) -> Tensor:
    """Masked tokens of each sentence."""
    return sample["target"].ne(base.padding_idx).sum(1)


def real_tokens(base: Any, sample: Sample) -> Tensor:
    """Tokens of each sentence."""
    return sample["net_input"]["src_tokens"].ne(base.padding_idx).sum(1)


def labelled_words(base: Any, sample: Sample) -> Tensor:
    """Words of each sentence that have a tag."""
    return sample["target"].ne(IGNORED).sum(1)


def equal_rows(base: Any, sample: Sample) -> Tensor:
    """The same of each row; all rows of an example together are 1."""
    source = sample["net_input"]["src_tokens"]
    return torch.full((len(source),), sample["nsentences"] / len(source), device=source.device)


def of_tokens(base: Any, sample: Sample, output: Any) -> list[Compared]:
    """Predictions of all tokens of the target, but those of --ignore-prefix-size."""
    counted = sample["target"].ne(base.padding_idx)
    counted[:, : getattr(base, "ignore_prefix_size", 0)] = False
    return [Compared(output[0][counted])]


def of_masked_tokens(base: Any, sample: Sample, output: Any) -> list[Compared]:
    """Predictions at masked positions, and the final state of the first token; as its divergence is
    to be a mean over sentences, it has their weights. (Wu et al. 2023, Eq. 10; that a state is
    compared by its softmax is ours)"""
    masked = masked_tokens(base, sample)
    scores = output[0].flatten(0, -2)  # of all tokens, if none is masked: then of no weight
    some = masked.any().expand(len(scores))
    return [Compared(scores, some), Compared(output[1]["features"][:, 0], masked)]


def of_real_tokens(base: Any, sample: Sample, output: Any) -> list[Compared]:
    """Binary predictions of all tokens, as scores of two classes."""
    scores = output[0].squeeze(-1)[sample["net_input"]["src_tokens"].ne(base.padding_idx)]
    return [Compared(torch.stack([torch.zeros_like(scores), scores], -1))]


def of_sentences(base: Any, sample: Sample, output: Any) -> list[Compared]:
    """Scores of classes, or of the choices of each question."""
    return [Compared(base.arranged(output[0], sample))]


def of_numbers(base: Any, sample: Sample, output: Any) -> list[Compared]:
    """Predicted numbers."""
    return [Compared(output[0].view(-1, 1), numbers=True)]


def of_words(base: Any, sample: Sample, output: Any) -> list[Compared]:
    """Predictions of words that have a tag."""
    return [Compared(output[0][sample["target"].ne(IGNORED)])]


class Objective(NamedTuple):
    """What is learned.

    Attributes:
        base: the criterion that computes its main loss.
        weights: what each row of the source adds to the sample size.
        compared: what a divergence compares, in an output of the model.
        terms: further losses that belong to it.
    """

    base: str
    weights: Callable[[Any, Sample], Tensor]
    compared: Callable[[Any, Sample, Any], list[Compared]]
    terms: tuple[str, ...] = ()


OBJECTIVES = {
    "cross_entropy": Objective("cross_entropy", target_tokens, of_tokens),
    "label_smoothed_cross_entropy": Objective(
        "label_smoothed_cross_entropy", target_tokens, of_tokens
    ),
    "masked_lm": Objective("masked_lm", masked_tokens, of_masked_tokens),
    "masked_lm_nsp": Objective("masked_lm", masked_tokens, of_masked_tokens, ("nsp",)),
    "masked_lm_sop": Objective("masked_lm", masked_tokens, of_masked_tokens, ("sop",)),
    "replaced_token_detection": Objective("replaced_token_detection", real_tokens, of_real_tokens),
    "sentence_classification": Objective("sentence_classification", equal_rows, of_sentences),
    "sentence_regression": Objective("sentence_regression", equal_rows, of_numbers),
    "multiple_choice": Objective("multiple_choice", equal_rows, of_sentences),
    "sequence_tagging": Objective("sequence_tagging", labelled_words, of_words),
}
