"""A checkpoint of visual question answering under analysis: its model, questions and maps."""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from tqdm import tqdm

from fairseq_ext.analysis.head_weights import HeadWeight, read_normaliser
from fairseq_ext.analysis.inspector import MAX_TOKENS
from fairseq_ext.analysis.loading import short_name
from fairseq_ext.analysis.recording import LayerAttention, Receiver
from fairseq_ext.attention import AttentionRecorder
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.guidance.patterns import View
from fairseq_ext.vqa.multi_view import SITE, MultiView
from fairseq_ext.vqa.task import VqaTask


class PictureInspector:
    """A model that answers questions about pictures, in evaluation mode on the CPU.

    It does for `fairseq-ext columns` and `weights` what `ModelInspector` does of other models.

    Args:
        checkpoint: a file that fairseq-train wrote.
        data: folder of the questions; by default the one that the checkpoint names.

    Attributes:
        name: the architecture.
        title: the model's name in pictures.
    """

    main_site = SITE

    def __init__(self, checkpoint: Path, data: Path | None = None) -> None:
        logging.getLogger("fairseq").setLevel(logging.WARNING)
        self.checkpoint = checkpoint
        overrides = {} if data is None else {"data": str(data)}
        (model,), config, task = load_model_ensemble_and_task([str(checkpoint)], overrides)
        self.model, self.task = model.eval(), task
        assert isinstance(task, VqaTask)
        self.name = str(config.model._name)
        self.title = f"{self.name}, {short_name(checkpoint)}"

    def batches(
        self, split: str, limit: int | None = None, max_tokens: int = MAX_TOKENS
    ) -> Iterator[dict[str, Any]]:
        """Yield the batches of a split, or of its first `limit` questions, with a progress bar.

        Raises:
            UsageError: a picture has more than `max_tokens` boxes.
        """
        dataset = self.task.read_split(split, annotated=False)
        indices = dataset.ordered_indices()
        indices = indices if limit is None else indices[indices < limit]
        most = int(dataset.sizes[indices].max())
        if most > max_tokens:
            raise UsageError(
                f"--max-tokens is {max_tokens} and {split} has pictures of {most} boxes; give at "
                "least that"
            )
        with tqdm(total=len(indices), desc=split, unit=" questions") as bar:
            for batch in dataset.batch_by_size(indices, max_tokens=max_tokens):
                yield dataset.collater([dataset[index] for index in batch])
                bar.update(len(batch))

    def record_attention(self, batch: Mapping[str, Any], receive: Receiver) -> Any:
        """Run the model on a batch, hand its multi-view maps to `receive`, and return its output.

        The "layer" of a map is the number of its secondary view, from 0.
        """
        inputs = batch["net_input"]
        heads = getattr(self.model.args, "multi_view_heads", 0)
        recorder = AttentionRecorder(lambda site, layer: range(heads), detach=True)
        with torch.no_grad():
            output = self.model(**inputs, recorder=recorder)
        queries, *keys = (~padding for padding in inputs["paddings"])
        for (site, layer), maps in recorder.maps.items():
            view = View(keys[layer].long(), keys[layer], queries)
            receive(LayerAttention(site, layer, maps, view))
        return output

    def head_weights(self) -> Iterator[HeadWeight]:
        """Yield the trained weights of the heads of multi-view attention."""
        for module in self.model.modules():
            if isinstance(module, MultiView):
                yield from read_normaliser(module.normaliser, module.site, module.layer)
