"""Attention guidance (AG): a loss that pulls chosen heads towards patterns.

Deshpande & Narasimhan 2020, "Guiding Attention for Self-Supervised Learning with Transformers".
Shapes: B sentences, T queries (rows of a map), S keys (columns), k heads of one pattern.
"""

from fairseq_ext.mechanisms.guidance.patterns import PATTERNS, View, pattern

__all__ = ["PATTERNS", "View", "pattern"]
