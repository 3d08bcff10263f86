"""Talking heads: learned projections of scores and weights across heads (Shazeer et al. 2020)."""

import torch
from torch import Tensor, nn

from fairseq_ext.attention.head_mixers import MIXERS, HeadMixer
from fairseq_ext.attention.presets import preset


@MIXERS.register("talking", summary="projections across heads")
class TalkingHeads(HeadMixer):
    """L'_g = sum_h P_gh L_h; W_g = softmax(L'_g + mask); W'_g = sum_h Q_gh W_h.

    L_h are the scaled dot products of head h; biases of positions and masks are added to L', as in
    the authors' code. P and Q are stored as offsets from the identity, where they begin; the
    authors draw them at random.

    Args:
        heads: H, of queries and keys, of the softmax and of values alike.
    """

    def __init__(self, heads: int, width: int = 0, layer: int = 0) -> None:
        super().__init__(heads, width, layer)
        self.score_offset = nn.Parameter(torch.zeros(heads, heads))
        self.weight_offset = nn.Parameter(torch.zeros(heads, heads))

    def mix_scores(self, scores: Tensor) -> Tensor:
        """Return P times the scores [B, H, T, S]."""
        return project_heads(self.score_offset, scores)

    def mix_weights(self, weights: Tensor) -> Tensor:
        """Return Q times the weights [B, H, T, S]."""
        return project_heads(self.weight_offset, weights)


def project_heads(offset: Tensor, maps: Tensor) -> Tensor:
    """Return (I + offset) [H, H] times maps [B, H, T, S] along the axis of heads."""
    heads = len(offset)
    projection = torch.eye(heads, dtype=maps.dtype, device=maps.device) + offset.to(maps.dtype)
    # a product of a matrix with a batch of matrices takes three times as long on CPUs
    with torch.autocast(maps.device.type, enabled=False):  # maps stay in float32 or wider
        return torch.einsum("gh,bhts->bgts", projection, maps.expand(-1, heads, -1, -1))


preset("talking", "transformer roberta", 6, encoder_head_mixer="talking")
preset("talking", "transformer_lm", 6, decoder_head_mixer="talking")
