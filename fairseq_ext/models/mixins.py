"""Mixin of all models with our attention, what they report, and a decorator of their forward."""

import re
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from itertools import repeat
from typing import Any

from fairseq.checkpoint_utils import prune_state_dict
from fairseq.dataclass.utils import gen_parser_from_dataclass
from torch import Tensor, nn

from fairseq_ext.attention import Attention, AttentionRecorder
from fairseq_ext.attention.slots import map_options
from fairseq_ext.mechanisms.guidance.plan import find_guidable_heads
from fairseq_ext.mechanisms.second_pass.passes import SecondPass
from fairseq_ext.models.config import keep_true_flags
from fairseq_ext.models.model_report import ModelReport, get_model_report
from fairseq_ext.models.reporting import ReportingModel

SIDES = ("encoder", "decoder")


class AttentionModel(ReportingModel):
    """Mixin that logs statistics and upgrades checkpoints before layers are pruned."""

    reporting = Attention

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Add the options of the architecture, which are flat, to a parser.

        Choices are the parts that are registered then.
        """
        config = getattr(cls, "__dataclass")
        gen_parser_from_dataclass(parser, config(), delete_default=True)
        keep_true_flags(parser._actions, config)
        slots = map_options()
        for action in parser._actions:
            if action.dest in slots and not slots[action.dest].several:
                action.choices = slots[action.dest].parts

    def load_state_dict(
        self, state_dict: dict, strict: bool = True, model_cfg: Any = None, args: Any = None
    ) -> Any:
        """Load parameters; --encoder-layers-to-keep and --decoder-layers-to-keep are of model_cfg.

        Without it they are those that the model was built with, as for a moving average.
        Our upgrade of a state dict needs the numbers that layers have after pruning, and fairseq
        calls it only before: it is called once more, when the pruned layers have been renumbered.
        A state dict that was saved after that is not pruned again.
        """
        if model_cfg is None and hasattr(self, "adopted_options"):
            model_cfg = Namespace(arch="", **self.adopted_options())
        kept = [getattr(model_cfg, f"{side}_layers_to_keep", None) for side in SIDES]
        if any(kept) and not any(map(_has_more_layers, kept, SIDES, repeat(state_dict))):
            return super().load_state_dict(state_dict, strict)
        if any(kept):
            parts = [module for module in self.modules() if isinstance(module, Attention)]
            for part in parts:
                part.renames_only = True
            self.upgrade_state_dict(state_dict)  # to the names that fairseq prunes
            for part in parts:
                part.renames_only = False
            state_dict = prune_state_dict(state_dict, model_cfg)
        return super().load_state_dict(state_dict, strict, model_cfg, args)


def _has_more_layers(kept: str | None, side: str, names: Iterable[str]) -> bool:
    """Return whether a side has layers beside as many as are to be kept of it."""
    place = re.compile(rf"{side}\.(?:sentence_encoder\.)?layers\.(\d+)\.")
    numbers = {int(found[1]) for found in map(place.match, names) if found}
    return kept is not None and len(numbers) > len(kept.split(","))


def find_adversary_layers(model: nn.Module) -> list[int]:
    """Return the numbers of the layers that have an adversary."""
    parts = [module for module in model.modules() if isinstance(module, Attention)]
    return sorted(part.layer for part in parts if part.adversary is not None)


def report_model(model: nn.Module, task: Any) -> ModelReport:
    """Write into the task's report the heads to guide and the layers with an adversary."""
    report = get_model_report(task)
    report.guidable = find_guidable_heads(model)
    report.adversary_layers = find_adversary_layers(model)
    return report


def drop_adversaries(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the parameters without those of adversaries, which only training uses."""
    return {name: value for name, value in parameters.items() if ".adversary." not in name}


def record_attention(forward: Callable) -> Callable:
    """Decorate a model's forward, which returns (output, extra), to return what it records.

    `recorder` and `second` are emptied before the pass. The maps of the recorder are in `extra` as
    "attention_maps" and the counts of the second pass as "counts": under data parallelism a loss on
    a tensor that is not in the output breaks.
    """

    @wraps(forward)
    def call(
        self: nn.Module,
        *args: Any,
        recorder: AttentionRecorder | None = None,
        second: SecondPass | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        if recorder is not None:
            recorder.begin(kwargs)
        if second is not None:
            second.counts = {}
        output, extra = forward(self, *args, recorder=recorder, second=second, **kwargs)
        if recorder is not None:
            extra["attention_maps"] = recorder.maps
        if second is not None:
            extra["counts"] = second.counts
        return output, extra

    return call
