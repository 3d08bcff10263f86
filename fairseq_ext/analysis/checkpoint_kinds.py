"""Table of the kinds of checkpoints that can be analysed, and the protocol of their inspectors."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from fairseq_ext.analysis.head_weights import HeadWeight
from fairseq_ext.analysis.inspector import MAX_TOKENS, ModelInspector
from fairseq_ext.analysis.recording import Receiver
from fairseq_ext.models.pretrained import read_task_name


class Inspector(Protocol):
    """A checkpoint's model under analysis, in evaluation mode on the CPU, with its data.

    Attributes:
        name: the architecture.
        title: the model's name in pictures.
        main_site: the site that is analysed by default.
    """

    checkpoint: Path
    name: str
    title: str
    main_site: str

    def batches(
        self, split: str, limit: int | None = None, max_tokens: int = MAX_TOKENS
    ) -> Iterator[dict[str, Any]]:
        """Yield the batches of a split, or of its first `limit` examples."""

    def record_attention(self, batch: Mapping[str, Any], receive: Receiver) -> Any:
        """Run the model on a batch, hand its maps to `receive`, and return its output."""

    def head_weights(self) -> Iterator[HeadWeight]:
        """Yield the trained weights of heads."""


OPENERS: dict[str, Callable[[Path, Path | None], Inspector]] = {}
"""Inspectors of checkpoints that `ModelInspector` cannot read, by the name of the task.

A room above this one adds its own. They take the checkpoint and the folder of data, if any."""


def open_inspector(checkpoint: Path, data: Path | None) -> Inspector:
    """Return the inspector for a checkpoint of any kind that can be analysed."""
    if checkpoint.is_file() and (opener := OPENERS.get(read_task_name(checkpoint) or "")):
        return opener(checkpoint, data)
    return ModelInspector(checkpoint, data)
