"""Second passes over the sentences of a batch, and adversaries that choose what these mask.

Wu et al. 2023, "Adversarial Self-Attention for Language Understanding".
"""

from fairseq_ext.mechanisms.second_pass.adversary import (
    Adversary,
    AdversaryOptions,
    BertLinear,
    build_adversary,
    parse_adversary_layers,
    straight_through_step,
)
from fairseq_ext.mechanisms.second_pass.passes import (
    EMPTY_ROWS,
    MASK_SCALE,
    AdversarialPass,
    BernoulliPass,
    MagnitudePass,
    SecondPass,
    UnitCounts,
)

__all__ = [
    "EMPTY_ROWS",
    "MASK_SCALE",
    "AdversarialPass",
    "Adversary",
    "AdversaryOptions",
    "BernoulliPass",
    "BertLinear",
    "MagnitudePass",
    "SecondPass",
    "UnitCounts",
    "build_adversary",
    "parse_adversary_layers",
    "straight_through_step",
]
