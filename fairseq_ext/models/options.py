"""Options of models, in the same tables for flags, hydra and checkpoints."""

from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum

from fairseq_ext.attention import NORMALISERS
from fairseq_ext.attention.normalisers import GPU_KERNELS, Hybrid
from fairseq_ext.errors import UsageError
from fairseq_ext.models.config import Option, Requirements, option, stock_options
from fairseq_ext.roles.role_masks import DEFINITIONS, ROLES

Normalisers = ChoiceEnum(list(NORMALISERS))

KINDS = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "encoder-decoder attention",
}

OPTIONS: list[Option] = [
    option("encoder_normaliser", Normalisers, "softmax", "normaliser of encoder self-attention"),
    option(
        "decoder_normaliser",
        Normalisers,
        "softmax",
        "normaliser of decoder self-attention; only softmax keeps the future hidden",
    ),
    option(
        "cross_normaliser",
        Normalisers,
        "softmax",
        "normaliser of encoder-decoder attention; only softmax works token by token",
    ),
    option(
        "hna_init",
        float,
        0.5,
        "initial weight u of doubly-normalised attention in the hybrid (paper: 0.5 for VQA, 0.1 "
        "for headlines, none given for other tasks)",
    ),
    option(
        "hna_weight",
        ChoiceEnum(list(Hybrid.WEIGHTS)),
        "sigmoid",
        "how u is kept between 0 and 1: sigmoid (ours), raw (not at all, the paper's) or clamp",
    ),
    option(
        "sinkhorn_sweeps",
        int,
        1,
        "sweeps of the Sinkhorn normaliser; 1 is doubly-normalised attention",
    ),
    option(
        "doubly_kernel",
        ChoiceEnum(list(GPU_KERNELS)),
        "triton",
        "kernel of doubly-normalised and hybrid attention on GPUs: ours in Triton, torch's "
        "flex_attention, or none (slower, and maps in memory)",
    ),
    *(
        option(
            f"{site}_gaussian_heads",
            str,
            "0",
            f"number of hard-coded heads (You et al. 2020) in each layer's {kind}, or all; they "
            "are the first ones",
        )
        for site, kind in KINDS.items()
    ),
    *(
        option(
            f"{site}_gaussian_offsets",
            str,
            offsets,
            f"centres of the hard-coded heads, in tokens from the query, as in "
            f"--{site}-gaussian-offsets={offsets} (with =); repeated over the heads; / separates "
            "layers",
        )
        for site, offsets in {"encoder": "-1,1", "decoder": "-1,0", "cross": "-1,1"}.items()
    ),
    option(
        "gaussian_sigma",
        str,
        "1",
        "standard deviation of hard-coded heads, in tokens: one, or one for each head",
    ),
    option(
        "gaussian_ratio",
        float,
        1.0,
        "source tokens per target token, for hard-coded heads of encoder-decoder attention",
    ),
    option(
        "encoder_roles",
        str,
        "none",
        "roles of the first heads of each encoder layer (Wang et al. 2020), as in rare,relative: "
        f"{', '.join(ROLES)} (an ordinary head); / separates layers",
    ),
    option(
        "role_definitions",
        ChoiceEnum(list(DEFINITIONS)),
        "paper",
        "definitions of the roles: the paper's, or its released code's, where they differ",
    ),
    option(
        "head_gate",
        bool,
        False,
        "learn a weight for each head of the encoder, which begins as 1 (Wang et al. 2020 announce "
        "it without a formula)",
    ),
    option(
        "asa_layers",
        str,
        "none",
        "encoder layers with an adversary (Wu et al. 2023), for a criterion with _asa: none, all, "
        "upper (the upper half; layers below are computed once for both passes), or numbers, as in "
        "3,5",
    ),
    option(
        "asa_per_head",
        bool,
        False,
        "let adversaries mask each head on its own (paper: one mask for all heads of a layer)",
    ),
    option(
        "share_encoder_decoder_layers",
        bool,
        False,
        "use one stack of layers as encoder and decoder; encoder-decoder attention has the "
        "projections of self-attention (inferred from the number of parameters of the headline "
        "models of Ding et al.)",
    ),
    option(
        "cross_layers",
        str,
        "all",
        "decoder layers that attend to the encoder: all, last, or numbers, as in 0,3",
    ),
    option(
        "cross_attention_heads",
        int,
        0,
        "heads of encoder-decoder attention; 0: as many as the decoder has",
    ),
]

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

ROBERTA_OPTIONS: list[Option] = [
    *(stock_option for stock_option in stock_options() if stock_option[0] in _ROBERTA_SHARED),
    option(
        "max_positions",
        Optional[int],  # noqa: UP045 (argparse)
        None,
        "number of positions that have an embedding (default: --tokens-per-sample)",
    ),
    option(
        "segments",
        Optional[int],  # noqa: UP045
        None,
        "number of segments (BERT's token types) that have an embedding (default: as in the "
        "checkpoint that is fine-tuned, 2 for pre-training on pairs, else 0)",
    ),
    option(
        "layer_norm_eps",
        Optional[float],  # noqa: UP045
        None,
        "added by layer normalisation to the variance (default: 1e-5 as in fairseq; BERT: 1e-12)",
    ),
    option("pooler_activation_fn", str, "tanh", "activation function of classification heads"),
    option("pooler_dropout", float, 0.0, "dropout of classification heads"),
    option(
        "untie_weights_roberta",
        bool,
        False,
        "give the output weights of its own, other than the embeddings",
    ),
    option(
        "load_checkpoint_heads",
        bool,
        False,
        "register the classification heads that a checkpoint has",
    ),
    option(
        "spectral_norm_classification_head",
        bool,
        False,
        "apply spectral normalisation to classification heads",
    ),
    *ENCODER_OPTIONS,
]
"""Options of fairseq's RoBERTa, with its names and meanings, and options of our attention."""

HYBRID = ("hna_init", "hna_weight")
"""Options that the parameters of hybrid weights are stored relative to."""

DEFAULTS = {name: field.default for name, _, field in OPTIONS}

HARD_CODED = [f"{site}_gaussian_heads" for site in KINDS]
CROSS = ("cross_gaussian_heads", "cross_layers", "cross_attention_heads", "cross_normaliser")

OPTION_REQUIREMENTS: Requirements = {
    **dict.fromkeys(HYBRID, (["encoder_normaliser"], ["hybrid"])),
    "sinkhorn_sweeps": (["encoder_normaliser"], ["sinkhorn"]),
    "doubly_kernel": (["encoder_normaliser"], ["doubly", "hybrid", "sinkhorn"]),
    **{f"{site}_gaussian_offsets": ([f"{site}_gaussian_heads"], []) for site in KINDS},
    "gaussian_sigma": (HARD_CODED, []),
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
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"{flag} is not supported here; use fairseq's own --arch transformer.")
