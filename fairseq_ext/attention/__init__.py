"""Multi-head attention as one forward pass with slots; a mechanism fills one of the slots.

    project (+ incremental cache) -> positions -> score -> mix scores of heads -> bias -> mask ->
    normalise -> mix maps of heads -> observe -> dropout -> mix values -> head gate -> output

Shapes are written with fixed letters: B batch, H heads (h: heads of a group or of a part of it), T
queries, S keys, D width of a head, C = H * D. Masks are boolean; True means *may not be attended*.

Here are softmax and the slots; `import fairseq_ext.mechanisms` fills them. Neither needs fairseq.
"""

from fairseq_ext.attention.context import AttentionContext, AttentionRecorder, Inputs
from fairseq_ext.attention.gates import GATES, HeadGate
from fairseq_ext.attention.head_groups import HeadGroup
from fairseq_ext.attention.head_mixers import MIXERS, HeadMixer
from fairseq_ext.attention.masks import MASKS
from fairseq_ext.attention.module import Attention
from fairseq_ext.attention.normalisers import NORMALISERS, Normaliser, build_normaliser
from fairseq_ext.attention.positions import POSITIONS
from fairseq_ext.attention.scorers import SCORERS, Scorer

__all__ = [
    "GATES",
    "MASKS",
    "MIXERS",
    "NORMALISERS",
    "POSITIONS",
    "SCORERS",
    "Attention",
    "AttentionContext",
    "AttentionRecorder",
    "HeadGate",
    "HeadGroup",
    "HeadMixer",
    "Inputs",
    "Normaliser",
    "Scorer",
    "build_normaliser",
]
