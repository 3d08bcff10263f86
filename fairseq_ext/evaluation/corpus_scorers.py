"""Scorers: corpus scores that are functions of sums over sentences, which can be resampled.

The method `statistics` of a scorer returns numbers to sum, [sentences, numbers], float, of
hypotheses and references, and of source sentences too if the score needs them. `value` returns the
score, from 0 to 100, of statistics summed over sentences, [numbers]. `signature`, to be called
after `statistics`, returns how the score is computed.
"""

import importlib
import re
from collections.abc import Sequence
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
from sacrebleu.metrics.base import Metric

from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.translation import ESCAPED

KINDS = {"1": "rouge1", "2": "rouge2", "l": "rougeL"}  # our name -> that of rouge-score
MODEL = "Unbabel/wmt22-comet-da"
PACKAGE = "unbabel-comet"


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


class Rouge(SentenceMean):
    """Mean ROUGE F1 of sentences, computed by rouge-score, by Porter's stems or by words.

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


class Comet(SentenceMean):
    """COMET score x 100, by a checkpoint or by a published model.

    Args:
        model: the path of a .ckpt, or the name of a published model.

    Raises:
        UsageError: COMET is not installed, there is no such model, or its file could run code.
    """

    def __init__(self, model: str = MODEL) -> None:
        from fairseq_ext import safe_loading  # slow, as torch is

        comet = _import_comet()
        checkpoint = _find_checkpoint(comet, model)
        # COMET unpickles the file; a file that passes here holds nothing that runs.
        safe_loading.load(str(checkpoint), map_location="meta")
        self.name = model
        self.model = comet.load_from_checkpoint(str(checkpoint))

    def score_sentences(self, *texts: Sequence[str]) -> Sequence[float]:
        """Return the model's score of each hypothesis, given reference and source."""
        import torch

        samples = [{"mt": mt, "ref": ref, "src": src} for mt, ref, src in zip(*texts, strict=True)]
        gpus = int(torch.cuda.is_available())
        return self.model.predict(samples, batch_size=16, gpus=gpus).scores

    def signature(self) -> str:
        """Return the model and COMET's version."""
        try:
            number = version(PACKAGE)
        except PackageNotFoundError:  # a copy of its source on the path
            number = "unknown"
        return f"nrefs:1|case:mixed|model:{self.name}|scale:100|version:{number}"


Scorer = Sacrebleu | Rouge | Comet


def _import_comet() -> ModuleType:
    try:
        return importlib.import_module("comet")
    except ImportError as error:
        raise UsageError(
            f"comet needs the package {PACKAGE}, which cannot be imported ({error}); install it "
            f"with pip install {PACKAGE}, or leave comet out"
        ) from error


def _find_checkpoint(comet: ModuleType, model: str) -> Path:
    if model.endswith(".ckpt"):
        if not Path(model).is_file():
            raise UsageError(f"--comet-model is {model}, and there is no such file; correct it")
        return Path(model)
    try:
        return Path(comet.download_model(model))
    except KeyError as error:
        raise UsageError(
            f"--comet-model is {model}, which is not known to COMET or cannot be downloaded; give "
            f"the name of a model as {MODEL}, or the path of its .ckpt"
        ) from error
