"""The task "multiple_choice": choose the right one of n answers."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fairseq.tasks import register_task
from torch import Tensor, nn

from fairseq_ext.data.examples import TEXT, Example, Field, are_texts
from fairseq_ext.data.rows import Item, Rows
from fairseq_ext.errors import UsageError
from fairseq_ext.models.task_heads import SentenceHead, build_mlp, pool_first
from fairseq_ext.tasks.labelled_task import LabelledConfig, LabelledTask


@register_task("multiple_choice", dataclass=LabelledConfig)
class MultipleChoiceTask(LabelledTask):
    """The choice of an answer to a question about a text.

    Each choice has a row, scored at its first token: the text and, as second part, question and
    choice. Where a row is too long, the text loses its end.
    """

    fields = {
        "text": TEXT,
        "question": TEXT._replace(needed=False),
        "choices": Field("a list of two texts or more", lambda x: are_texts(x) and len(x) > 1),
        "label": Field(
            "the number of the right choice, from 0", lambda x: type(x) is int, target=True
        ),
    }

    def list_labels(self, examples: Iterable[Example]) -> list[str]:
        """Return the numbers of the choices; raise UsageError if not all examples have as many."""
        one, *others = examples
        count = len(one.values["choices"])
        for other in others:
            if len(other.values["choices"]) != count:
                raise UsageError(
                    f"{other.where} has {len(other.values['choices'])} choices and {one.where} "
                    f"{count}; give all examples as many"
                )
        return [str(number) for number in range(count)]

    def build_items(self, examples: Sequence[Example], rows: Rows) -> list[Item]:
        """Return each example as one row for each choice."""
        texts = self.vocabulary.encode([e.values["text"] for e in examples])
        choices = iter(self.vocabulary.encode([c for e in examples for c in self._list_choices(e)]))
        items = []
        for example, text in zip(examples, texts, strict=True):
            pairs = [[text.numbers, next(choices).numbers] for _ in self.labels]
            built = [rows.make(pair, example.where, cut=0) for pair in pairs]
            items.append(Item(example, built, self._read_target(example)))
        return items

    def _list_choices(self, example: Example) -> list[str]:
        values, count = example.values, len(self.labels)
        if (own := len(values["choices"])) != count:
            raise UsageError(
                f"{example.where} has {own} choices, and those of training {count}; give as many"
            )
        before = f"{values['question']} " if values.get("question") else ""
        return [before + choice for choice in values["choices"]]

    def _read_target(self, example: Example) -> int | None:
        label, last = example.values.get("label"), len(self.labels) - 1
        if label is not None and not 0 <= label <= last:
            raise UsageError(
                f"{example.where} has the label {label}, and its choices are 0 to {last}"
            )
        return label

    def build_head(self, args: Any) -> nn.Module:
        """Return a head with one score for each row."""
        return SentenceHead(pool_first, build_mlp(args, 1))

    def read_answers(self, scores: Tensor, batch: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return number and text of the best choice, and the probabilities of all."""
        answers = []
        shares = scores.float().view(len(batch["items"]), -1).softmax(-1).tolist()
        for item, row in zip(batch["items"], shares, strict=True):
            best = row.index(max(row))
            answer = {"label": best, "choice": item.example.values["choices"][best]}
            answers.append({**answer, "probability": row[best], "probabilities": row})
        return answers
