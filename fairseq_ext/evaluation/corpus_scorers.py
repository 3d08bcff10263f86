"""Scorers: corpus scores that are functions of sums over sentences, which can be resampled.

The method `statistics` of a scorer returns numbers to sum, [sentences, numbers], float, of
hypotheses and references, and of source sentences too if the score needs them. `value` returns the
score, from 0 to 100, of statistics summed over sentences, [numbers]. `signature`, to be called
after `statistics`, returns how the score is computed.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace

import numpy as np
from sacrebleu.metrics.base import Metric

from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.translation import ESCAPED
from fairseq_ext.extras import import_extra
from fairseq_ext.files import batched, write_lines

KINDS = {"1": "rouge1", "2": "rouge2", "l": "rougeL"}  # our name -> that of rouge-score
COMPARED = re.compile("[a-z0-9]")
MODEL = "Unbabel/wmt22-comet-da"
PACKAGE = "unbabel-comet"
BATCH = 1000  # sentences


class Sacrebleu:
    """A metric of sacrebleu, by the methods that its own tests of significance use."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric

    def statistics(self, hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
        """Return the metric's own numbers, such as counts of n-grams, [sentences, numbers]."""
        extract = self.metric._extract_corpus_statistics  # which keeps all n-grams of references
        batches = zip(batched(hypotheses, BATCH), batched(references, BATCH), strict=True)
        return np.concatenate([np.array(extract(h, [r])) for h, r in batches])

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


def require_rouge() -> tuple[ModuleType, ModuleType]:
    """Return the modules of rouge-score that compute and tokenise, or raise UsageError."""
    names = ("rouge_score.rouge_scorer", "rouge_score.tokenize")  # slow
    scorer, tokenize = (import_extra(name, "rouge", "ROUGE") for name in names)
    return scorer, tokenize


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
        rouge_scorer, tokenize = require_rouge()
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

    @staticmethod
    def describe_empty(references: Sequence[str]) -> str:
        """Return how many references have nothing that is compared, or "" if all have something."""
        empty = sum(not COMPARED.search(ESCAPED.sub(" ", line).lower()) for line in references)
        what = "no letter a-z and no digit, which is all that ROUGE reads"
        return f"{empty} of {len(references)} references have {what}" if empty else ""

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
    """COMET score x 100, by the command `comet-score`, which lives in an environment of its own.

    Args:
        model: the path of a .ckpt, or the name of a published model.

    Raises:
        UsageError: there is no such command or checkpoint, or the checkpoint could run code.
    """

    def __init__(self, model: str = MODEL) -> None:
        self.program, self.name = _find_comet(), model
        if model.endswith(".ckpt"):
            _check_checkpoint(model)
            model = str(Path(model).resolve())
        self.model = model

    def score_sentences(self, *texts: Sequence[str]) -> Sequence[float]:
        """Return the model's score of each hypothesis, given reference and source."""
        with TemporaryDirectory() as folder:
            for name, lines in zip(("mt", "ref", "src"), texts, strict=True):
                write_lines(Path(folder, name), lines)
            self._run(folder)
            scores = json.loads(Path(folder, "scores.json").read_text("utf-8"))
        return [sentence["COMET"] for sentence in scores["mt"]]

    def _run(self, folder: str) -> None:
        import torch  # slow

        gpus = int(torch.cuda.is_available())
        flags = ["--quiet", f"--model={self.model}", f"--gpus={gpus}"]
        files = ["-s", "src", "-t", "mt", "-r", "ref", "--to_json", "scores.json"]
        # without the packages of this environment
        theirs = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
        done = subprocess.run(
            [self.program, *files, *flags],
            cwd=folder,
            env=theirs,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            reason = (done.stderr.strip() or "it says nothing").rpartition("\n")[2]
            raise UsageError(
                f"{self.program} cannot score with --comet-model {self.name} ({reason}); give the "
                f"name of a model as {MODEL}, or the path of its .ckpt, or leave comet out"
            )

    def signature(self) -> str:
        """Return the model and COMET's version."""
        version = _find_version(self.program)
        return f"nrefs:1|case:mixed|model:{self.name}|scale:100|version:{version}"


Scorer = Sacrebleu | Rouge | Comet


def _find_comet() -> str:
    program = shutil.which("comet-score")
    if program is None:
        raise UsageError(
            "comet needs the command comet-score, which is not on PATH; install it in an "
            f"environment of its own, as by pipx install {PACKAGE} and pipx inject {PACKAGE} "
            "'setuptools<81', or leave comet out"
        )
    return program


def _check_checkpoint(model: str) -> None:
    """Raise UsageError if a checkpoint does not exist, or could run code: COMET unpickles it."""
    from fairseq_ext import safe_loading  # slow, as torch is

    if not Path(model).is_file():
        raise UsageError(f"--comet-model is {model}, and there is no such file; correct it")
    safe_loading.load(model, map_location="meta")


def _find_version(program: str) -> str:
    """Return the version of COMET that a command belongs to, by the interpreter that it names."""
    with Path(program).open("rb") as script:
        start = script.readline().decode("utf-8", "replace")
    ask = f"from importlib.metadata import version; print(version({PACKAGE!r}))"
    command = [*start.removeprefix("#!").split(), "-c", ask]
    if not start.startswith("#!"):
        return "unknown"
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"
