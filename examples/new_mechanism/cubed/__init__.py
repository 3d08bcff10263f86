"""Attention whose weights are a power of the softmax, normalised again: a mechanism in 30 lines."""

from dataclasses import dataclass

from fairseq_ext.attention.masks import add_bias
from fairseq_ext.attention.normalisers import Normaliser
from fairseq_ext.registry import register_mechanism, register_normaliser


@dataclass
class CubedOptions:
    """Options of attention by powers.

    Attributes:
        cubed_power: power p of the weights; 1 is softmax
    """

    cubed_power: float = 3.0


@register_normaliser("cubed", options=CubedOptions)
class Cubed(Normaliser):
    """W_ij = softmax(s_i)_j^p / sum_j' softmax(s_i)_j'^p."""

    def __init__(self, heads, cubed_power):
        super().__init__(heads)
        self.power = cubed_power

    def weights(self, scores, bias, query_padding, heads):
        """Return the powers of the softmax, whose sum is one again."""
        return (self.power * add_bias(scores, bias).log_softmax(-1)).softmax(-1)


register_mechanism("cubed", encoder_normaliser="cubed")
