"""Objectives: base criterions, with what terms have to know about them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_ext.criterions import labelled, tokens_and_spans  # noqa: F401
from fairseq_ext.criterions.divergence import Predictions
from fairseq_ext.criterions.logging_outputs import Sample
from fairseq_ext.data.rows import IGNORED


def count_target_tokens(base: Any, sample: Sample) -> Tensor:
    """Return [R] the target tokens that count, or 1 with --sentence-avg.

    In masked LM these are the masked ones; --ignore-prefix-size leaves the first ones out.
    """
    target = sample["target"]
    if getattr(base, "sentence_avg", False):
        return target.ne(base.padding_idx).sum(1).clamp(max=1)
    return target[:, getattr(base, "ignore_prefix_size", 0) :].ne(base.padding_idx).sum(1)


def count_tokens(base: Any, sample: Sample) -> Tensor:
    """Return [R] the tokens of each sentence."""
    return sample["net_input"]["src_tokens"].ne(base.padding_idx).sum(1)


def count_tagged_words(base: Any, sample: Sample) -> Tensor:
    """Return [R] the words of each sentence that have a tag."""
    return sample["target"].ne(IGNORED).sum(1)


def weigh_rows_equally(base: Any, sample: Sample) -> Tensor:
    """Return [R] equal weights, whose sum over the rows of an example is 1."""
    source = sample["net_input"]["src_tokens"]
    return torch.full((len(source),), sample["nsentences"] / len(source), device=source.device)


def select_target_tokens(base: Any, sample: Sample, output: Any) -> list[Predictions]:
    """Return predictions, those of target tokens but the prefix of --ignore-prefix-size count."""
    counted = sample["target"].ne(base.padding_idx)
    if ignored := getattr(base, "ignore_prefix_size", 0):
        counted[:, :ignored] = False
    return [_weigh(output[0], counted)]


def select_masked_tokens(base: Any, sample: Sample, output: Any) -> list[Predictions]:
    """Return the predictions at masked positions, and the final state of the first token.

    Wu et al. 2023, Eq. 10. The comparison of states by their softmax is ours. Their divergence is
    to be a mean over sentences, and so it has the weights of the sentences.
    """
    masked = count_target_tokens(base, sample)
    scores = output[0].flatten(0, -2)  # of all tokens, if none is masked: then without weight
    weights = masked.any().expand(len(scores))
    return [Predictions(scores, weights), Predictions(output[1]["features"][:, 0], masked)]


def select_tokens(base: Any, sample: Sample, output: Any) -> list[Predictions]:
    """Return the binary predictions of all tokens, as scores of two classes."""
    scores = output[0].squeeze(-1)
    both = torch.stack([torch.zeros_like(scores), scores], -1)
    return [_weigh(both, sample["net_input"]["src_tokens"].ne(base.padding_idx))]


def select_classes(base: Any, sample: Sample, output: Any) -> list[Predictions]:
    """Return the scores of classes, or of the choices of each question."""
    return [Predictions(base.arrange_scores(output[0], sample))]


def select_numbers(base: Any, sample: Sample, output: Any) -> list[Predictions]:
    """Return the predicted numbers."""
    return [Predictions(output[0].view(-1, 1), are_numbers=True)]


def select_tagged_words(base: Any, sample: Sample, output: Any) -> list[Predictions]:
    """Return the predictions of words that have a tag."""
    return [_weigh(output[0], sample["target"].ne(IGNORED))]


def _weigh(scores: Tensor, counted: Tensor) -> Predictions:
    """Return scores [B, T, K] of which some count [B, T]; to select them would wait for a GPU."""
    return Predictions(scores.flatten(0, 1), counted.flatten())


class Objective(NamedTuple):
    """A base criterion and what terms have to know about it.

    Attributes:
        base: the name of the criterion that computes the main loss.
        weigh_rows: returns how much each row [R] of the source adds to the sample size.
        select_predictions: returns what a divergence compares in an output of the model.
        terms: the names of further losses that belong to the objective.
    """

    base: str
    weigh_rows: Callable[[Any, Sample], Tensor]
    select_predictions: Callable[[Any, Sample, Any], list[Predictions]]
    terms: tuple[str, ...] = ()


_TOKENS = (count_target_tokens, select_target_tokens)
_MASKED = (count_target_tokens, select_masked_tokens)
_CLASSES = (weigh_rows_equally, select_classes)

OBJECTIVES = {
    "cross_entropy": Objective("cross_entropy", *_TOKENS),
    "label_smoothed_cross_entropy": Objective("label_smoothed_cross_entropy", *_TOKENS),
    "masked_lm": Objective("masked_lm", *_MASKED),
    "masked_lm_nsp": Objective("masked_lm", *_MASKED, ("nsp",)),
    "masked_lm_sop": Objective("masked_lm", *_MASKED, ("sop",)),
    "replaced_token_detection": Objective("replaced_token_detection", count_tokens, select_tokens),
    "sentence_classification": Objective("sentence_classification", *_CLASSES),
    "sentence_regression": Objective("sentence_regression", weigh_rows_equally, select_numbers),
    "multiple_choice": Objective("multiple_choice", *_CLASSES),
    "sequence_tagging": Objective("sequence_tagging", count_tagged_words, select_tagged_words),
}
