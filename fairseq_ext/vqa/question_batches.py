"""The data set of visual question answering: questions, and boxes read from mapped files."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from fairseq.data import data_utils
from torch import Tensor

from fairseq_ext.data.reordered import ReorderedDataset
from fairseq_ext.errors import UsageError
from fairseq_ext.vqa.picture_features import PictureFeatures
from fairseq_ext.vqa.questions import Questions


class QuestionDataset(ReorderedDataset):
    """Questions with the boxes of their pictures, in new batches in every epoch.

    Boxes are read when a batch is made, and only its copy of them is kept in memory. The size of a
    question, by which --max-tokens counts, is the number of its boxes in all views.

    Args:
        questions: of a split.
        views: features of its pictures, the primary view first.
        answers: the number of answers.
        max_boxes: boxes that are read of a view's picture, the first ones.
        pad: the symbol of padding.
        seed: on which the order depends.

    Raises:
        UsageError: a view lacks a picture.
    """

    def __init__(
        self,
        questions: Questions,
        views: Sequence[PictureFeatures],
        *,
        answers: int,
        max_boxes: int,
        pad: int,
        seed: int,
    ) -> None:
        self.questions, self.views, self.answers = questions, views, answers
        self.max_boxes, self.pad = max_boxes, pad
        pictures, places = np.unique(questions.pictures, return_inverse=True)
        for view in views:
            _check_pictures(questions, view, pictures)
        boxes = [sum(self._count(view, each) for view in views) for each in pictures.tolist()]
        super().__init__(np.array(boxes)[places], seed)

    def _count(self, view: PictureFeatures, picture: int) -> int:
        return min(view.count(picture), self.max_boxes)

    def __getitem__(self, index: int) -> int:
        return int(index)

    def collater(self, samples: Sequence[int]) -> dict[str, Any]:
        """Return a batch of B questions.

        It has "net_input": "src_tokens" [B, T] with padding at the end, and for each view "boxes"
        [B, N, C] in float16 and "paddings" [B, N] bool; "target" [B, answers] in float64, if all
        questions of the split have answers; "question_ids" and "kinds" of the questions.
        """
        if not samples:
            return {}
        asked = self.questions
        words = [torch.tensor(asked.words[index]) for index in samples]
        pictures = [int(asked.pictures[index]) for index in samples]
        views = [self._read_boxes(view, pictures) for view in self.views]
        batch = {
            "id": torch.tensor(samples),
            "net_input": {
                "src_tokens": data_utils.collate_tokens(words, self.pad).long(),
                "boxes": [boxes for boxes, _ in views],
                "paddings": [padding for _, padding in views],
            },
            "question_ids": [int(asked.numbers[index]) for index in samples],
            "kinds": [asked.kind_names[asked.kinds[index]] for index in samples],
            "nsentences": len(samples),
            "ntokens": int(self.sizes[samples].sum()),
        }
        if asked.annotated:
            batch["target"] = self._read_targets(samples)
        return batch

    def _read_boxes(self, view: PictureFeatures, pictures: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the boxes [B, N, C] of pictures, 0 at padding, and the padding [B, N]."""
        counts = torch.tensor([self._count(view, picture) for picture in pictures])
        boxes = torch.zeros(len(pictures), int(counts.max()), view.width, dtype=torch.float16)
        rows = boxes.numpy()  # torch warns of arrays that cannot be written, such as mapped ones
        for row, picture in zip(rows, pictures, strict=True):
            found = view[picture][: self.max_boxes]
            row[: len(found)] = found
        return boxes, torch.arange(boxes.size(1)) >= counts.unsqueeze(1)

    def _read_targets(self, samples: Sequence[int]) -> Tensor:
        """Return the accuracy of each answer [B, answers]; 16 bits of a model would round it."""
        target = torch.zeros(len(samples), self.answers, dtype=torch.float64)
        for row, index in zip(target.numpy(), samples, strict=True):
            row[self.questions.answers[index]] = self.questions.shares[index]
        return target


def _check_pictures(questions: Questions, view: PictureFeatures, pictures: np.ndarray) -> None:
    """Raise UsageError if a view lacks some of these pictures."""
    absent = [picture for picture in pictures.tolist() if picture not in view]
    if absent:
        raise UsageError(
            f"{questions.path} asks about picture {absent[0]}, which {view.prefix}.npy does not "
            f"have ({len(absent)} of {len(pictures)} pictures are missing there); give the "
            "features of this picture set"
        )
