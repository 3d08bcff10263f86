"""The options that our attention adds to a model: one table for flags, hydra and checkpoints."""

from fairseq.dataclass import ChoiceEnum

from fairseq_ext.attention import NORMALISERS
from fairseq_ext.attention.normalisers import Hybrid
from fairseq_ext.models.config import Option, option

Normalisers = ChoiceEnum(list(NORMALISERS))

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
]
