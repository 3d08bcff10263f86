"""The task "span_extraction": the answer to a question, as a span of a passage (SQuAD)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit, log_expit, logsumexp
from torch import Tensor, nn

from fairseq_ext.data.examples import TEXT, Example, Field, is_text
from fairseq_ext.data.labelled_dataset import IGNORED, Item
from fairseq_ext.data.rows import Row, Rows
from fairseq_ext.data.vocabulary import Pieces
from fairseq_ext.data.rows import Window, best_span, span, windows
from fairseq_ext.errors import UsageError
from fairseq_ext.models.config import Option, option
from fairseq_ext.models.task_heads import PerToken
from fairseq_ext.tasks.labelled_options import register
from fairseq_ext.tasks.labelled_task import LabelledTask

OPTIONS: list[Option] = [
    option("stride", int, 128, "pieces of the passage from one window to the next"),
    option("longest_question", int, 64, "pieces of a question that are read"),
    option("longest_answer", int, 30, "pieces of an answer, at most"),
]
ANSWERED, UNANSWERED = "answered", "unanswered"


class Guess(NamedTuple):
    """The best span of a window: its log-probability, that of there being one, its pieces."""

    score: float
    answered: float
    first: int
    last: int


def are_answers(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(a, dict)
        and is_text(a.get("text"))
        and type(a.get("start")) is int
        and a["start"] >= 0
        for a in value
    )


@register("span_extraction", OPTIONS)
class SpanExtractionTask(LabelledTask):
    """Rows are `<s> question </s> window </s>`, as many as the passage needs windows. Scores are
    [R, S, 3]: of each token as the first and the last of the answer, and, at the first token, of
    the window having one.

    An item's `extra` is the pieces of its passage and their windows.
    """

    fields = {
        "text": TEXT,
        "question": TEXT,
        "answers": Field(
            'a list like [{"text": "...", "start": 0}], or []', are_answers, target=True
        ),
    }

    def begin(self) -> None:
        super().begin()
        for name in ("stride", "longest_question", "longest_answer"):
            if self.cfg[name] < 1:
                flag = f"--{name.replace('_', '-')}"
                raise UsageError(f"{flag} is {self.cfg[name]} and must be 1 or more")

    def labels_of(self, examples: Iterable[Example]) -> list[str]:
        """Whether there are questions without an answer."""
        all_answered = all(example.values["answers"] for example in examples)
        return [ANSWERED] if all_answered else [ANSWERED, UNANSWERED]

    def items(self, examples: Sequence[Example], rows: Rows) -> list[Item]:
        texts = self.vocabulary.encode([e.values["text"] for e in examples])
        questions = self.vocabulary.encode([e.values["question"] for e in examples])
        return [self._item(*each, rows) for each in zip(examples, questions, texts, strict=True)]

    def _item(self, example: Example, question: Pieces, text: Pieces, rows: Rows) -> Item:
        if not len(text.numbers):
            raise UsageError(f"{example.where} has a 'text' without words; give a passage")
        asked = question.numbers[: min(self.cfg.longest_question, rows.space(2) // 2)]
        room = rows.space(2) - len(asked)
        found = list(windows(len(text.numbers), room, self.cfg.stride))
        made = [rows.make([asked, text.numbers[w.first : w.last]], example.where) for w in found]
        if len(asked) < len(question.numbers):
            rows.lose(example.where, f"has a question of {len(question.numbers)} tokens")
        target = None
        if "answers" in example.values:
            place = self._place(example, text)
            both = zip(found, made, strict=True)
            target = [_in_window(place, window, row.first[1]) for window, row in both]
            if place and not any(answered for *_, answered in target):
                rows.lose(example.where, "has an answer that is in no window")
        return Item(example, made, target, (text, found))

    def _place(self, example: Example, text: Pieces) -> tuple[int, int] | None:
        """First and last piece of the first answer; None if there is none."""
        places = []
        for said, start in ((a["text"], a["start"]) for a in example.values["answers"]):
            end = start + len(said)
            if not said or example.values["text"][start:end] != said:
                raise UsageError(
                    f"{example.where} has the answer '{said[:40]}', which does not stand at "
                    f"{start} of its text; correct 'start', in characters"
                )
            if not (place := span(text.offsets, start, end)):
                raise UsageError(
                    f"{example.where} has the answer '{said[:40]}', which the tokeniser does not "
                    "see; leave it out"
                )
            places.append(place)
        return places[0] if places else None

    def build_head(self, args: Any) -> nn.Module:
        return PerToken(args.encoder_embed_dim, 3, args.pooler_dropout)

    def answers(self, scores: Tensor, batch: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The likeliest span over all windows; empty where it is likelier that there is none."""
        rows, found = iter(scores.float().cpu().numpy()), []
        for item in batch["items"]:
            text, parts = item.extra
            guesses = [
                self._guess(next(rows), row, window)
                for row, window in zip(item.rows, parts, strict=True)
            ]
            best, answered = max(guesses), max(guess.answered for guess in guesses)
            none = UNANSWERED in self.labels and answered < 0.5
            start, end = text.offsets[best.first][0], text.offsets[best.last][1]
            said = "" if none else item.example.values["text"][start:end].strip()
            found.append({"answer": said, "probability": 1 - answered if none else answered})
        return found

    def _guess(self, scores: np.ndarray, row: Row, window: Window) -> Guess:
        here = slice(row.first[1], row.first[1] + row.kept[1])
        starts, ends = (scores[here, side] for side in (0, 1))
        score, first, last = best_span(
            starts - logsumexp(starts), ends - logsumexp(ends), self.cfg.longest_answer
        )
        answered = float(expit(scores[0, 2]))
        score += float(log_expit(scores[0, 2]))
        return Guess(score, answered, window.first + first, window.first + last)


def _in_window(place: tuple[int, int] | None, window: Window, first: int) -> np.ndarray:
    """[3]: first and last token of the answer in a row, and whether it is in this window."""
    if place is None or place[0] < window.first or place[1] >= window.last:
        return np.array([IGNORED, IGNORED, 0])
    start, end = (first + each - window.first for each in place)
    return np.array([start, end, 1])
