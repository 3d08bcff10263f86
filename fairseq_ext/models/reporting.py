"""Mixin of models whose modules report statistics for the log of a training."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, Self

from fairseq.logging import metrics
from fairseq.logging.meters import safe_round
from fairseq.models import BaseFairseqModel, FairseqEncoder
from torch import nn

ASK_EACH_MODULE = (BaseFairseqModel.set_num_updates, FairseqEncoder.set_num_updates)
"""Methods of fairseq that tell each module within, one Python call or more for each."""


class HasStatistics(Protocol):
    """A module that reports statistics for the log of a training."""

    def statistics(self) -> Mapping[str, Callable[[], float]]:
        """Return functions that compute the statistics, by name."""


class ReportingModel(BaseFairseqModel):
    """Mixin that logs statistics, and passes over its modules quickly at each training step.

    fairseq makes 12,000 Python calls in a step of 12 layers to set a mode that modules have, and to
    tell modules that do not ask how many updates there were.

    Attributes:
        reporting: the class of modules that report statistics.
        num_updates: how many updates the model has had.
    """

    reporting: type = nn.Module
    num_updates = 0

    def train(self, mode: bool = True) -> Self:
        """Set the mode of all modules, unless each has it and none has a `train` of its own."""
        first, *others = list_modules(self)
        usual = [getattr(module.train, "__func__", None) is nn.Module.train for module in others]
        modes = [module.training is mode for module in (first, *others)]
        return self if all(usual) and all(modes) else super().train(mode)

    def set_num_updates(self, num_updates: int) -> None:
        """Tell modules, and log the statistics; fairseq calls this before each training step."""
        self.num_updates = num_updates
        modules = list_modules(self)
        for module in modules[1:]:
            tell: Any = getattr(type(module), "set_num_updates", None)
            if tell is not None and tell not in ASK_EACH_MODULE:
                tell(module, num_updates)
        reporting: Any = (module for module in modules if isinstance(module, self.reporting))
        log_statistics([*reporting])
        log_average()


def list_modules(root: nn.Module) -> list[nn.Module]:
    """Return a module and all within in the order of `modules`, without a Python call for each."""
    found: dict[nn.Module, None] = {}
    left: list[nn.Module | None] = [root]
    while left:
        module = left.pop()
        if module is not None and module not in found:
            found[module] = None
            left.extend(reversed(module._modules.values()))
    return list(found)


def log_statistics(modules: Iterable[HasStatistics]) -> None:
    """Put the statistics that modules of attention report into fairseq's log.

    A hybrid weight u of the first encoder layer is called "encoder0_u" there.
    """
    for module in modules:
        for name, value in module.statistics().items():
            metrics.log_derived(name, lambda _, value=value: value(), priority=1000)


def log_average() -> None:
    """Put the mean of nll_loss, or else of loss, over the whole training into fairseq's log.

    The attention guidance paper measures by it how fast a model learns. fairseq's "default" metrics
    see every training step of a run.
    """
    for name, average in {"nll_loss": "nll_avg", "loss": "loss_avg"}.items():
        meter = metrics.get_meter("default", name)
        if meter is not None:
            metrics.log_derived(average, lambda _, m=meter: safe_round(m.avg, 3), priority=5)
            return
