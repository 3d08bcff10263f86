"""The task "sequence_tagging": a tag for each word, read off its first piece."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from fairseq.dataclass import ChoiceEnum
from torch import Tensor, nn

from fairseq_ext.data.examples import Example, Field, are_texts
from fairseq_ext.data.labelled_dataset import IGNORED, Item
from fairseq_ext.data.rows import Row, Rows
from fairseq_ext.data.tags import SCHEMES, entities, first_fault
from fairseq_ext.data.vocabulary import Pieces
from fairseq_ext.errors import UsageError
from fairseq_ext.models.config import Option, option
from fairseq_ext.models.task_heads import PerToken
from fairseq_ext.tasks.labelled_options import register
from fairseq_ext.tasks.labelled_task import LabelledTask

OUTSIDE = "O"

OPTIONS: list[Option] = [
    option(
        "tag_scheme",
        ChoiceEnum(list(SCHEMES)),
        "iob2",
        "how tags mark entities: iob1 (B- only where two of a kind touch), iob2 (B- at every "
        "beginning) or bioes",
    )
]


@register("sequence_tagging", OPTIONS)
class SequenceTaggingTask(LabelledTask):
    """Words that have no piece, or that are too far along to be read, are tagged O.

    An item's `extra` is the place in its row of each word's first piece, or -1.
    """

    fields = {
        "words": Field("a list of words", lambda x: are_texts(x) and bool(x)),
        "tags": Field("a list of tags", are_texts, target=True),
    }

    def labels_of(self, examples: Iterable[Example]) -> list[str]:
        found = {tag for example in examples for tag in self._tags(example)}
        return [OUTSIDE, *sorted(found - {OUTSIDE})]

    def _tags(self, example: Example) -> list[str]:
        words, tags = example.values["words"], example.values["tags"]
        if len(words) != len(tags):
            raise UsageError(f"{example.where} has {len(words)} words and {len(tags)} tags")
        place = first_fault(tags, self.cfg.tag_scheme)
        if place is not None:
            raise UsageError(
                f"{example.where} has the tag {tags[place]} (word {place + 1}) where "
                f"{self.cfg.tag_scheme} has another; give --tag-scheme, one of {', '.join(SCHEMES)}"
            )
        return tags

    def items(self, examples: Sequence[Example], rows: Rows) -> list[Item]:
        texts = self.vocabulary.encode([" ".join(e.values["words"]) for e in examples])
        found = []
        for example, pieces in zip(examples, texts, strict=True):
            row = rows.make([pieces.numbers], example.where)
            places = first_pieces(example.values["words"], pieces, row)
            target = self._target(example, places, row) if "tags" in example.values else None
            found.append(Item(example, [row], target, places))
        return found

    def _target(self, example: Example, places: np.ndarray, row: Row) -> list[np.ndarray]:
        numbers = np.array([self.label(tag, example.where) for tag in self._tags(example)])
        target = np.full(len(row.tokens), IGNORED)
        target[places[places >= 0]] = numbers[places >= 0]
        return [target]

    def build_head(self, args: Any) -> nn.Module:
        return PerToken(args.encoder_embed_dim, len(self.labels), args.pooler_dropout)

    def tags(self, scores: Tensor, items: Sequence[Item]) -> list[list[str]]:
        """The tag of each word, from scores [B, S, tags]."""
        best = scores.argmax(-1).cpu().numpy()
        return [
            [self.labels[row[place]] if place >= 0 else OUTSIDE for place in item.extra]
            for row, item in zip(best, items, strict=True)
        ]

    def answers(self, scores: Tensor, batch: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Words, their tags, and the entities that these mark."""
        found = []
        for item, tags in zip(batch["items"], self.tags(scores, batch["items"]), strict=True):
            words = item.example.values["words"]
            marked = [
                {"kind": e.kind, "text": " ".join(words[e.first : e.last + 1]), "first": e.first}
                for e in entities(tags)
            ]
            found.append({"words": words, "tags": tags, "entities": marked})
        return found


def first_pieces(words: Sequence[str], pieces: Pieces, row: Row) -> np.ndarray:
    """The place in a row of the first piece of each word, of words joined by a space; -1: none."""
    starts = np.cumsum([0, *(len(word) + 1 for word in words)])
    of_word = np.searchsorted(starts, pieces.offsets[:, 1] - 1, side="right") - 1
    places = np.full(len(words), -1)
    for place in range(row.kept[0] - 1, -1, -1):
        if of_word[place] >= 0:  # of a piece without text
            places[of_word[place]] = row.first[0] + place
    return places
