"""Multi-head attention as one forward pass with slots; a mechanism fills one of the slots.

    project (+ incremental cache) -> positions -> score -> mix scores of heads -> bias -> mask ->
    normalise -> mix maps of heads -> observe -> dropout -> mix values -> head gate -> output

Shapes are written with fixed letters: B batch, H heads (h: heads of a group or of a part of it), T
queries, S keys, D width of a head, C = H * D. Masks are boolean; True means *may not be attended*.
"""

from fairseq_ext.attention.context import AttentionContext, AttentionRecorder, Inputs
from fairseq_ext.attention.gates import GATES, HeadGate
from fairseq_ext.attention.head_groups import HeadGroup, build_gaussian_heads
from fairseq_ext.attention.head_mixers import MIXERS, HeadMixer
from fairseq_ext.attention.masks import MASKS
from fairseq_ext.attention.module import Attention
from fairseq_ext.attention.normalisers import NORMALISERS, build_normaliser
from fairseq_ext.attention.positions import POSITIONS
from fairseq_ext.attention.scorers import SCORERS
from fairseq_ext.mechanisms.differential import Differential
from fairseq_ext.mechanisms.disentangled import Disentangled
from fairseq_ext.mechanisms.learned_gates import InputGate, L0Gate
from fairseq_ext.mechanisms.second_pass import Adversary, SecondPass
from fairseq_ext.mechanisms.synthesizer import Synthesizer
from fairseq_ext.mechanisms.talking_heads import TalkingHeads

__all__ = [
    "GATES",
    "MASKS",
    "MIXERS",
    "NORMALISERS",
    "POSITIONS",
    "SCORERS",
    "Adversary",
    "Attention",
    "AttentionContext",
    "AttentionRecorder",
    "Differential",
    "Disentangled",
    "HeadGate",
    "HeadGroup",
    "HeadMixer",
    "InputGate",
    "Inputs",
    "L0Gate",
    "SecondPass",
    "Synthesizer",
    "TalkingHeads",
    "build_gaussian_heads",
    "build_normaliser",
]
