"""Checks of mechanisms, those of other packages too: naive twins, gradients and invariants.

Each function raises AssertionError if something does not hold, and says what:

    from fairseq_ext.testing import check_mechanism, check_normaliser

    def test_cubed():
        check_normaliser("cubed", naive_cubed, cubed_power=2.0)
        check_mechanism("cubed")
"""

from fairseq_ext.testing.losses import check_pattern, check_regulariser
from fairseq_ext.testing.mechanisms import check_mechanism, check_model
from fairseq_ext.testing.mixers import check_head_mixer
from fairseq_ext.testing.slot_checks import (
    check_head_gate,
    check_mask,
    check_normaliser,
    check_scorer,
)

__all__ = [
    "check_head_gate",
    "check_head_mixer",
    "check_mask",
    "check_mechanism",
    "check_model",
    "check_normaliser",
    "check_pattern",
    "check_regulariser",
    "check_scorer",
]
