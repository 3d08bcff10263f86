"""A dataset whose sentences have annotations: batches get them as an input of the model."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from fairseq.data import BaseWrapperDataset, FairseqDataset
from torch import Tensor

from fairseq_ext.data.annotations import Annotations
from fairseq_ext.roles.role_masks import NO_PARSE


class Annotated(BaseWrapperDataset):
    """Args:
    records: of the sentences that the dataset is made of.
    places: which of them each sentence of the dataset is; the same ones by default.
    first: how many tokens stand before a sentence, in each row.
    """

    def __init__(
        self,
        dataset: FairseqDataset,
        records: Annotations,
        pad: int,
        *,
        places: np.ndarray | None = None,
        first: int = 0,
    ) -> None:
        super().__init__(dataset)
        self.records, self.pad, self.first = records, pad, first
        self.places = np.arange(len(dataset)) if places is None else places

    def collater(self, samples: Sequence[Any]) -> dict[str, Any]:
        """As the dataset's, with "annotations" [B, S, 3] in "net_input"."""
        batch = self.dataset.collater(samples)
        if batch:
            inputs = batch["net_input"]
            rows = [self.records[self.places[number]] for number in batch["id"].tolist()]
            inputs["annotations"] = self._placed(inputs["src_tokens"], rows)
        return batch

    def _placed(self, tokens: Tensor, rows: Sequence[np.ndarray]) -> Tensor:
        """Each record [n, 3] where its tokens stand; of a sentence cut short, what is left."""
        placed = torch.tensor(NO_PARSE).expand(*tokens.shape, -1).clone()
        real = tokens != self.pad
        begins, counts = real.int().argmax(1).tolist(), real.sum(1).tolist()
        for row, record, begin, count in zip(placed, rows, begins, counts, strict=True):
            kept = min(len(record), count - self.first - 1)
            begin += self.first
            row[begin : begin + kept] = torch.from_numpy(record[:kept].astype(np.int64))
        return placed
