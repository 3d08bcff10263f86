"""Adversaries of encoder layers (ASA, Wu et al. 2023): which layers have one."""

from collections.abc import Mapping
from typing import Any

import torch
from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from fairseq_ext.attention import Adversary, Attention
from fairseq_ext.attention.model_report import ModelReport, get_model_report
from fairseq_ext.guidance.selection import ALL_LAYERS, choose_layers, find_guidable_heads

SEED_STEP = 1_000_003  # between the seeds of layers


def parse_adversary_layers(text: str, layers: int) -> list[int]:
    """Return the encoder layers with an adversary, named as "none", "all", "upper" or "3,5"."""
    words = {"none": slice(0), **ALL_LAYERS, "upper": slice(layers // 2, None)}
    return choose_layers("--asa-layers", text, range(layers), words)


def build_adversary(site: str, layer: int, cfg: TransformerConfig) -> Adversary | None:
    """Build the adversary of a layer, or return None if it has none.

    Its parameters are drawn with a seed of their own. With one --seed, the other parameters are
    then the same in models with and without adversaries.
    """
    if site != "encoder" or layer not in parse_adversary_layers(cfg.asa_layers, cfg.encoder.layers):
        return None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch.initial_seed() + SEED_STEP * (layer + 1))
        heads = cfg.encoder.attention_heads if cfg.asa_per_head else 1
        return Adversary(cfg.encoder.embed_dim, heads)


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
