"""Criterions of tokens and spans, and the metrics of SQuAD.

"sequence_tagging", "span_extraction" and "replaced_token_detection", of ELECTRA's discriminator.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from sklearn.metrics import f1_score
from torch import Tensor

from fairseq_ext.attention.options import WEIGHT, option
from fairseq_ext.criterions.labelled import LabelledCriterion, Metric, log_over_all
from fairseq_ext.criterions.logging_outputs import (
    Log,
    Sample,
    log_entry,
    log_percentage,
    log_sums,
    sum_entries,
)
from fairseq_ext.data.rows import IGNORED
from fairseq_ext.data.tags import PLAIN, Tags, count_matches
from fairseq_ext.errors import UsageError
from fairseq_ext.models.config import (
    check_requirements,
    help_from_docstring,
    list_requirements,
    read_facts,
)
from fairseq_ext.tasks.plain_text import REPLACED

ARTICLES = re.compile(r"\b(a|an|the)\b")
WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


@register_criterion("sequence_tagging", dataclass=FairseqDataclass)
class SequenceTagging(LabelledCriterion):
    """Cross-entropy over words, in bits; accuracy and F1 in evaluation.

    "f1" is of entities (kind and both ends right), "token_f1" of the tags that are not O. Tags
    without entities have an accuracy alone.
    """

    name = "sequence_tagging"

    def sample_size(self, sample: Sample) -> int:
        """Return the number of tagged words, counted on the CPU: a GPU would have to be awaited."""
        rows = [row for item in sample["items"] for row in item.target]
        return max(1, sum(int((row != IGNORED).sum()) for row in rows))

    def loss(self, scores: Tensor, sample: Sample) -> Tensor:
        """Return the cross-entropy of tagged words, summed over the batch."""
        return F.cross_entropy(
            scores.transpose(1, 2), sample["target"], ignore_index=IGNORED, reduction="sum"
        )

    def count(self, scores: Tensor, sample: Sample, training: bool) -> Log:
        """Return the tags of all words by number and the counts of entities, in evaluation."""
        if training:
            return {}
        predicted = self.task.predict_tags(scores, sample["items"])
        right = [item.example.values["tags"] for item in sample["items"]]
        number = {tag: place for place, tag in enumerate(self.task.labels)}
        entities = self.task.cfg.tag_scheme != PLAIN
        return {
            "predicted": [number.get(tag, -1) for tags in predicted for tag in tags],
            "right": [number[tag] for tags in right for tag in tags],
            **(match_entities(predicted, right) if entities else {}),
        }

    @classmethod
    def log_metrics(cls, logs: list[Log]) -> None:
        """Log accuracy, F1 of tags, and precision, recall and F1 of entities, in evaluation."""
        entities = any("hits" in log for log in logs)
        functions: dict[str, Metric] = {"accuracy": accuracy, "token_f1": token_f1}
        if log_over_all(logs, functions if entities else {"accuracy": accuracy}) and entities:
            log_sums(logs, ("found", "marked", "hits"))
            log_percentage("precision", "hits", "found")
            log_percentage("recall", "hits", "marked")
            log_percentage("f1", "hits", "found", "marked")


def accuracy(predicted: np.ndarray, right: np.ndarray) -> float:
    """Return the share of right tags, in per cent."""
    return 100 * (predicted == right).mean()


def token_f1(predicted: np.ndarray, right: np.ndarray) -> float:
    """Return F1 in per cent, over the words that have or should have another tag than O (0)."""
    marks = range(1, max(*predicted, *right, 1) + 1)
    return 100 * f1_score(right, predicted, labels=marks, average="micro", zero_division=0.0)


def match_entities(predicted: Sequence[Tags], right: Sequence[Tags]) -> Log:
    """Return how many entities are the same, were found, and are marked, in all sentences."""
    counts = np.sum([count_matches(*each) for each in zip(predicted, right, strict=True)], 0)
    return dict(zip(("hits", "found", "marked"), counts.tolist(), strict=True))


@register_criterion("span_extraction", dataclass=FairseqDataclass)
class SpanExtraction(LabelledCriterion):
    """The loss of answers as spans, in bits; exact match and F1 in evaluation.

    It is the mean of the cross-entropies of first and last token, for windows that have an answer,
    plus the logistic loss of having one. Both are sums over windows.
    """

    name = "span_extraction"

    def sample_size(self, sample: Sample) -> int:
        """Return the number of windows."""
        return len(sample["target"])

    def loss(self, scores: Tensor, sample: Sample) -> Tensor:
        """Return the loss, summed over windows."""
        places, answered = sample["target"][:, :2], sample["target"][:, 2]
        padding = sample["net_input"]["src_tokens"].eq(self.padding_idx).unsqueeze(-1)
        tokens = scores[..., :2].masked_fill(padding, -1e4)
        spans = F.cross_entropy(tokens, places, ignore_index=IGNORED, reduction="sum") / 2
        return spans + F.binary_cross_entropy_with_logits(
            scores[:, 0, 2], answered.float(), reduction="sum"
        )

    def count(self, scores: Tensor, sample: Sample, training: bool) -> Log:
        """Return exact match and F1 of SQuAD, summed over questions, in evaluation."""
        if training:
            return {}
        answers = self.task.read_answers(scores, sample)
        exact = overlap = 0.0
        for item, answer in zip(sample["items"], answers, strict=True):
            references = [each["text"] for each in item.example.values["answers"]] or [""]
            matches, f1 = score_answer(answer["answer"], references)
            exact, overlap = exact + 100 * matches, overlap + 100 * f1
        return {"exact": exact, "overlap": overlap}

    @classmethod
    def log_metrics(cls, logs: list[Log]) -> None:
        """Log exact match and F1, in evaluation."""
        if any("exact" in log for log in logs):
            questions = sum_entries(logs, "nsentences")
            for name, entry in {"exact_match": "exact", "f1": "overlap"}.items():
                value = sum_entries(logs, entry) / questions
                metrics.log_scalar(name, value, questions, round=2)


@dataclass
@help_from_docstring
class ReplacedTokenDetectionConfig(FairseqDataclass):
    """The options of replaced-token detection.

    Attributes:
        discriminator_weight: weight of the detection, against the loss of a token of the learned
            generator (ELECTRA's lambda; its code takes means of both losses, which is 7.5 here with
            --replace-prob 0.15)
    """

    discriminator_weight: float = option(50.0, WEIGHT, needs=("generator_size",))


@register_criterion(REPLACED, dataclass=ReplacedTokenDetectionConfig)
class ReplacedTokenDetection(FairseqCriterion):
    """The logistic loss over all real tokens: was each replaced? Logs bits, accuracy and F1.

    With a learned generator the loss is L_MLM + lambda L_Disc, both sums over tokens (Clark et al.
    2020, Section 2). A sampled token that is the original counts as original, and samples have no
    gradient. "loss" in the log is that of the detection.

    Args:
        task: replaces tokens, or masks some for a generator.
        discriminator_weight: lambda.

    Raises:
        UsageError: the task replaces nothing, or lambda is none or has no effect.
    """

    def __init__(self, task: Any, discriminator_weight: float = 50.0) -> None:
        super().__init__(task)
        self.weight = discriminator_weight
        if not hasattr(task.cfg, "replace_prob"):
            raise UsageError(f"--criterion {REPLACED} needs the text of --task {REPLACED}; give it")
        size = getattr(task.cfg, "generator_size", 0.0)
        self.generates = size > 0
        values = {"discriminator_weight": self.weight, "generator_size": size}
        needs = list_requirements(read_facts(ReplacedTokenDetectionConfig))
        check_requirements(values, {"discriminator_weight": 50.0}, {"generator_size": 0.0}, needs)

    def forward(self, model: Any, sample: Sample, reduce: bool = True) -> tuple[Tensor, Any, Log]:
        """Return loss, sample size and logging output."""
        real, target = sample["net_input"]["src_tokens"].ne(self.padding_idx), sample["target"]
        hidden = {"hidden": target} if self.generates else {}
        output = model(**sample["net_input"], classification_head_name=REPLACED, **hidden)
        if self.generates:
            masked = target.ne(self.padding_idx)
            generator_loss, more = self._compare(output[1]["generator"], target[masked])
            target = (masked & output[1]["replaced"].ne(target)).long()
        scores, replaced = output[0].squeeze(-1)[real].float(), target[real]
        loss = F.binary_cross_entropy_with_logits(scores, replaced.float(), reduction="sum")
        size, predicted = real.sum(), scores > 0
        counts = {
            "correct": (predicted == replaced).sum(),
            "hits": (predicted & (replaced == 1)).sum(),
            "found": predicted.sum(),
            "replaced": replaced.sum(),
        }
        log = log_entry(loss, sample, size) | counts
        if not self.generates:
            return loss, size, log
        return generator_loss + self.weight * loss, size, log | more

    def _compare(self, scores: Tensor, hidden: Tensor) -> tuple[Tensor, Log]:
        """Return the loss of scores [n, V] of hidden tokens [n], and what is logged."""
        loss = F.cross_entropy(scores.float(), hidden, reduction="sum")
        hits = scores.argmax(-1).eq(hidden).sum()
        log = {"generator_loss": loss.detach(), "generator_hits": hits, "masked": len(hidden)}
        return loss, log

    @staticmethod
    def reduce_metrics(logging_outputs: list[Log]) -> None:
        """Log the loss in bits, accuracy and F1 in per cent; the same of the generator."""
        size = sum_entries(logging_outputs, "sample_size")
        loss = sum_entries(logging_outputs, "loss") / size / math.log(2)
        metrics.log_scalar("loss", loss, size, round=5)
        log_sums(logging_outputs, ("correct", "hits", "found", "replaced"))
        metrics.log_scalar_sum("_tokens", size)
        log_percentage("accuracy", "correct", "tokens")
        log_percentage("f1", "hits", "found", "replaced")
        if masked := sum_entries(logging_outputs, "masked"):
            generator_loss = sum_entries(logging_outputs, "generator_loss") / masked / math.log(2)
            metrics.log_scalar("generator_loss", generator_loss, masked, round=5)
            log_sums(logging_outputs, ("generator_hits", "masked"))
            log_percentage("generator_accuracy", "generator_hits", "masked")

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """Return True: logging outputs hold nothing but numbers."""
        return True


def split_answer(text: str) -> list[str]:
    """Return the words of an answer in lower case, without punctuation and articles."""
    return ARTICLES.sub(" ", text.lower().translate(WITHOUT_PUNCTUATION)).split()


def score_answer(answer: str, references: Sequence[str]) -> tuple[float, float]:
    """Return exact match and F1 of an answer, from 0 to 1, each the best over the references.

    Args:
        answer: the predicted text; empty if there is no answer.
        references: right answers, at least one; an empty one says that there is no answer.
    """
    words = split_answer(answer)
    expected = [split_answer(reference) for reference in references]
    return max(float(words == each) for each in expected), max(_f1(words, e) for e in expected)


def _f1(words: Sequence[str], expected: Sequence[str]) -> float:
    """Return the harmonic mean of precision and recall of words, counted as often as they occur."""
    if not words or not expected:
        return float(words == expected)
    common = (Counter(words) & Counter(expected)).total()
    return 2 * common / (len(words) + len(expected))
