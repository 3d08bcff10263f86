"""Scores of translations, from what `fairseq-generate` printed."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.metrics.base import Metric

from fairseq_ext.errors import UsageError

# How each kind of subword marks a word that it splits.
SUBWORD_MARKS = {"subword-nmt": r"@@( |$)", "sentencepiece": "\u2581"}

# The text is tokenised already; `force` silences the warning about just that.
METRICS: dict[str, Callable[[], Metric]] = {
    "BLEU": lambda: BLEU(tokenize="none", force=True),
    "chrF": CHRF,
}


class Score(NamedTuple):
    """A score from 0 to 100, and the signature that says how it was computed."""

    name: str
    value: float
    signature: str


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 text; raises UsageError if it cannot be read."""
    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read ({error}); give a UTF-8 text file") from error
    return text.removesuffix("\n").split("\n") if text else []


def read_hypotheses(path: Path, kind: str = "H") -> list[str]:
    """The best hypothesis of each sentence, in corpus order, from the output of fairseq-generate.

    ``kind`` "H" is tokenised text, "D" is detokenised text. Raises UsageError if a sentence is
    missing or still split into subwords.
    """
    hypotheses: dict[int, str] = {}
    for line in read_lines(path):
        if found := re.match(rf"{kind}-(\d+)\t[^\t]*\t", line):
            hypotheses.setdefault(int(found[1]), line[found.end() :])
    missing = set(range(max(hypotheses, default=0) + 1)) - hypotheses.keys()
    if missing:
        raise UsageError(
            f"{path} has no {kind}- line for sentence {min(missing)} ({len(missing)} missing in "
            "all); give the complete output of fairseq-generate, made without --quiet"
        )
    texts = [hypotheses[index] for index in sorted(hypotheses)]
    _refuse_subwords(path, texts)
    return texts


def _refuse_subwords(path: Path, texts: Sequence[str]) -> None:
    for kind, mark in SUBWORD_MARKS.items():
        if found := next((text for text in texts if re.search(mark, text)), None):
            raise UsageError(
                f"{path} has words split by {kind} ({found[:60]!r}), which would be scored as "
                "words; generate again with --remove-bpe"
            )


def score(hypotheses: Sequence[str], references: Sequence[str]) -> list[Score]:
    """Corpus scores of tokenised text, one for each of METRICS.

    Raises UsageError if there is nothing to compare or the numbers of sentences differ.
    """
    if len(hypotheses) != len(references) or not references:
        raise UsageError(
            f"there are {len(hypotheses)} translations and {len(references)} references; give the "
            "reference of the same test set, one sentence a line"
        )
    metrics = {name: make() for name, make in METRICS.items()}
    return [
        Score(
            name,
            metric.corpus_score(list(hypotheses), [list(references)]).score,
            metric.get_signature().format(),
        )
        for name, metric in metrics.items()
    ]
