"""Options of models, in the same tables for flags, hydra and checkpoints."""

# The values of choices are types for fairseq, made at run time.
# mypy: disable-error-code="valid-type"

from dataclasses import dataclass
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum

from fairseq_ext.attention import NORMALISERS
from fairseq_ext.attention.normalisers import GPU_KERNELS, Hybrid
from fairseq_ext.errors import UsageError
from fairseq_ext.guidance.plan import SITES
from fairseq_ext.models.config import (
    Requirements,
    described,
    flag,
    help_from_docstring,
    list_options,
    stock_options,
)
from fairseq_ext.roles.role_masks import DEFINITIONS, ROLES

Normalisers = ChoiceEnum(list(NORMALISERS))
Weights = ChoiceEnum(list(Hybrid.WEIGHTS))
Definitions = ChoiceEnum(list(DEFINITIONS))
Kernels = ChoiceEnum(list(GPU_KERNELS))


def _gaussian_heads(kind: str) -> Any:
    return described(
        "0",
        f"number of hard-coded heads (You et al. 2020) in each layer's {kind}, or all; they are "
        "the first ones",
    )


def _gaussian_offsets(site: str, default: str) -> Any:
    return described(
        default,
        "centres of the hard-coded heads, in tokens from the query, as in "
        f"--{site}-gaussian-offsets={default} (with =); repeated over the heads; / separates "
        "layers",
    )


@dataclass
@help_from_docstring
class AttentionOptions:
    """Options of our attention and of the layers around it.

    Attributes:
        encoder_normaliser: normaliser of encoder self-attention
        decoder_normaliser: normaliser of decoder self-attention; only softmax keeps the future
            hidden
        cross_normaliser: normaliser of encoder-decoder attention; only softmax works token by token
        hna_init: initial weight u of doubly-normalised attention in the hybrid (paper: 0.5 for VQA,
            0.1 for headlines, none given for other tasks)
        hna_weight: how u is kept between 0 and 1: sigmoid (ours), raw (not at all, the paper's) or
            clamp
        sinkhorn_sweeps: sweeps of the Sinkhorn normaliser; 1 is doubly-normalised attention
        doubly_kernel: kernel of doubly-normalised and hybrid attention on GPUs: ours in Triton,
            torch's flex_attention, or none (slower, and maps in memory)
        gaussian_sigma: standard deviation of hard-coded heads, in tokens: one, or one for each head
        gaussian_ratio: source tokens per target token, for hard-coded heads of encoder-decoder
            attention
        role_definitions: definitions of the roles: the paper's, or its released code's, where they
            differ
        head_gate: learn a weight for each head of the encoder, which begins as 1 (Wang et al. 2020
            announce it without a formula)
        asa_layers: encoder layers with an adversary (Wu et al. 2023), for a criterion with _asa:
            none, all, upper (the upper half; layers below are computed once for both passes), or
            numbers, as in 3,5
        asa_per_head: let adversaries mask each head on its own (paper: one mask for all heads of a
            layer)
        share_encoder_decoder_layers: use one stack of layers as encoder and decoder;
            encoder-decoder attention has the projections of self-attention (inferred from the
            number of parameters of the headline models of Ding et al.)
        cross_layers: decoder layers that attend to the encoder: all, last, or numbers, as in 0,3
        cross_attention_heads: heads of encoder-decoder attention; 0: as many as the decoder has
    """

    encoder_normaliser: Normalisers = "softmax"
    decoder_normaliser: Normalisers = "softmax"
    cross_normaliser: Normalisers = "softmax"
    hna_init: float = 0.5
    hna_weight: Weights = "sigmoid"
    sinkhorn_sweeps: int = 1
    doubly_kernel: Kernels = "triton"
    encoder_gaussian_heads: str = _gaussian_heads("encoder self-attention")
    decoder_gaussian_heads: str = _gaussian_heads("decoder self-attention")
    cross_gaussian_heads: str = _gaussian_heads("encoder-decoder attention")
    encoder_gaussian_offsets: str = _gaussian_offsets("encoder", "-1,1")
    decoder_gaussian_offsets: str = _gaussian_offsets("decoder", "-1,0")
    cross_gaussian_offsets: str = _gaussian_offsets("cross", "-1,1")
    gaussian_sigma: str = "1"
    gaussian_ratio: float = 1.0
    encoder_roles: str = described(
        "none",
        "roles of the first heads of each encoder layer (Wang et al. 2020), as in rare,relative: "
        f"{', '.join(ROLES)} (an ordinary head); / separates layers",
    )
    role_definitions: Definitions = "paper"
    head_gate: bool = False
    asa_layers: str = "none"
    asa_per_head: bool = False
    share_encoder_decoder_layers: bool = False
    cross_layers: str = "all"
    cross_attention_heads: int = 0


