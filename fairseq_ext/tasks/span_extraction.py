"""The task "span_extraction": answers to questions, as spans of a passage (SQuAD)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from fairseq.tasks import register_task
from scipy.special import expit, log_expit, logsumexp
from torch import Tensor, nn

from fairseq_ext.attention.options import option, whole
from fairseq_ext.data.examples import TEXT, Example, Field, is_text
from fairseq_ext.data.rows import IGNORED, Item, Row, Rows, Window, best_span, span, windows
from fairseq_ext.data.vocabulary import Pieces
from fairseq_ext.errors import UsageError
from fairseq_ext.models.config import help_from_docstring
from fairseq_ext.models.task_heads import Linear
from fairseq_ext.tasks.labelled_task import LabelledConfig, LabelledTask


@dataclass
@help_from_docstring
class SpanExtractionConfig(LabelledConfig):
    """Options of "span_extraction".

    Attributes:
        stride: pieces of the passage from one window to the next
        longest_question: pieces of a question that are read
        longest_answer: pieces of an answer, at most
    """

    stride: int = option(128, whole("[1, 100000]", "a stride"))
    longest_question: int = option(64, whole("[2, 1000000000]", "a number of tokens"))
    longest_answer: int = option(30, whole("[1, 1000000000]", "a number of tokens"))


ANSWERED, UNANSWERED = "answered", "unanswered"


def are_answers(value: Any) -> bool:
    """Return whether a value is a list of answers with text and start."""
    return isinstance(value, list) and all(
        isinstance(a, dict)
        and is_text(a.get("text"))
        and type(a.get("start")) is int
        and a["start"] >= 0
        for a in value
    )


@register_task("span_extraction", dataclass=SpanExtractionConfig)
class SpanExtractionTask(LabelledTask):
    """The answer to a question, as a span of a passage.

    Rows are `<s> question </s> window </s>`, as many as the passage needs windows. Scores are
    [R, S, 3]: each token as the first and as the last of the answer, and at the first token that
    the window has an answer. An item's `extra` holds the pieces of its passage and their windows.
    """

    fields = {
        "text": TEXT,
        "question": TEXT,
        "answers": Field(
            'a list like [{"text": "...", "start": 0}], or []', are_answers, target=True
        ),
    }

    def list_labels(self, examples: Iterable[Example]) -> list[str]:
        """Return ANSWERED, and UNANSWERED if there are questions without an answer."""
        all_answered = all(example.values["answers"] for example in examples)
        return [ANSWERED] if all_answered else [ANSWERED, UNANSWERED]

    def build_items(self, examples: Sequence[Example], rows: Rows) -> list[Item]:
        """Return each example as a row for each window of its passage."""
        texts = self.vocabulary.encode([e.values["text"] for e in examples])
        questions = self.vocabulary.encode([e.values["question"] for e in examples])
        parts = zip(examples, questions, texts, strict=True)
        return [self._build_item(*each, rows) for each in parts]

    def _build_item(self, example: Example, question: Pieces, text: Pieces, rows: Rows) -> Item:
        if not len(text.numbers):
            raise UsageError(f"{example.where} has a 'text' without words; give a passage")
        asked = question.numbers[: min(self.cfg.longest_question, rows.space(2) // 2)]
        room = rows.space(2) - len(asked)
        parts = list(windows(len(text.numbers), room, self.cfg.stride))
        built = [rows.make([asked, text.numbers[w.first : w.last]], example.where) for w in parts]
        if len(asked) < len(question.numbers):
            rows.lose(example.where, f"has a question of {len(question.numbers)} tokens")
        target = None
        if "answers" in example.values:
            place = self._locate_answer(example, text)
            pairs = zip(parts, built, strict=True)
            target = [_build_target(place, window, row.first[1]) for window, row in pairs]
            if place and not any(answered for *_, answered in target):
                rows.lose(example.where, "has an answer that is in no window")
        return Item(example, built, target, (text, parts))

    def _locate_answer(self, example: Example, text: Pieces) -> tuple[int, int] | None:
        """Return first and last piece of the first answer; None if there is no answer."""
        places = []
        for answer in example.values["answers"]:
            quote, start = answer["text"], answer["start"]
            end, found = start + len(quote), f"{example.where} has the answer '{quote[:40]}', which"
            if not quote or example.values["text"][start:end] != quote:
                raise UsageError(
                    f"{found} does not stand at {start} of its text; correct 'start', in characters"
                )
            if not (place := span(text.offsets, start, end)):
                raise UsageError(f"{found} the tokeniser does not see; leave it out")
            places.append(place)
        return places[0] if places else None

    def build_head(self, args: Any) -> nn.Module:
        """Return a head with three scores for each token."""
        return Linear(args.encoder_embed_dim, 3, args.pooler_dropout, bias=True)

    def read_answers(self, scores: Tensor, batch: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the likeliest span over all windows; "" where no answer is likelier."""
        rows, answers = iter(scores.float().cpu().numpy()), []
        for item in batch["items"]:
            text, parts = item.extra
            pairs = zip(item.rows, parts, strict=True)
            guesses = [self._guess(next(rows), row, window) for row, window in pairs]
            _, _, first, last = max(guesses)
            answered = max(share for _, share, *_ in guesses)
            if UNANSWERED in self.labels and answered < 0.5:
                answers.append({"answer": "", "probability": 1 - answered})
                continue
            start, end = text.offsets[first][0], text.offsets[last][1]
            answer = item.example.values["text"][start:end].strip()
            answers.append({"answer": answer, "probability": answered})
        return answers

    def _guess(self, scores: np.ndarray, row: Row, window: Window) -> tuple[float, float, int, int]:
        """Return log-probability, probability of any answer, and the best span, in the passage."""
        here = slice(row.first[1], row.first[1] + row.kept[1])
        starts, ends = (scores[here, side] for side in (0, 1))
        score, first, last = best_span(
            starts - logsumexp(starts), ends - logsumexp(ends), self.cfg.longest_answer
        )
        answered = float(expit(scores[0, 2]))
        score += float(log_expit(scores[0, 2]))
        return score, answered, window.first + first, window.first + last


def _build_target(place: tuple[int, int] | None, window: Window, first: int) -> np.ndarray:
    """Return [3]: first and last token of the answer in a row, and whether the window has it."""
    if place is None or place[0] < window.first or place[1] >= window.last:
        return np.array([IGNORED, IGNORED, 0])
    start, end = (first + each - window.first for each in place)
    return np.array([start, end, 1])
