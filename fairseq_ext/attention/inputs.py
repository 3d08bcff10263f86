"""Deprecated module path of `fairseq_ext.attention.context`; goes in the next version."""

import warnings

from fairseq_ext.attention.context import AttentionContext as Frame
from fairseq_ext.attention.context import AttentionRecorder as Listener
from fairseq_ext.attention.context import Inputs

__all__ = ["Frame", "Inputs", "Listener"]

warnings.warn(
    f"{__name__} is now fairseq_ext.attention.context, its Frame AttentionContext, its Listener "
    "AttentionRecorder",
    DeprecationWarning,
    stacklevel=2,
)
