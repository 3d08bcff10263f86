"""Corpus scores of translations, each with a signature that tells how it was computed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import sacremoses
from sacrebleu.metrics import BLEU, CHRF, TER

from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation import corpus_scorers
from fairseq_ext.evaluation.corpus_scorers import KINDS, MODEL, CompoundSplit, Sacrebleu, Scorer
from fairseq_ext.evaluation.significance import LEVEL, RESAMPLES, SEED, confidence_interval
from fairseq_ext.evaluation.translation import Texts
from fairseq_ext.suggestions import suggest

MARK = "†"  # behind the name of a score on a reference that is not raw text


class Metric(NamedTuple):
    """A metric that can be asked for.

    Attributes:
        label: its name in tables.
        form: the attribute of `Texts` that it compares.
        make: builds the scorer from whether to ignore case, the language, and COMET's model.
        tokenisation_free: whether tokenised text has the same score as raw text.
    """

    label: str
    form: str
    make: Callable[..., Scorer]
    tokenisation_free: bool = False


def _rouge(kind: str, stem: bool) -> Metric:
    label = f"ROUGE-{kind.upper()}" + ("" if stem else " unstemmed")
    return Metric(
        label, "words", lambda *_: corpus_scorers.Rouge(kind, stem), tokenisation_free=True
    )


def _bleu_of_words(lowercase: bool, language: str, *_: str) -> Scorer:
    return Sacrebleu(BLEU(lowercase=lowercase, trg_lang=language, force=True))


def _bleu_of_tokens(scorer: type[Sacrebleu]) -> Callable[..., Scorer]:
    return lambda lowercase, *_: scorer(BLEU(lowercase=lowercase, tokenize="none", force=True))


def _chrf(word_order: int) -> Callable[..., Scorer]:
    return lambda lowercase, *_: Sacrebleu(CHRF(lowercase=lowercase, word_order=word_order))


# `force` silences a warning about tokenised text. TER always ignores case.
METRICS = {
    "bleu": Metric("BLEU", "words", _bleu_of_words),
    "tokenised-bleu": Metric("tokenised BLEU", "tokens", _bleu_of_tokens(Sacrebleu)),
    "compound-split-bleu": Metric("compound-split BLEU", "tokens", _bleu_of_tokens(CompoundSplit)),
    "chrf": Metric("chrF", "words", _chrf(word_order=0)),
    "chrf++": Metric("chrF++", "words", _chrf(word_order=2)),
    "ter": Metric("TER", "words", lambda *_: Sacrebleu(TER())),
    **{f"rouge-{kind}": _rouge(kind, stem=True) for kind in KINDS},
    **{f"rouge-{kind}-unstemmed": _rouge(kind, stem=False) for kind in KINDS},
    "comet": Metric("COMET", "sourced", lambda _, __, model=MODEL: corpus_scorers.Comet(model)),
}
GROUPS = {f"rouge{end}": [f"rouge-{kind}{end}" for kind in KINDS] for end in ("", "-unstemmed")}
NAMES = (*METRICS, *GROUPS)
DEFAULTS = ("bleu", "tokenised-bleu", "chrf")

# Forms of `Texts` that may be unknown, and how to supply them.
MISSING = {
    "tokens": "tokens, which are not known of all outputs and their reference; give tokenised text "
    "as --reference",
    "sourced": "source sentences too, which are not known of all outputs; give them with --source",
}


class Scores(NamedTuple):
    """Scores of several outputs by one metric.

    Attributes:
        label: the metric's name in tables.
        raw: whether all references are raw text, or tokens that are meant to be tokens.
        signature: how they were computed.
        scorer: what computed them.
        statistics: by output, numbers of each sentence, [sentences, numbers].
        values: by output, its score.
        intervals: by output, its confidence interval, if asked for.
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
        """Name of the metric, with a mark if a reference is not raw text."""
        return self.label + ("" if self.raw else MARK)


def expand_groups(names: Iterable[str]) -> list[str]:
    """Return names of metrics, with each name of a group replaced by its metrics."""
    return list(dict.fromkeys(each for name in names for each in GROUPS.get(name, [name])))


