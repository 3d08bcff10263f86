"""The term "ag": attention guidance (Deshpande & Narasimhan 2020, Eq. 2-4) beside a task's loss."""

import logging
from typing import Any, Optional

import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.distributed import utils as distributed
from fairseq.logging import metrics
from omegaconf import II
from torch import Tensor

from fairseq_ext.attention import AttentionRecorder
from fairseq_ext.attention.model_report import get_model_report
from fairseq_ext.criterions.terms import Log, Sample, Step, Term
from fairseq_ext.guidance.loss import REDUCTIONS, sentence_losses
from fairseq_ext.guidance.patterns import View
from fairseq_ext.guidance.plan import DEFAULT_PERIODS, plan_guidance
from fairseq_ext.guidance.schedule import ALPHA_CHOICES, build_schedule, choose_alpha, parse_alpha
from fairseq_ext.models.config import Option, option

logger = logging.getLogger(__name__)

WORDS = "as in next:1,prev:1,first:4, heads counted in the order of writing"


class AttentionGuidance(Term):
    """sum_b alpha_t w_b A_b, where A_b is how far the guided heads are from their patterns.

    w_b is what sentence b adds to the sample size, so that batching, --update-freq and the number
    of processes change nothing. Nothing is observed once alpha_t is 0.

    Raises:
        UsageError: an option cannot be used, or this model's attention cannot be guided so.
    """

    options: list[Option] = [
        option(
            "ag_encoder_heads",
            Optional[str],  # noqa: UP045 (argparse)
            None,
            f"guided heads of encoder self-attention, {WORDS} (default, unless other heads or a "
            "fraction are given, the paper's: next:1,prev:1 for translation, half of the heads for "
            "an encoder alone)",
        ),
        option(
            "ag_decoder_heads",
            Optional[str],  # noqa: UP045
            None,
            "the same for decoder self-attention, where no pattern may look ahead",
        ),
        option(
            "ag_cross_heads",
            Optional[str],  # noqa: UP045
            None,
            "the same for encoder-decoder attention, where a row belongs to the source token at "
            "the same relative position",
        ),
        option(
            "ag_fraction",
            Optional[float],  # noqa: UP045
            None,
            "share of the encoder's heads to guide, by the paper's split: 1 next, 1 prev, the rest "
            "first",
        ),
        option("ag_layers", str, "all", "layers to guide: all, or some, as in 0,1,2"),
        option(
            "ag_alpha",
            str,
            "auto",
            "initial weight, or auto: that of 1, 10, 100 which brings the two losses of the first "
            "batch closest in size (the paper's rule)",
        ),
        option(
            "ag_decay_updates",
            Optional[int],  # noqa: UP045
            None,
            "update at which the weight has fallen to 0 (default: --max-update)",
        ),
        option(
            "ag_hold_updates",
            int,
            0,
            "updates before the weight begins to fall (0 in the paper, 20000 in its released code)",
        ),
        option(
            "ag_reduction",
            ChoiceEnum(list(REDUCTIONS)),
            "mean",
            "of the squared distances in a sentence: mean over rows, columns and the heads of a "
            "pattern, for which 10 and 100 were tuned, or the paper's plain sum",
        ),
        option(
            "ag_period", str, DEFAULT_PERIODS, "symbols that count as period, separated by spaces"
        ),
        ("max_update", int, II("optimization.max_update")),
    ]

    def __init__(self, cfg: Any, task: Any) -> None:
        self.alpha = parse_alpha(cfg.ag_alpha)
        self.schedule = build_schedule(cfg.ag_decay_updates, cfg.ag_hold_updates, cfg.max_update)
        self.reduction, self.task = str(cfg.ag_reduction), task
        self.guided = plan_guidance(cfg, task)
        for site, guided in self.guided.items():
            logger.info("attention guidance, %s: %s", site, guided)

    def keywords(self, updates: int) -> dict[str, Any]:
        if not self.schedule.factor(updates):
            return {}
        wanted = {(site, i): h for site, g in self.guided.items() for i, h in g.layers.items()}
        return {"recorder": AttentionRecorder(lambda site, layer: wanted.get((site, layer)))}

    def loss(self, step: Step) -> tuple[Tensor | float, Log]:
        share = self.schedule.factor(step.updates)
        if not share:
            return 0.0, {"ag_alpha": 0.0}
        views, maps = self._views(step.sample), step.output[1]["attention_maps"]
        losses = sum(
            sentence_losses(maps, site, guided, views[site], self.reduction)
            for site, guided in self.guided.items()
        )
        total = (step.weights * losses).sum()
        if self.alpha is None:
            layers = [(site, i) for site, guided in self.guided.items() for i in guided.layers]
            heard = sum(layer in maps for layer in layers)  # without those that LayerDrop drops
            self.alpha = self._choose(step, total.detach() * len(layers) / max(1, heard))
        alpha = share * (ALPHA_CHOICES[0] if self.alpha is None else self.alpha)
        return alpha * total, {"ag_loss": total.detach(), "ag_alpha": alpha * step.size}

    @staticmethod
    def reduce_metrics(logs: list[Log]) -> None:
        size = sum(log.get("sample_size", 0) for log in logs)
        for name in ("ag_loss", "ag_alpha"):
            if any(name in log for log in logs):
                mean = sum(log.get(name, 0) for log in logs) / size
                metrics.log_scalar(name, mean, size, round=5)

    def _views(self, sample: Sample) -> dict[str, View]:
        source, target = (sample["net_input"].get(n) for n in ("src_tokens", "prev_output_tokens"))
        keys = source.ne(self.task.source_dictionary.pad())
        views = {"encoder": View(source, keys, keys)}
        if target is not None:
            queries = target.ne(self.task.target_dictionary.pad())
            views["decoder"] = View(target, queries, queries, causal=True)
            views["cross"] = View(source, keys, queries)
        return views

    def _choose(self, step: Step, total: Tensor) -> float | None:
        """alpha_0 by the paper's rule, the same in all processes, or as chosen before a resume;
        None if this batch has nothing to choose it by: no target, or no guided layer."""
        chosen = (get_model_report(self.task).guidance_weight or 0) if step.updates else 0
        sums = torch.stack([step.loss.detach().double(), total.double()])
        facts = torch.cat([sums, sums.new_tensor([step.size, chosen, chosen > 0])])
        if distributed.get_data_parallel_world_size() > 1:
            distributed.all_reduce(facts, group=distributed.get_data_parallel_group())
        loss, guidance, size, chosen, times = facts.tolist()
        alpha = chosen / times if times else choose_alpha(loss, guidance)
        if alpha is None:
            return None
        logger.info(
            "attention guidance: --ag-alpha auto takes %g (loss of the task %.3g, of guidance %.3g "
            "at update %d)%s",
            *(alpha, loss / size, guidance / size, step.updates),
            ", as before" if times else "",
        )
        get_model_report(self.task).guidance_weight = alpha
        return alpha
