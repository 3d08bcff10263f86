"""The term "ag": attention guidance (Deshpande & Narasimhan 2020, Eq. 2-4)."""

# The values of choices are types for fairseq, made at run time.
# mypy: disable-error-code="valid-type"

import logging
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.distributed import utils as distributed
from omegaconf import II
from torch import Tensor

from fairseq_ext.attention.options import (
    Rules,
    check_rules,
    option,
    real,
    whole,
)
from fairseq_ext.criterions.logging_outputs import Log, log_means
from fairseq_ext.criterions.terms import Term, TrainingStep
from fairseq_ext.mechanisms.guidance.loss import EDGES, REDUCTIONS, sentence_losses
from fairseq_ext.mechanisms.guidance.patterns import View
from fairseq_ext.mechanisms.guidance.plan import DEFAULT_PERIODS, is_encoder_alone, plan_guidance
from fairseq_ext.mechanisms.guidance.recorder import GuidanceRecorder
from fairseq_ext.mechanisms.guidance.schedule import (
    ALPHA_CHOICES,
    DECODER_ALPHAS,
    RELEASED_HOLD,
    build_schedule,
    choose_alpha,
    parse_alpha,
)
from fairseq_ext.models.config import contradict, help_from_docstring, to_dict
from fairseq_ext.models.model_report import get_model_report

logger = logging.getLogger(__name__)

Reductions = ChoiceEnum(list(REDUCTIONS))
Edges = ChoiceEnum(list(EDGES))
Maps = ChoiceEnum(["before", "after"])

DEFAULTS = {
    "ag_hold_updates": 0,
    "ag_reduction": "mean",
    "ag_edges": "uniform",
    "ag_maps": "before",
}
RELEASED = {"ag_reduction": "mean", "ag_edges": "zero", "ag_maps": "after"}
PRESETS: dict[str, dict[str, Any]] = {
    "none": {},
    "released": {**RELEASED, "ag_hold_updates": RELEASED_HOLD},
}
"""Values that each preset gives to options which the user has not set."""

CONTRADICTIONS: Rules = {
    option: [contradict("ag_preset", {"released": [value]})]
    for option, value in PRESETS["released"].items()
}
"""Option -> the rule that it must not contradict a preset."""

Presets = ChoiceEnum(list(PRESETS))


@dataclass
@help_from_docstring
class GuidanceConfig(FairseqDataclass):
    """The options of the term "ag".

    Attributes:
        ag_encoder_heads: guided heads of encoder self-attention, as in next:1,prev:1,first:4, heads
            counted in the order of writing (default, unless other heads or a fraction are given,
            the paper's: next:1,prev:1 for translation, half of the heads for an encoder alone)
        ag_decoder_heads: the same for decoder self-attention, where no pattern may look ahead
        ag_cross_heads: the same for encoder-decoder attention, where a row belongs to the source
            token at the same relative position
        ag_fraction: share of the encoder's heads to guide, by the paper's split: 1 next, 1 prev,
            the rest first
        ag_layers: layers to guide: all, or some, as in 0,1,2
        ag_preset: released sets how long guidance holds, its reduction, edges and maps to what the
            authors' released code computes, where it holds for 20,000 updates, or until it ends
        ag_alpha: initial weight, or auto: that of 1, 10, 100 which brings the two losses of the
            first batch closest in size, the paper's rule for pre-training (default: auto for an
            encoder alone, 1 for translation and language models, where auto takes too much)
        ag_decay_updates: update at which the weight has fallen to 0 (default: --max-update)
        ag_hold_updates: updates before the weight begins to fall (default: 0, the paper's; 20000 in
            its released code)
        ag_reduction: how squared distances of a sentence are reduced: mean over rows, columns and
            the heads of a pattern, for which 10 and 100 were tuned (default), or the paper's plain
            sum
        ag_edges: target of a row whose neighbour is missing, of next and prev: uniform (default,
            the paper's) or zero (released code: another number, with the same gradient where rows
            sum to one)
        ag_maps: attention that is guided: before its dropout (default), or after it, as in the
            released code
        ag_period: symbols that count as period, separated by spaces
    """

    ag_encoder_heads: Optional[str] = None
    ag_decoder_heads: Optional[str] = None
    ag_cross_heads: Optional[str] = None
    ag_fraction: Optional[float] = option(None, real("(0, 1]", "a share that is not nothing"))
    ag_layers: str = "all"
    ag_preset: Presets = "none"
    ag_alpha: Optional[str] = None
    ag_decay_updates: Optional[int] = option(None, whole("[1, 1000000000]", "a number of updates"))
    ag_hold_updates: Optional[int] = option(None, whole("[0, 1000000]", "a number of updates"))
    ag_reduction: Optional[Reductions] = None
    ag_edges: Optional[Edges] = None
    ag_maps: Optional[Maps] = None
    ag_period: str = DEFAULT_PERIODS
    max_update: int = II("optimization.max_update")


def resolve_options(cfg: Any) -> Namespace:
    """Return the options with those of the preset, and defaults of what is still None.

    Raises:
        UsageError: an option contradicts the preset.
    """
    values = to_dict(cfg)
    check_rules(values, CONTRADICTIONS)
    name = str(values.get("ag_preset", "none"))
    usual = {**DEFAULTS, **PRESETS[name]}
    return Namespace(**values | {k: v for k, v in usual.items() if values.get(k) is None})


