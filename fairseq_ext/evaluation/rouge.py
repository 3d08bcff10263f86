"""ROUGE of headlines, by the library rouge-score: shared words, pairs of words, subsequences."""

from collections.abc import Sequence
from functools import cache, partial
from importlib.metadata import version
from types import SimpleNamespace

from fairseq_ext.evaluation.corpus_scorers import SentenceMean
from fairseq_ext.evaluation.translation import ESCAPED

KINDS = {"1": "rouge1", "2": "rouge2", "l": "rougeL"}  # our name -> the library's


class Rouge(SentenceMean):
    """Mean ROUGE F1 of sentences, by Porter's stems or by words.

    Text is lower-cased, and all characters but a-z and 0-9 separate words, as in ROUGE-1.5.5: # and
    letters with accents too. So it does not matter whether text is tokenised. Moses's escapes are
    undone, or &apos; would be a word.

    Args:
        kind: a name in KINDS.
        stem: whether to compare stems.
    """

    def __init__(self, kind: str, stem: bool) -> None:
        from rouge_score import rouge_scorer, tokenize  # slow

        self.stem = stem
        words = partial(tokenize.tokenize, stemmer=_porter_stemmer() if stem else None)
        tokenizer = SimpleNamespace(tokenize=words)  # unlike the library's, it logs nothing
        self.kind = KINDS[kind]
        self.scorer = rouge_scorer.RougeScorer([self.kind], tokenizer=tokenizer)

    def score_sentences(self, *texts: Sequence[str]) -> Sequence[float]:
        """Return the F1 of each pair of hypothesis and reference."""
        hypotheses, references = ([ESCAPED.sub(" ", line) for line in side] for side in texts)
        scores = (self.scorer.score(r, h) for h, r in zip(hypotheses, references, strict=True))
        return [score[self.kind].fmeasure for score in scores]

    def signature(self) -> str:
        """Return what is compared, and the library's version."""
        stem = "yes" if self.stem else "no"
        number = version("rouge-score")
        return f"nrefs:1|case:lc|f:f1|mean:sentences|stem:{stem}|tok:rouge-score|version:{number}"


@cache
def _porter_stemmer() -> SimpleNamespace:
    """Return Porter's stemmer, which takes most of the time, with a cache of its stems."""
    from nltk.stem.porter import PorterStemmer

    return SimpleNamespace(stem=cache(PorterStemmer().stem))
