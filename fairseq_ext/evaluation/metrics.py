"""Corpus scores of translations, each with the signature that says how it was computed."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import sacremoses
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Metric

from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.comet import MODEL, Comet
from fairseq_ext.evaluation.rouge import KINDS, Rouge
from fairseq_ext.evaluation.significance import LEVEL, RESAMPLES, SEED, confidence
from fairseq_ext.evaluation.translation import Texts

MARK = "†"  # behind the name of a score on a reference that is not raw text


class Scorer(Protocol):
    """A score that is a function of sums over sentences, so that sentences can be resampled."""

    @property
    def statistics(self) -> Callable[..., np.ndarray]:
        """Numbers to be summed, [sentences, numbers]: of hypotheses, references, maybe sources."""

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


class CompoundSplit(Sacrebleu):
    """Words parted at hyphens first, so that a compound that is half right counts half.

    As the usual script does it: of hyphens one letter apart only every other one. What a tokeniser
    parted already is put together before, where that script would part its marks again.
    """

    MARK = "##AT##-##AT##"
    PARTED = re.compile(rf" (?:@-@|{MARK}) ")
    HYPHEN = re.compile(r"(\S)-(\S)", re.ASCII)

    def statistics(self, hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
        return super().statistics(*(list(map(self.split, x)) for x in (hypotheses, references)))

    def split(self, line: str) -> str:
        return self.HYPHEN.sub(rf"\1 {self.MARK} \2", self.PARTED.sub("-", line))

    def signature(self) -> str:
        return f"{super().signature()}|compounds:split"


class Kind(NamedTuple):
    """A metric that can be asked for.

    Attributes:
        form: the part of `Texts` that it compares.
        make: gives the scorer, from whether to ignore case, the language and the model of COMET.
        detached: whether tokenised text has the same score.
    """

    label: str
    form: str
    make: Callable[..., Scorer]
    detached: bool = False


def _rouge(kind: str, stem: bool) -> Kind:
    label = f"ROUGE-{kind.upper()}" + ("" if stem else " unstemmed")
    return Kind(label, "words", lambda *_: Rouge(kind, stem), detached=True)


def _of_tokens(scorer: type[Sacrebleu]) -> Callable[..., Scorer]:
    return lambda lowercase, *_: scorer(BLEU(lowercase=lowercase, tokenize="none", force=True))


# `force` silences a warning about tokenised text. TER ignores case in any case.
METRICS = {
    "bleu": Kind(
        "BLEU",
        "words",
        lambda lowercase, language, *_: Sacrebleu(
            BLEU(lowercase=lowercase, trg_lang=language, force=True)
        ),
    ),
    "tokenised-bleu": Kind("tokenised BLEU", "tokens", _of_tokens(Sacrebleu)),
    "compound-split-bleu": Kind("compound-split BLEU", "tokens", _of_tokens(CompoundSplit)),
    "chrf": Kind("chrF", "words", lambda lowercase, *_: Sacrebleu(CHRF(lowercase=lowercase))),
    "chrf++": Kind(
        "chrF++", "words", lambda lowercase, *_: Sacrebleu(CHRF(lowercase=lowercase, word_order=2))
    ),
    "ter": Kind("TER", "words", lambda *_: Sacrebleu(TER())),
    **{f"rouge-{kind}": _rouge(kind, stem=True) for kind in KINDS},
    **{f"rouge-{kind}-unstemmed": _rouge(kind, stem=False) for kind in KINDS},
    "comet": Kind("COMET", "sourced", lambda _, __, model=MODEL: Comet(model)),
}
GROUPS = {f"rouge{end}": [f"rouge-{kind}{end}" for kind in KINDS] for end in ("", "-unstemmed")}
DEFAULT = ("bleu", "tokenised-bleu", "chrf")


class Scores(NamedTuple):
    """One metric of several outputs.

    Attributes:
        raw: whether all references are raw text, or tokens that are meant to be tokens.
        statistics, values: of each output.
        intervals: of confidence, of each output, if they were asked for.
    """

    label: str
    raw: bool
    signature: str
    scorer: Scorer
    statistics: dict[Path, np.ndarray]
    values: dict[Path, float]
    intervals: dict[Path, tuple[float, float]] | None = None

    @property
    def title(self) -> str:
        return self.label + ("" if self.raw else MARK)


def expand(names: Iterable[str]) -> list[str]:
    """Names of groups replaced by those of their metrics."""
    return list(dict.fromkeys(each for name in names for each in GROUPS.get(name, [name])))


def score(
    names: Sequence[str] | None,
    texts: Mapping[Path, Texts],
    lowercase: bool,
    language: str,
    model: str = MODEL,
) -> dict[str, Scores]:
    """Scores of several outputs by each metric; without names, those of DEFAULT that can be had.

    ``model`` is that of COMET.

    Raises:
        UsageError: there is no such metric, or what it compares is not known.
    """
    names = expand(names or [name for name in DEFAULT if _known(name, texts)])
    for name in names:
        _check(name, texts)
    scorers = {name: _made(METRICS[name], lowercase, language, model) for name in names}
    return {name: _score(METRICS[name], scorer, texts) for name, scorer in scorers.items()}


def _known(name: str, texts: Mapping[Path, Texts]) -> bool:
    return all(getattr(text, METRICS[name].form) for text in texts.values())


UNKNOWN = {
    "tokens": "tokens, which are not known of all outputs and their reference; give tokenised text "
    "as --reference",
    "sourced": "source sentences too, which are not known of all outputs; give them with --source",
}


def _check(name: str, texts: Mapping[Path, Texts]) -> None:
    if name not in METRICS:
        raise UsageError(f"there is no metric {name!r}; give some of {', '.join(known_names())}")
    if not _known(name, texts):
        raise UsageError(f"{name} compares {UNKNOWN[METRICS[name].form]}, or leave it out")


def known_names() -> list[str]:
    return [*METRICS, *GROUPS]


def _made(kind: Kind, *settings: object) -> Scorer:
    try:
        return kind.make(*settings)
    except RuntimeError as error:  # a tokeniser for Japanese or Korean is not installed
        raise UsageError(
            f"{kind.label} cannot be computed: {' '.join(str(error).split())}"
        ) from error


def _score(kind: Kind, scorer: Scorer, texts: Mapping[Path, Texts]) -> Scores:
    statistics = {key: scorer.statistics(*getattr(text, kind.form)) for key, text in texts.items()}
    values = {key: scorer.value(sums.sum(0)) for key, sums in statistics.items()}
    raw = kind.detached or all(text.is_raw(kind.form) for text in texts.values())
    return Scores(kind.label, raw, scorer.signature(), scorer, statistics, values)


def with_intervals(scores: Scores) -> Scores:
    """Scores with the interval of each."""
    found = {key: confidence(x, scores.scorer.value) for key, x in scores.statistics.items()}
    signature = f"{scores.signature}|bs:{RESAMPLES}|seed:{SEED}"
    return scores._replace(intervals=found, signature=signature)


def notes(scores: Iterable[Scores], texts: Mapping[Path, Texts], language: str) -> list[str]:
    """What is to be said below scores: signatures, and what makes them hard to compare."""
    scores = list(scores)
    said = [f"{each.title}: {each.signature}" for each in scores]
    if any(each.intervals for each in scores):
        drawn = f"{RESAMPLES} bootstrap resamples of the sentences, seed {SEED}"
        said.append(f"[ ]: {LEVEL:.0%} interval, from {drawn}")
    if not all(each.raw for each in scores):
        said.append(
            f"{MARK} of a tokenised reference or source that was detokenised: not to be compared "
            "with published scores, which are of raw text"
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
