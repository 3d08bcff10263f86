"""ROUGE of headlines, by the library rouge-score: shared words, pairs of words, subsequences."""

from collections.abc import Sequence
from functools import cache, partial
from importlib.metadata import version
from types import SimpleNamespace

import numpy as np

from fairseq_ext.evaluation.translation import ESCAPED

KINDS = {"1": "rouge1", "2": "rouge2", "l": "rougeL"}  # as the library calls them


class Rouge:
    """The mean of the sentences' F1, by Porter's stems or by words.

    Text is lower-cased, and all but a-z and 0-9 parts words, as in ROUGE-1.5.5: # and letters with
    accents too. So it does not matter whether text is tokenised; Moses's escapes are undone, or
    &apos; would be a word.
    """

    def __init__(self, kind: str, stem: bool) -> None:
        from rouge_score import rouge_scorer, tokenize  # slow

        self.stem = stem
        words = partial(tokenize.tokenize, stemmer=_stemmer() if stem else None)
        tokenizer = SimpleNamespace(tokenize=words)  # the library's own, which logs nothing so
        self.scorer = rouge_scorer.RougeScorer([KINDS[kind]], tokenizer=tokenizer)

    def statistics(self, hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
        return np.array(
            [(self._f1(*both), 1.0) for both in zip(hypotheses, references, strict=True)]
        )

    def _f1(self, hypothesis: str, reference: str) -> float:
        (score,) = self.scorer.score(
            *(ESCAPED.sub(" ", x) for x in (reference, hypothesis))
        ).values()
        return score.fmeasure

    def value(self, sums: np.ndarray) -> float:
        return float(100 * sums[0] / sums[1])

    def signature(self) -> str:
        stem = "yes" if self.stem else "no"
        number = version("rouge-score")
        return f"nrefs:1|case:lc|f:f1|mean:sentences|stem:{stem}|tok:rouge-score|version:{number}"


@cache
def _stemmer() -> SimpleNamespace:
    """Porter's, which takes most of the time, with what it found kept."""
    from nltk.stem.porter import PorterStemmer

    return SimpleNamespace(stem=cache(PorterStemmer().stem))
