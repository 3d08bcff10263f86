"""The options that our attention adds to a model: one table for flags, hydra and checkpoints."""

from typing import Any

from fairseq.dataclass import ChoiceEnum

from fairseq_ext.attention import NORMALISERS
from fairseq_ext.attention.normalisers import Hybrid
from fairseq_ext.errors import UsageError
from fairseq_ext.models.config import Option, Requirements, option
from fairseq_ext.roles import DEFINITIONS, ROLES

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
        "normaliser of decoder self-attention; only softmax does not leak the future",
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
        "initial share u of doubly-normalised weights in hybrid attention (0.5 for VQA and 0.1 for "
        "headlines in the paper, which gives none for other tasks)",
    ),
    option(
        "hna_weight",
        ChoiceEnum(list(Hybrid.WEIGHTS)),
        "sigmoid",
        "how u stays between 0 and 1: sigmoid (ours), raw (unbounded, the paper's) or clamp",
    ),
    option(
        "sinkhorn_sweeps",
        int,
        1,
        "sweeps of the sinkhorn normaliser; 1 is doubly-normalised attention",
    ),
    *(
        option(
            f"{site}_gaussian_heads",
            str,
            "0",
            f"hard-coded heads of each layer's {kind} (You et al. 2020), the first ones: all, or a "
            "number",
        )
        for site, kind in KINDS.items()
    ),
    *(
        option(
            f"{site}_gaussian_offsets",
            str,
            offsets,
            f"where those heads look, in tokens from the query, as in --{site}-gaussian-offsets="
            f"{offsets} (with =); repeated over the heads; / separates layers",
        )
        for site, offsets in {"encoder": "-1,1", "decoder": "-1,0", "cross": "-1,1"}.items()
    ),
    option("gaussian_sigma", str, "1", "standard deviation of those heads, one or one for each"),
    option(
        "gaussian_ratio",
        float,
        1.0,
        "source tokens for each target token, where hard-coded heads look at the encoder",
    ),
    option(
        "encoder_roles",
        str,
        "none",
        "roles of the first heads of each encoder layer (Wang et al. 2020), as in rare,relative: "
        f"{', '.join(ROLES)} (a head like the others); / separates layers",
    ),
    option(
        "role_definitions",
        ChoiceEnum(list(DEFINITIONS)),
        "paper",
        "of roles: the paper's, or those of its released code, where they differ",
    ),
    option(
        "head_gate",
        bool,
        False,
        "a weight for each head of the encoder, 1 at first (Wang et al. announce it without a "
        "formula)",
    ),
    option(
        "asa_layers",
        str,
        "none",
        "encoder layers with an adversary (Wu et al. 2023), for a criterion with _asa: none, all, "
        "upper (half of them; what is below is computed once for both passes), or some, as in 3,5",
    ),
    option(
        "asa_per_head",
        bool,
        False,
        "an adversary masks each head on its own (the paper's: one mask for all heads of a layer)",
    ),
    option(
        "share_encoder_decoder_layers",
        bool,
        False,
        "one stack of layers is both encoder and decoder; encoder-decoder attention projects as "
        "self-attention does (inferred from the parameters of the headline models of Ding et al.)",
    ),
    option("cross_layers", str, "all", "decoder layers that attend to the encoder: all, last, 0,3"),
    option("cross_attention_heads", int, 0, "their heads; 0: as many as the decoder has"),
]

_TWO_SIDED = ("decoder_", "cross_", "gaussian_ratio", "share_")

ENCODER_OPTIONS = [option for option in OPTIONS if not option[0].startswith(_TWO_SIDED)]
"""Those of a model that is an encoder alone."""

HYBRID = ("hna_init", "hna_weight")
"""What hybrid weights are stored relative to."""

DEFAULTS = {name: field.default for name, _, field in OPTIONS}

HARD_CODED = [f"{site}_gaussian_heads" for site in KINDS]
CROSS = ("cross_gaussian_heads", "cross_layers", "cross_attention_heads", "cross_normaliser")

OPTION_REQUIREMENTS: Requirements = {
    **dict.fromkeys(HYBRID, (["encoder_normaliser"], ["hybrid"])),
    "sinkhorn_sweeps": (["encoder_normaliser"], ["sinkhorn"]),
    **{f"{site}_gaussian_offsets": ([f"{site}_gaussian_heads"], []) for site in KINDS},
    "gaussian_sigma": (HARD_CODED, []),
    "gaussian_ratio": (["cross_gaussian_heads"], []),
    **dict.fromkeys(CROSS, (["no_cross_attention"], ["False"])),
    "role_definitions": (["encoder_roles"], []),
    "asa_per_head": (["asa_layers"], []),
}


UNSUPPORTED = ("cross_self_attention", "encoder_xformers_att_config", "decoder_xformers_att_config")


def check_supported(cfg: Any) -> None:
    """Raises UsageError for an option of fairseq's own Transformer that ours does not have."""
    for name in UNSUPPORTED:
        if getattr(cfg, name):
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"{flag} is not supported here; use fairseq's own --arch transformer.")
