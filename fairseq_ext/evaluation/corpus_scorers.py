"""Scorers: corpus scores that are functions of sums over sentences, which can be resampled."""

import re
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from sacrebleu.metrics.base import Metric


class Scorer(Protocol):
    """A corpus score that is a function of sums over sentences."""

    @property
    def statistics(self) -> Callable[..., np.ndarray]:
        """Function that gives numbers to sum, [sentences, numbers], float.

        It takes hypotheses and references, and source sentences too if the score needs them.
        """

    def value(self, sums: np.ndarray) -> float:
        """Return the score, from 0 to 100, of statistics summed over sentences, [numbers]."""

    def signature(self) -> str:
        """Return how the score is computed; to be called after `statistics`."""


class SentenceMean:
    """A scorer whose value is 100 times the mean of the sentences' scores."""

    def score_sentences(self, *texts: Sequence[str]) -> Sequence[float]:
        """Return a score from 0 to 1 for each sentence of hypotheses, references, maybe sources."""
        raise NotImplementedError

    def statistics(self, *texts: Sequence[str]) -> np.ndarray:
        """Return the score of each sentence and a count of 1, [sentences, 2]."""
        return np.array([(score, 1.0) for score in self.score_sentences(*texts)])

    def value(self, sums: np.ndarray) -> float:
        """Return 100 times the mean."""
        return float(100 * sums[0] / sums[1])


class Sacrebleu:
    """A metric of sacrebleu, by the methods that its own tests of significance use."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric

    def statistics(self, hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
        """Return the metric's own numbers, such as counts of n-grams, [sentences, numbers]."""
        return np.array(self.metric._extract_corpus_statistics(hypotheses, [references]))

    def value(self, sums: np.ndarray) -> float:
        """Return the metric's score."""
        return float(self.metric._compute_score_from_stats(sums.tolist()).score)

    def signature(self) -> str:
        """Return sacrebleu's signature."""
        return self.metric.get_signature().format()


class CompoundSplit(Sacrebleu):
    """BLEU of words split at hyphens, so that a compound that is half right counts half.

    It repeats what the usual script does: of hyphens one letter apart it splits only every other
    one. Compounds that a tokeniser has split already are joined first, where that script would
    split the tokeniser's marks a second time.
    """

    MARK = "##AT##-##AT##"
    TOKENISED = re.compile(rf" (?:@-@|{MARK}) ")
    HYPHEN = re.compile(r"(\S)-(\S)", re.ASCII)

    def statistics(self, hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
        """Return the numbers of the split sentences; see `Sacrebleu.statistics`."""
        sides = (hypotheses, references)
        return super().statistics(*([self.split(line) for line in side] for side in sides))

    def split(self, line: str) -> str:
        """Return a tokenised sentence with its compounds split."""
        return self.HYPHEN.sub(rf"\1 {self.MARK} \2", self.TOKENISED.sub("-", line))

    def signature(self) -> str:
        """Return sacrebleu's signature, and that compounds are split."""
        return f"{super().signature()}|compounds:split"
