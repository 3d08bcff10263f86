"""Corpus scores of translations, each with the signature that says how it was computed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import sacremoses
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Metric

from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.translation import Texts

MARK = "†"  # behind the name of a score on a reference that is not raw text


class Scorer(Protocol):
    """A score that is a function of sums over sentences, so that sentences can be resampled."""

    def statistics(self, hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
        """Numbers to be summed, [sentences, numbers]."""

    def value(self, sums: np.ndarray) -> float:
        """The score, from 0 to 100."""

    def signature(self) -> str:
        """How it was computed; asked for after `statistics`."""


class Sacrebleu:
    """A metric of sacrebleu, by the methods that its own tests of significance use."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric

    def statistics(self, hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
        return np.array(self.metric._extract_corpus_statistics(hypotheses, [references]))

    def value(self, sums: np.ndarray) -> float:
        return float(self.metric._compute_score_from_stats(sums.tolist()).score)

    def signature(self) -> str:
        return self.metric.get_signature().format()


class Kind(NamedTuple):
    """A metric that can be asked for.

    Attributes:
        form: the part of `Texts` that it compares.
        make: gives the scorer, from whether to ignore case and the language.
    """

    label: str
    form: str
    make: Callable[[bool, str], Scorer]


# `force` silences a warning about tokenised text. TER ignores case in any case.
METRICS = {
    "bleu": Kind(
        "BLEU",
        "words",
        lambda lowercase, language: Sacrebleu(
            BLEU(lowercase=lowercase, trg_lang=language, force=True)
        ),
    ),
    "tokenised-bleu": Kind(
        "tokenised BLEU",
        "tokens",
        lambda lowercase, _: Sacrebleu(BLEU(lowercase=lowercase, tokenize="none", force=True)),
    ),
    "chrf": Kind("chrF", "words", lambda lowercase, _: Sacrebleu(CHRF(lowercase=lowercase))),
    "chrf++": Kind(
        "chrF++",
        "words",
        lambda lowercase, _: Sacrebleu(CHRF(lowercase=lowercase, word_order=2)),
    ),
    "ter": Kind("TER", "words", lambda *_: Sacrebleu(TER())),
}
DEFAULT = ("bleu", "tokenised-bleu", "chrf")


class Scores(NamedTuple):
    """One metric of several outputs.

    Attributes:
        raw: whether all references are raw text, or tokens that are meant to be tokens.
        statistics, values: of each output.
    """

    label: str
    raw: bool
    signature: str
    scorer: Scorer
    statistics: dict[Path, np.ndarray]
    values: dict[Path, float]

    @property
    def title(self) -> str:
        return self.label + ("" if self.raw else MARK)


def score(
    names: Sequence[str] | None, texts: Mapping[Path, Texts], lowercase: bool, language: str
) -> dict[str, Scores]:
    """Scores of several outputs by each metric; without names, those of DEFAULT that can be had.

    Raises:
        UsageError: there is no such metric, or the tokens that it compares are not known.
    """
    known = all(text.tokens for text in texts.values())
    names = names or [name for name in DEFAULT if known or METRICS[name].form == "words"]
    for name in names:
        _check(name, known)
    return {name: _score(METRICS[name], texts, lowercase, language) for name in names}


def _check(name: str, known: bool) -> None:
    if name not in METRICS:
        raise UsageError(f"there is no metric {name!r}; give some of {', '.join(METRICS)}")
    if METRICS[name].form == "tokens" and not known:
        raise UsageError(
            f"{name} compares tokens, which are not known of all outputs and their reference; give "
            "tokenised text as --reference, or leave it out"
        )


def _score(kind: Kind, texts: Mapping[Path, Texts], lowercase: bool, language: str) -> Scores:
    try:
        scorer = kind.make(lowercase, language)
    except RuntimeError as error:  # a tokeniser for Japanese or Korean is not installed
        raise UsageError(
            f"{kind.label} cannot be computed: {' '.join(str(error).split())}"
        ) from error
    statistics = {key: scorer.statistics(*getattr(text, kind.form)) for key, text in texts.items()}
    values = {key: scorer.value(sums.sum(0)) for key, sums in statistics.items()}
    raw = kind.form == "tokens" or all(text.raw for text in texts.values())
    return Scores(kind.label, raw, scorer.signature(), scorer, statistics, values)


def notes(scores: Iterable[Scores], texts: Mapping[Path, Texts], language: str) -> list[str]:
    """What is to be said below scores: signatures, and what makes them hard to compare."""
    scores = list(scores)
    said = [f"{each.title}: {each.signature}" for each in scores]
    if not all(each.raw for each in scores):
        said.append(
            f"{MARK} of a tokenised reference that was detokenised: not to be compared with "
            "published scores, which are of raw text"
        )
    if any(text.detokenised for text in texts.values()):
        said.append(f"detokenised by sacremoses {sacremoses.__version__} for {language}")
    if any(_lost_case(text) for text in texts.values()) and not all(
        "case:lc" in each.signature for each in scores
    ):
        said.append("the translations have no capitals and the reference has: add --lowercase")
    return said


def _lost_case(text: Texts) -> bool:
    hypotheses, references = map("".join, text.words)
    return hypotheses == hypotheses.lower() and references != references.lower()