class AttentionGuidance(Term):
    """sum_b alpha_t w_b A_b, where A_b is the distance of the guided heads from their patterns.

    w_b is what sentence b adds to the sample size, so that batching, --update-freq and the number
    of processes change nothing. No attention is recorded once alpha_t is 0.

    Raises:
        UsageError: an option cannot be used, or this model's attention cannot be guided so.
    """

    config = GuidanceConfig

    def __init__(self, cfg: Any, task: Any) -> None:
        cfg = resolve_options(cfg)
        super().__init__(cfg, task)
        self.alpha = parse_alpha(cfg.ag_alpha)
        hold, end = cfg.ag_hold_updates, cfg.ag_decay_updates or cfg.max_update
        if str(cfg.ag_preset) == "released":  # there, a shorter training holds to its end
            hold = max(0, min(hold, end))
        self.schedule = build_schedule(cfg.ag_decay_updates, hold, cfg.max_update)
        guidable = get_model_report(task).guidable
        self.guided = plan_guidance(cfg, task, guidable)
        by_rule = cfg.ag_alpha is not None or is_encoder_alone(guidable)
        self.alphas = ALPHA_CHOICES if by_rule else DECODER_ALPHAS
        for site, guided in self.guided.items():
            logger.info("attention guidance, %s: %s", site, guided)

    def keywords(self, updates: int) -> dict[str, Any]:
        """Return a recorder of the guided heads, as long as they are guided."""
        if not self.schedule.factor(updates):
            return {}
        edges, dropped = str(self.cfg.ag_edges), str(self.cfg.ag_maps) == "after"
        return {"recorder": GuidanceRecorder(self.guided, self._build_views, edges, dropped)}

    def loss(self, step: TrainingStep) -> tuple[Tensor | float, Log]:
        """Return the guidance loss; choose its weight in the first step unless it is given."""
        share = self.schedule.factor(step.updates)
        if not share:
            return 0.0, {"ag_alpha": 0.0}
        maps, replaced = step.output[1]["attention_maps"], step.output[1].get("replaced")
        read = {} if replaced is None else {"src_tokens": replaced}  # by a generator
        views = self._build_views({**step.sample["net_input"], **read})
        forms = str(self.cfg.ag_reduction), str(self.cfg.ag_edges)
        losses = sum(
            sentence_losses(maps, site, guided, views[site], *forms)
            for site, guided in self.guided.items()
        )
        total = (step.weights * losses).sum()
        if self.alpha is None:
            layers = [(site, i) for site, guided in self.guided.items() for i in guided.layers]
            recorded = sum(layer in maps for layer in layers)  # LayerDrop may drop some
            self.alpha = self._choose_alpha(step, total.detach() * len(layers) / max(1, recorded))
        alpha = share * (self.alphas[0] if self.alpha is None else self.alpha)
        return alpha * total, {"ag_loss": total.detach(), "ag_alpha": alpha * step.sample_size}

    @classmethod
    def reduce_metrics(cls, logs: list[Log]) -> None:
        """Log the unweighted loss and the weight."""
        log_means(logs, ("ag_loss", "ag_alpha"))

    def _build_views(self, inputs: Mapping[str, Any]) -> dict[str, View]:
        """Return site -> tokens and padding as a model with these arguments reads them."""
        source, target = inputs["src_tokens"], inputs.get("prev_output_tokens")
        keys = source.ne(self.task.source_dictionary.pad())
        views = {"encoder": View(source, keys, keys)}
        if target is not None:
            queries = target.ne(self.task.target_dictionary.pad())
            views["decoder"] = View(target, queries, queries, causal=True)
            views["cross"] = View(source, keys, queries)
        else:  # of a language model
            views["decoder"] = View(source, keys, keys, causal=True)
        return views

    def _choose_alpha(self, step: TrainingStep, total: Tensor) -> float | None:
        """Return alpha_0 of `alphas` by the paper's rule, the same in all processes.

        A resumed training keeps the alpha_0 that it chose before. The result is None if this batch
        has nothing to choose by: no target, or no guided layer.
        """
        state = self.task.state
        chosen = state.state_dict.get("ag_alpha", 0) if step.updates else 0
        sums = torch.stack([step.loss.detach().double(), total.double()])
        facts = torch.cat([sums, sums.new_tensor([step.sample_size, chosen, chosen > 0])])
        if distributed.get_data_parallel_world_size() > 1:
            distributed.all_reduce(facts, group=distributed.get_data_parallel_group())
        loss, guidance, size, chosen, choices = facts.tolist()
        alpha = chosen / choices if choices else choose_alpha(loss, guidance, self.alphas)
        if alpha is None:
            return None
        logger.info(
            "attention guidance: the initial weight is %g (loss of the task %.3g, of guidance %.3g "
            "at update %d)%s",
            *(alpha, loss / size, guidance / size, step.updates, ", as before" if choices else ""),
        )
        state.merge_state_dict({"ag_alpha": alpha})
        return alpha
