"""Report of a model to the criterion of its training, and of that criterion to checkpoints."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

SMART_MEAN = "smart_mean"  # in the state of a task

HeadsBySite = Mapping[str, Mapping[int, Sequence[int]]]
"""site -> layer -> the heads there that are free to learn what they look at."""


class ModelReport:
    """Facts that a model tells the criterion, which is built before it sees the model.

    Attributes:
        guidable: the heads that attention guidance can guide.
        adversary_layers: the encoder layers that have an adversary.
        new_task_head: the task head attached to the model stays, whatever a checkpoint has.
    """

    def __init__(self, task: Any) -> None:
        self.guidable: HeadsBySite = {}
        self.adversary_layers: Sequence[int] = ()
        self.new_task_head = False
        self._task = task

    def __deepcopy__(self, memo: dict[int, Any]) -> "ModelReport":
        """Return the report itself: a copy of a model, which EMA makes, has the same task."""
        return self

    @property
    def guidance_weight(self) -> float | None:
        """Return the alpha_0 that `--ag-alpha auto` chose; it is kept in checkpoints."""
        return self._task.state.state_dict.get("ag_alpha")

    @guidance_weight.setter
    def guidance_weight(self, alpha: float) -> None:
        self._task.state.merge_state_dict({"ag_alpha": alpha})

    @property
    def mean_parameters(self) -> dict[str, Tensor] | None:
        """Return SMART's mean of the parameters of all updates; it is kept in checkpoints."""
        return self._task.state.state_dict.get(SMART_MEAN)

    @mean_parameters.setter
    def mean_parameters(self, mean: dict[str, Tensor]) -> None:
        self._task.state.merge_state_dict({SMART_MEAN: mean})


def get_model_report(task: Any) -> ModelReport:
    """Return the report of a fairseq task, which is made when it is first asked for.

    What is kept in checkpoints lies in `task.state`.
    """
    if not hasattr(task, "model_report"):
        task.model_report = ModelReport(task)
    return task.model_report
