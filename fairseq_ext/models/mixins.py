"""What all models of ours share: they report in training, and can be pruned when loaded."""

from argparse import Namespace
from typing import Any

from fairseq.checkpoint_utils import prune_state_dict
from fairseq.logging import metrics
from fairseq.logging.meters import safe_round
from torch import Tensor, nn

from fairseq_ext.attention import Attention

SIDES = ("encoder", "decoder")
AVERAGES = {"nll_loss": "nll_avg", "loss": "loss_avg"}


class Monitored(nn.Module):
    """A model that counts its updates, as `num_updates`, and reports before each."""

    num_updates = 0

    def set_num_updates(self, num_updates: int) -> None:
        """Called by fairseq before each training step."""
        super().set_num_updates(num_updates)
        self.num_updates = num_updates
        log_statistics(self)
        log_average()


def log_statistics(model: nn.Module) -> None:
    """What the attention of each layer reports goes into fairseq's log, as "encoder0_u"."""
    for module in model.modules():
        if isinstance(module, Attention):
            for name, value in module.statistics().items():
                metrics.log_derived(name, lambda _, value=value: value(), priority=1000)


def log_average() -> None:
    """The mean loss of all training so far goes into the log: nll_loss, or loss if that is all.

    How fast a model learns, in the measure of the attention guidance paper. fairseq's "default"
    metrics see every training step of a run.
    """
    found = ((average, metrics.get_meter("default", name)) for name, average in AVERAGES.items())
    average, whole = next((pair for pair in found if pair[1] is not None), ("", None))
    if whole is not None:
        metrics.log_derived(average, lambda _: safe_round(whole.avg, 3), priority=5)


class Prunable(nn.Module):
    """Mixin that upgrades a state dict after pruned layers have been renumbered.

    fairseq calls the upgrade hook only before that.
    """

    def load_state_dict(
        self,
        state_dict: dict[str, Tensor],
        strict: bool = True,
        model_cfg: Any = None,
        args: Namespace | None = None,
    ) -> Any:
        """As in fairseq; --encoder-layers-to-keep and --decoder-layers-to-keep are of model_cfg."""
        if any(getattr(model_cfg, f"{side}_layers_to_keep", None) for side in SIDES):
            self.upgrade_state_dict(state_dict)  # to the names that fairseq prunes
            state_dict = prune_state_dict(state_dict, model_cfg)
        return super().load_state_dict(state_dict, strict, model_cfg, args)
