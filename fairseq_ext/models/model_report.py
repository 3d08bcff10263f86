"""Report of a model to the criterion of its training; to checkpoints that has `task.state`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fairseq_ext.mechanisms.guidance.plan import HeadsBySite

SMART_MEAN = "smart_mean"  # in the state of a task


@dataclass
class ModelReport:
    """Facts that a model tells the criterion, which is built before it sees the model.

    Attributes:
        guidable: the heads that attention guidance can guide.
        adversary_layers: the encoder layers that have an adversary.
        positions: how many tokens the encoder takes; None if that is not known.
        selects_by_places: masked tokens may be given as places in the flattened batch.
        new_task_head: the task head attached to the model stays, whatever a checkpoint has.
    """

    guidable: HeadsBySite = field(default_factory=dict)
    adversary_layers: Sequence[int] = ()
    positions: int | None = None
    selects_by_places: bool = False
    new_task_head: bool = False

    def __deepcopy__(self, memo: dict[int, Any]) -> "ModelReport":
        """Return the report itself: a copy of a model, which EMA makes, has the same task."""
        return self


def get_model_report(task: Any) -> ModelReport:
    """Return the report of a fairseq task, which is made when it is first asked for."""
    if not hasattr(task, "model_report"):
        task.model_report = ModelReport()
    return task.model_report