def score_outputs(
    names: Sequence[str] | None,
    texts: Mapping[Path, Texts],
    lowercase: bool,
    language: str,
    comet_model: str = MODEL,
) -> dict[str, Scores]:
    """Return the scores of several outputs by each metric.

    Args:
        names: of metrics or groups; without names, the metrics of DEFAULTS whose texts are known.
        texts: by output, what is compared.
        lowercase: whether to ignore case.
        language: the target language, a code such as "de".
        comet_model: see `Comet`.

    Raises:
        UsageError: there is no such metric, or a text that it compares is not known.
    """
    names = expand_groups(names or [name for name in DEFAULTS if _has_texts(name, texts)])
    for name in names:
        if name not in METRICS:
            advice = suggest(name, NAMES, f"give some of {', '.join(NAMES)}")
            raise UsageError(f"there is no metric {name!r}; {advice}")
        if not _has_texts(name, texts):
            raise UsageError(f"{name} compares {MISSING[METRICS[name].form]}, or leave it out")
    settings = lowercase, language, comet_model
    scorers = {name: _make_scorer(METRICS[name], *settings) for name in names}
    return {name: _score(METRICS[name], scorer, texts) for name, scorer in scorers.items()}


def _has_texts(name: str, texts: Mapping[Path, Texts]) -> bool:
    return all(getattr(text, METRICS[name].form) for text in texts.values())


def _make_scorer(metric: Metric, *settings: object) -> Scorer:
    try:
        return metric.make(*settings)
    except RuntimeError as error:  # a tokeniser for Japanese or Korean is not installed
        reason = " ".join(str(error).split())
        raise UsageError(f"{metric.label} cannot be computed: {reason}") from error


def _score(metric: Metric, scorer: Scorer, texts: Mapping[Path, Texts]) -> Scores:
    form = metric.form
    statistics = {path: scorer.statistics(*getattr(text, form)) for path, text in texts.items()}
    values = {path: scorer.value(numbers.sum(0)) for path, numbers in statistics.items()}
    raw = metric.tokenisation_free or all(text.is_raw(form) for text in texts.values())
    return Scores(metric.label, raw, scorer.signature(), scorer, statistics, values)


def add_intervals(scores: Scores) -> Scores:
    """Return scores with a confidence interval for each."""
    value = scores.scorer.value
    intervals = {path: confidence_interval(x, value) for path, x in scores.statistics.items()}
    signature = f"{scores.signature}|bs:{RESAMPLES}|seed:{SEED}"
    return scores._replace(intervals=intervals, signature=signature)


def list_notes(
    scores: Iterable[Scores],
    texts: Mapping[Path, Texts],
    language: str,
    asked: Sequence[str] | None = None,
) -> list[str]:
    """Return the notes below scores: signatures, and what makes them hard to compare.

    Args:
        scores: those of `score_outputs`.
        texts: what they compare.
        language: the target language.
        asked: names of metrics that were asked for; without them, missing defaults are explained.
    """
    scores = list(scores)
    notes = [f"{each.title}: {each.signature}" for each in scores]
    for metric in (METRICS[name] for name in DEFAULTS if not asked):
        if metric.label not in [each.label for each in scores]:
            notes.append(f"no {metric.label}: it compares {MISSING[metric.form]}")
    if any(each.intervals for each in scores):
        sampled = f"{RESAMPLES} bootstrap resamples of the sentences, seed {SEED}"
        notes.append(f"[ ]: {LEVEL:.0%} interval, from {sampled}")
    if not all(each.raw for each in scores):
        notes.append(
            f"{MARK} of a tokenised reference or source that was detokenised: not to be compared "
            "with published scores, which are of raw text"
        )
    if any(text.detokenised for text in texts.values()):
        notes.append(f"detokenised by sacremoses {sacremoses.__version__} for {language}")
    case_counts = not all("case:lc" in each.signature for each in scores)
    if case_counts and any(_lost_case(text) for text in texts.values()):
        notes.append("the translations have no capitals and the reference has: add --lowercase")
    if any(isinstance(each.scorer, corpus_scorers.Rouge) for each in scores):
        empty = {corpus_scorers.Rouge.describe_empty(t.words.references) for t in texts.values()}
        notes += [f"warning: {each}" for each in sorted(filter(None, empty))]
    return notes


def _lost_case(text: Texts) -> bool:
    hypotheses, references = map("".join, text.words)
    return hypotheses == hypotheses.lower() and references != references.lower()
