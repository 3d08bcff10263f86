"""Which layers have an adversary, and whether the criterion trains it."""

import logging
from collections.abc import Mapping
from typing import Any

import torch
from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from fairseq_ext.attention import Adversary, Attention
from fairseq_ext.attention.model_report import ModelReport, report_of
from fairseq_ext.errors import UsageError
from fairseq_ext.guidance.selection import ALL, choose_layers, learned_heads

logger = logging.getLogger(__name__)

APART = 1_000_003  # between the seeds of layers


def parse_adversary_layers(text: str, layers: int) -> list[int]:
    """ "none", "all", "upper" or "3,5": the encoder layers that have an adversary."""
    words = {"none": slice(0), **ALL, "upper": slice(layers // 2, None)}
    return choose_layers("--asa-layers", text, range(layers), words)


def build_adversary(site: str, layer: int, cfg: TransformerConfig) -> Adversary | None:
    """That of a layer, if it is to have one.

    It draws from random numbers of its own: with one seed, models with and without adversaries
    begin with the same parameters otherwise.
    """
    if site != "encoder" or layer not in parse_adversary_layers(cfg.asa_layers, cfg.encoder.layers):
        return None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch.initial_seed() + APART * (layer + 1))
        heads = cfg.encoder.attention_heads if cfg.asa_per_head else 1
        return Adversary(cfg.encoder.embed_dim, heads)


def find_adversary_layers(model: nn.Module) -> list[int]:
    return sorted(
        module.layer
        for module in model.modules()
        if isinstance(module, Attention) and module.adversary is not None
    )


def report_model(model: nn.Module, task: Any) -> ModelReport:
    """Tell the task what a criterion asks: heads to guide and layers with an adversary."""
    report = report_of(task)
    report.guidable, report.adversary_layers = learned_heads(model), find_adversary_layers(model)
    return report


def drop_adversaries(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All but those of adversaries, which nothing but training uses."""
    return {name: value for name, value in parameters.items() if ".adversary." not in name}


def check(model: nn.Module, criterion: Any, name: str, clip_norm: float) -> None:
    """Raises UsageError if adversaries would be trained by nothing, or there are none to train.

    Args:
        name: of the criterion.
    """
    adversaries = [module for module in model.modules() if isinstance(module, Adversary)]
    trained = getattr(criterion, "uses_adversaries", False)
    if adversaries and not trained:
        raise UsageError(
            f"--criterion {name} does not train the adversaries of --asa-layers or an --arch like "
            "roberta_asa gives; give one with _asa and no --asa-rival, or --asa-layers none"
        )
    if trained and not adversaries:
        raise UsageError(
            f"--criterion {name} needs an architecture with adversaries; give --asa-layers all, an "
            "--arch like roberta_asa or transformer_asa, or an --asa-rival"
        )
    if trained and not any(p.requires_grad for a in adversaries for p in a.parameters()):
        raise UsageError(
            f"--criterion {name} cannot train adversaries in a frozen encoder; leave out "
            "--freeze-encoder, or give an --asa-rival"
        )
    if trained and clip_norm:
        logger.warning(
            "--clip-norm %g cuts all gradients by one norm, and adversaries have by far the "
            "largest; their authors do not clip: give --clip-norm 0",
            clip_norm,
        )
