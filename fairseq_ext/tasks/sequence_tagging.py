"""The task "sequence_tagging": a tag for each word, predicted from its first piece."""

# The values of choices are types for fairseq, made at run time.
# mypy: disable-error-code="valid-type"

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from fairseq.dataclass import ChoiceEnum
from fairseq.tasks import register_task
from torch import Tensor, nn

from fairseq_ext.data.examples import Example, Field, are_texts, collect_labels
from fairseq_ext.data.rows import IGNORED, Item, Row, Rows
from fairseq_ext.data.tags import PLAIN, SCHEMES, describe_fault, entities, first_fault
from fairseq_ext.data.vocabulary import Pieces
from fairseq_ext.errors import UsageError
from fairseq_ext.models.config import help_from_docstring
from fairseq_ext.models.task_heads import Linear
from fairseq_ext.tasks.labelled_task import LabelledConfig, LabelledTask

OUTSIDE = "O"

TagSchemes = ChoiceEnum([*SCHEMES, PLAIN])


@dataclass
@help_from_docstring
class SequenceTaggingConfig(LabelledConfig):
    """Options of "sequence_tagging".

    Attributes:
        tag_scheme: how tags mark entities: iob1 (B- only where two of a kind touch), iob2 (B- at
            every beginning), bioes, or none (tags without entities, as parts of speech)
    """

    tag_scheme: TagSchemes = "iob2"


@register_task("sequence_tagging", dataclass=SequenceTaggingConfig)
class SequenceTaggingTask(LabelledTask):
    """A tag for each word. Words without a piece, and words that are cut off, are tagged O.

    Tags without entities (--tag-scheme none) need not have an O, which is wrong then.

    An item's `extra` holds the place of each word's first piece in its row, or -1.
    """

    fields = {
        "words": Field("a list of words", lambda x: are_texts(x) and bool(x)),
        "tags": Field("a list of tags", are_texts, target=True),
    }

    def list_labels(self, examples: Iterable[Example]) -> list[str]:
        """Return the tags, O first if they mark entities; raise UsageError if two look alike."""
        read = ((tag, example) for example in examples for tag in self._read_tags(example))
        tags = collect_labels(read)
        if self.cfg.tag_scheme == PLAIN:
            return sorted(tags)
        return [OUTSIDE, *sorted(tags - {OUTSIDE})]

    def _read_tags(self, example: Example) -> list[str]:
        words, tags = example.values["words"], example.values["tags"]
        if len(words) != len(tags):
            raise UsageError(f"{example.where} has {len(words)} words and {len(tags)} tags")
        place = first_fault(tags, self.cfg.tag_scheme)
        if place is not None:
            raise UsageError(
                f"{example.where} has the tag {tags[place]} (word {place + 1}) "
                f"{describe_fault(tags[place], self.cfg.tag_scheme)}"
            )
        return tags

    def build_items(self, examples: Sequence[Example], rows: Rows) -> list[Item]:
        """Return each example as one row."""
        texts = self.vocabulary.encode([" ".join(e.values["words"]) for e in examples])
        items = []
        for example, pieces in zip(examples, texts, strict=True):
            row = rows.make([pieces.numbers], example.where)
            places = find_first_pieces(example.values["words"], pieces, row)
            target = self._build_target(example, places, row) if "tags" in example.values else None
            items.append(Item(example, [row], target, places))
        return items

    def _build_target(self, example: Example, places: np.ndarray, row: Row) -> list[np.ndarray]:
        tags = self._read_tags(example)
        numbers = np.array([self.find_label(tag, example.where) for tag in tags])
        target = np.full(len(row.tokens), IGNORED)
        target[places[places >= 0]] = numbers[places >= 0]
        return [target]

    def build_head(self, args: Any) -> nn.Module:
        """Return a head that scores the tags of each token."""
        return Linear(args.encoder_embed_dim, len(self.labels), args.pooler_dropout, bias=True)

    def predict_tags(self, scores: Tensor, items: Sequence[Item]) -> list[list[str]]:
        """Return the tag of each word, from scores [B, S, tags]."""
        best = scores.argmax(-1).cpu().numpy()
        return [
            [self.labels[row[place]] if place >= 0 else OUTSIDE for place in item.extra]
            for row, item in zip(best, items, strict=True)
        ]

    def read_answers(self, scores: Tensor, batch: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return words, their tags, and the entities that these mark, if they mark any."""
        answers, items = [], batch["items"]
        for item, tags in zip(items, self.predict_tags(scores, items), strict=True):
            words = item.example.values["words"]
            answers.append({"words": words, "tags": tags})
            if self.cfg.tag_scheme == PLAIN:
                continue
            answers[-1]["entities"] = [
                {"kind": e.kind, "text": " ".join(words[e.first : e.last + 1]), "first": e.first}
                for e in entities(tags)
            ]
        return answers


def find_first_pieces(words: Sequence[str], pieces: Pieces, row: Row) -> np.ndarray:
    """Return the place of each word's first piece in a row, or -1; a space joins the words."""
    starts = np.cumsum([0, *(len(word) + 1 for word in words)])
    of_word = np.searchsorted(starts, pieces.offsets[:, 1] - 1, side="right") - 1
    places = np.full(len(words), -1)
    for place in range(row.kept[0] - 1, -1, -1):
        if of_word[place] >= 0:  # not for a piece without text
            places[of_word[place]] = row.first[0] + place
    return places