OPTIONS = list_options(AttentionOptions)

_TWO_SIDED = ("decoder_", "cross_", "gaussian_ratio", "share_")

ENCODER_OPTIONS = [option for option in OPTIONS if not option[0].startswith(_TWO_SIDED)]
"""Options of a model that is an encoder alone."""

_ROBERTA_SHARED = {
    *("activation_fn", "dropout", "attention_dropout", "activation_dropout"),
    *("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads"),
    *("encoder_normalize_before", "layernorm_embedding"),
    *("encoder_layerdrop", "encoder_layers_to_keep"),
    *("quant_noise_pq", "quant_noise_pq_block_size", "quant_noise_scalar"),
    *("checkpoint_activations", "offload_activations", "min_params_to_wrap"),
}


@dataclass
@help_from_docstring
class RobertaOptions:
    """Options of RoBERTa-style models that fairseq's Transformer does not have.

    Attributes:
        max_positions: number of positions that have an embedding (default: --tokens-per-sample)
        segments: number of segments (BERT's token types) that have an embedding (default: as in the
            checkpoint that is fine-tuned, 2 for pre-training on pairs, else 0)
        layer_norm_eps: added by layer normalisation to the variance (default: 1e-5 as in fairseq;
            BERT: 1e-12)
        pooler_activation_fn: activation function of classification heads
        pooler_dropout: dropout of classification heads
        untie_weights_roberta: give the output weights of its own, other than the embeddings
        load_checkpoint_heads: register the classification heads that a checkpoint has
        spectral_norm_classification_head: apply spectral normalisation to classification heads
    """

    max_positions: Optional[int] = None
    segments: Optional[int] = None
    layer_norm_eps: Optional[float] = None
    pooler_activation_fn: str = "tanh"
    pooler_dropout: float = 0.0
    untie_weights_roberta: bool = False
    load_checkpoint_heads: bool = False
    spectral_norm_classification_head: bool = False


ROBERTA_OPTIONS = [
    *(option for option in stock_options() if option[0] in _ROBERTA_SHARED),
    *list_options(RobertaOptions),
    *ENCODER_OPTIONS,
]
"""Options of fairseq's RoBERTa, with its names and meanings, and options of our attention."""

HYBRID = ("hna_init", "hna_weight")
"""Options that the parameters of hybrid weights are stored relative to."""

DEFAULTS = {name: field.default for name, _, field in OPTIONS}

CROSS = ("cross_gaussian_heads", "cross_layers", "cross_attention_heads", "cross_normaliser")

OPTION_REQUIREMENTS: Requirements = {
    **dict.fromkeys(HYBRID, (["encoder_normaliser"], ["hybrid"])),
    "sinkhorn_sweeps": (["encoder_normaliser"], ["sinkhorn"]),
    "doubly_kernel": (["encoder_normaliser"], ["doubly", "hybrid", "sinkhorn"]),
    **{f"{site}_gaussian_offsets": ([f"{site}_gaussian_heads"], []) for site in SITES},
    "gaussian_sigma": ([f"{site}_gaussian_heads" for site in SITES], []),
    "gaussian_ratio": (["cross_gaussian_heads"], []),
    **dict.fromkeys(CROSS, (["no_cross_attention"], ["False"])),
    "role_definitions": (["encoder_roles"], []),
    "asa_per_head": (["asa_layers"], []),
}


UNSUPPORTED = ("cross_self_attention", "encoder_xformers_att_config", "decoder_xformers_att_config")


def check_supported(cfg: Any) -> None:
    """Raise UsageError for an option of fairseq's own Transformer that ours does not have."""
    for name in UNSUPPORTED:
        if getattr(cfg, name):
            raise UsageError(
                f"{flag(name)} is not supported here; use fairseq's own --arch transformer."
            )
