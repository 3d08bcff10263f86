"""Models that are read from checkpoints with more layers, as after LayerDrop."""

from argparse import Namespace
from typing import Any

from fairseq.checkpoint_utils import prune_state_dict
from torch import Tensor, nn

SIDES = ("encoder", "decoder")


class Prunable(nn.Module):
    """A model that knows what the checkpoint's layers lack, or have too many of, once the layers
    that remain have their numbers; fairseq asks it only before."""

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
