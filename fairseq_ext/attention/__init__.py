"""Multi-head attention as one path with slots; a mechanism is a part put into a slot.

project (+ cache) -> score -> block -> bias -> normalise -> observe -> dropout -> mix values ->
output

Shapes are written with fixed letters: B batch, H heads (h: those of a group), T queries, S keys,
D width of a head, C = H * D. Masks are boolean and True means *may not be attended*.
"""

from fairseq_ext.attention.adversary import Adversary
from fairseq_ext.attention.context import AttentionContext, AttentionRecorder, Inputs
from fairseq_ext.attention.head_groups import Heads, gaussian_heads
from fairseq_ext.attention.module import Attention
from fairseq_ext.attention.normalisers import NORMALISERS, build_normaliser
from fairseq_ext.attention.second_pass import SecondPass

__all__ = [
    "Adversary",
    "Attention",
    "AttentionContext",
    "Heads",
    "Inputs",
    "AttentionRecorder",
    "NORMALISERS",
    "SecondPass",
    "build_normaliser",
    "gaussian_heads",
]
