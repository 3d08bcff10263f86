"""Normalisers: functions from scores to attention weights, registered in one table.

Each stands in a module of its own; all names are importable from here.
"""

from typing import Any

from fairseq_ext.attention.softmax import NORMALISERS, Normaliser, Softmax, Unnormalised
from fairseq_ext.mechanisms.doubly import GPU_KERNELS, Hybrid, Sinkhorn
from fairseq_ext.mechanisms.entmax import Entmax
from fairseq_ext.mechanisms.sink import Sink
from fairseq_ext.mechanisms.sinkformer import Sinkformer

__all__ = [
    "GPU_KERNELS",
    "NORMALISERS",
    "Entmax",
    "Hybrid",
    "Normaliser",
    "Sink",
    "Sinkformer",
    "Sinkhorn",
    "Softmax",
    "Unnormalised",
    "build_normaliser",
]


def build_normaliser(name: str, heads: int, **options: Any) -> Normaliser:
    """Build the normaliser `name` for a group of `heads` heads.

    Args:
        options: a value for each option of this normaliser; others are ignored.

    Raises:
        UsageError: the name is unknown or an option has no meaning.
    """
    return NORMALISERS.build(name, heads, **options)
