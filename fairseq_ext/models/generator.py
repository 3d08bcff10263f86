"""ELECTRA's learned generator: a small masked language model that shares embeddings."""

from copy import copy

import torch
import torch.nn.functional as F
from fairseq import utils
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import LayerNorm
from torch import Tensor, nn

from fairseq_ext.attention import Inputs
from fairseq_ext.attention.options import Rule, Rules, check_rules
from fairseq_ext.data.batch_facts import has_padding
from fairseq_ext.errors import UsageError
from fairseq_ext.models.layers import (
    EncoderLayer,
    build_relative_embeddings,
    run_layers,
    share_positions,
)
from fairseq_ext.models.options import DEFAULTS, ENCODER_OPTIONS

KEPT = ("encoder_positions", "t5_", "disentangled_")
"""How options begin that the generator has from its model; else its attention is plain."""

RULES: Rules = {
    "generator_size": Rule(
        "encoder_positions encoder_scorer",
        "{one} is of a generator with plain attention, which in a model with {other} would not "
        "know the order of words; give other positions",
        lambda size, positions, scorer: positions == "none" and scorer != "disentangled",
    )
}

SEED = 0  # of samples in evaluation


class Generator(nn.Module):
    """A masked language model p_G of the tokens at masked positions (Clark et al. 2020, Section 2).

    Its embeddings, with positions and their normalisation, are those of the model, projected to its
    width; so are its output weights. It has as many layers, and a share of the heads, of the
    width and of the width of feed-forward layers.

    Args:
        cfg: of the model.
        share: above 0, up to 1; heads are rounded to whole ones, of which there is at least one.
        symbols: V.
        inner: E, the width of embeddings; 0: the model's.

    Raises:
        UsageError: the share is none.
    """

    def __init__(self, cfg: TransformerConfig, share: float, symbols: int, inner: int = 0) -> None:
        super().__init__()
        if not 0 < share <= 1:
            raise UsageError(f"--generator-size is {share:g}; give a share above 0, up to 1")
        width, cfg = cfg.encoder.embed_dim, shrink(cfg, share)
        own = cfg.encoder.embed_dim
        self.project = nn.Linear(width, own)
        self.layers = nn.ModuleList(EncoderLayer(cfg, index) for index in range(cfg.encoder.layers))
        share_positions(self.layers)
        self.relative = build_relative_embeddings(self.layers, own)
        self.layer_norm = LayerNorm(own) if cfg.encoder.normalize_before else None
        inner = inner or width
        self.dense, self.head_norm = nn.Linear(own, inner), LayerNorm(inner)
        self.bias = nn.Parameter(torch.zeros(symbols))
        self.activation = utils.get_activation_fn(cfg.activation_fn)

    def forward(self, x: Tensor, padding: Tensor, masked: Tensor, weight: Tensor) -> Tensor:
        """Return the scores [n, V] of the n masked tokens.

        Args:
            x: [B, S, C], embedded tokens.
            padding: [B, S] bool.
            masked: [B, S] bool, the tokens to predict.
            weight: [V, E], the embeddings of tokens.
        """
        x = self.project(x).masked_fill(padding[..., None], 0.0).transpose(0, 1)
        inputs = Inputs(padding if has_padding(padding) else None)
        inputs.relative = None if self.relative is None else self.relative()
        x = run_layers(self.layers, x, inputs)[-1]
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x = self.head_norm(self.activation(self.dense(x.transpose(0, 1)[masked])))
        return F.linear(x, weight, self.bias)

    def sample(self, scores: Tensor, excluded: list[int]) -> Tensor:
        """Return a token [n] from p_G for each row of scores [n, V], without gradient.

        In evaluation samples are the same ones for the same scores.

        Args:
            excluded: symbols that are never sampled.
        """
        scores = scores.detach().float().clone()
        scores[:, excluded] = -torch.inf
        chance = None
        if not self.training:
            chance = torch.Generator(scores.device).manual_seed(SEED)
        return scores.softmax(-1).multinomial(1, generator=chance)[:, 0]


def shrink(cfg: TransformerConfig, share: float) -> TransformerConfig:
    """Return a configuration of plain attention, with a share of the heads of the same width.

    Raises:
        UsageError: nothing would tell it where words stand.
    """
    sited = {name: getattr(cfg, name) for name in ("encoder_positions", "encoder_scorer")}
    check_rules({"generator_size": share, **sited}, RULES)
    cfg = copy(cfg)
    cfg.encoder_conv_kernel = 0
    scorer = ("encoder_scorer",) if cfg.encoder_scorer == "disentangled" else ()
    for name, *_ in ENCODER_OPTIONS:
        if not name.startswith((*KEPT, *scorer)):
            setattr(cfg, name, DEFAULTS[name])
    encoder = cfg.encoder = copy(cfg.encoder)
    head_width = encoder.embed_dim // encoder.attention_heads
    encoder.attention_heads = max(1, round(share * encoder.attention_heads))
    encoder.embed_dim = head_width * encoder.attention_heads
    encoder.ffn_embed_dim = max(1, round(share * encoder.ffn_embed_dim))
    return cfg
