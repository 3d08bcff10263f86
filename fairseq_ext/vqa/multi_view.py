"""Multi-view attention (Ding et al. 2020, Section 6.1 and Appendix B).

Views are sets of features of one thing, such as the boxes that several detectors find in a picture.
"""

# The values of choices are types for fairseq, made at run time.
# mypy: disable-error-code="valid-type"

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from torch import Tensor, nn

from fairseq_ext.attention.context import AttentionRecorder
from fairseq_ext.attention.masks import mask_to_bias
from fairseq_ext.attention.normalisers import build_normaliser
from fairseq_ext.attention.options import HEADS, check_range, option, real
from fairseq_ext.attention.weight_dropout import drop_weights
from fairseq_ext.errors import UsageError
from fairseq_ext.models.config import help_from_docstring

ALL_HEADS = slice(None)
SITE = "views"  # where recorders and logs say that it stands

Normalisers = ChoiceEnum(["softmax", "doubly", "hybrid", "sinkhorn"])


@dataclass
@help_from_docstring
class MultiViewOptions(FairseqDataclass):
    """Options of multi-view attention.

    Attributes:
        multi_view_normaliser: softmax (UNA), doubly (DNA), hybrid (HNA) or sinkhorn
        multi_view_heads: heads; the paper's best number is 1
        multi_view_scale: factor of the scores; the paper shows none
        attention_dropout: dropout of multi-view attention; the paper's is not known
        hna_init: initial weight u of doubly-normalised attention in the hybrid (0.5 in the paper)
        hna_weight: how u is kept between 0 and 1: sigmoid (ours), raw (the paper's) or clamp
        sinkhorn_sweeps: sweeps of the sinkhorn normaliser; 1 is doubly-normalised attention
    """

    multi_view_normaliser: Normalisers = "softmax"
    multi_view_heads: int = option(1, HEADS)
    multi_view_scale: float = option(1.0, real("(0, 1e6]", "the factor of attention scores"))
    attention_dropout: float = option(0.0, real("[0, 1)", "a probability of dropping something"))
    hna_init: float = 0.5
    hna_weight: Literal["sigmoid", "raw", "clamp"] = "sigmoid"
    sinkhorn_sweeps: int = 1


class MultiView(nn.Module):
    """Multi-view attention y_i = LayerNorm(x¹_i + Σ_m Σ_j Aᵐ_ij xᵐ_j) over secondary views m.

    Aᵐ comes from the scores scale * (W_Q x¹_i)·(W_K xᵐ_j), each view normalised apart. The features
    are mixed as they are: there is no map of values, nor of the output. All views share W_Q, W_K
    and the weights u of "hybrid". Each of several heads has its part of W_Q, W_K and the features.

    Args:
        width: C, of the features of all views.
        normaliser: "softmax" (UNA), "doubly" (DNA), "hybrid" (HNA) or "sinkhorn".
        heads: H; one is the paper's best number.
        scale: factor of the scores; the paper shows none.
        dropout: probability that a weight is dropped; the paper's is not known.
        hna_init: as in `build_normaliser`.
        hna_weight: as in `build_normaliser`.
        sinkhorn_sweeps: as in `build_normaliser`.

    Raises:
        UsageError: an option has no meaning.
    """

    def __init__(
        self,
        width: int,
        normaliser: str = "doubly",
        *,
        heads: int = 1,
        scale: float = 1.0,
        dropout: float = 0.0,
        hna_init: float = 0.5,
        hna_weight: str = "sigmoid",
        sinkhorn_sweeps: int = 1,
    ) -> None:
        super().__init__()
        self.site, self.layer = SITE, 0  # for logs
        check_range(MultiViewOptions, "multi_view_scale", scale)
        check_range(MultiViewOptions, "attention_dropout", dropout)
        if heads < 1 or width % heads:
            raise UsageError(f"{heads} heads cannot share features of {width}; give a divisor.")
        self.width, self.heads, self.scale, self.dropout = width, heads, scale, dropout
        self.query, self.key = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.normaliser = build_normaliser(
            normaliser,
            heads,
            hna_init=hna_init,
            hna_weight=hna_weight,
            sinkhorn_sweeps=sinkhorn_sweeps,
        )
        self.norm = nn.LayerNorm(width)

    def forward(
        self,
        views: Sequence[Tensor],
        paddings: Sequence[Tensor | None] | None = None,
        recorder: AttentionRecorder | None = None,
    ) -> Tensor:
        """Return [B, N_1, C] for the boxes of the primary view; it has no meaning at padded boxes.

        A picture without a box in a secondary view gets nothing from that view.

        Args:
            views: [B, N_m, C] each, the primary view first, at least one secondary view.
            paddings: [B, N_m] bool each, boxes that do not exist; None if all do.
            recorder: gets the maps at the site "views"; layer m is the m-th secondary view, from 0.

        Raises:
            UsageError: the views do not fit together.
        """
        paddings = [None] * len(views) if paddings is None else paddings
        self._check(views, paddings)
        primary, *others = (_clear_padding(*each) for each in zip(views, paddings, strict=True))
        mixed = primary
        for number, (view, padding) in enumerate(zip(others, paddings[1:], strict=True)):
            weights = self.weights(primary, view, paddings[0], padding)
            if recorder is not None and (heads := recorder.wants(SITE, number)):
                recorder.record(SITE, number, weights[:, sorted(heads)])
            weights = drop_weights(weights.to(view.dtype), self.dropout if self.training else 0.0)
            mixed = mixed + _join_heads(weights @ self._split_heads(view))
        return self.norm(mixed)

    def weights(
        self,
        primary: Tensor,
        view: Tensor,
        query_padding: Tensor | None = None,
        key_padding: Tensor | None = None,
    ) -> Tensor:
        """Return Aᵐ [B, H, N_1, N_m], in float32 or wider.

        Args:
            primary: [B, N_1, C].
            view: [B, N_m, C].
            query_padding: [B, N_1] bool or None.
            key_padding: [B, N_m] bool or None.
        """
        queries, keys = self._split_heads(self.query(primary)), self._split_heads(self.key(view))
        scores = self.scale * queries @ keys.transpose(-1, -2)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        bias = None
        if key_padding is not None:
            bias = mask_to_bias(key_padding[:, None, None], scores.dtype)
        return self.normaliser.weights(scores, bias, query_padding, ALL_HEADS)

    def statistics(self) -> dict[str, Callable[[], float]]:
        """Return statistics of the normaliser, with the site and a layer before their names."""
        return {
            f"{self.site}{self.layer}_{name}": value
            for name, value in self.normaliser.statistics().items()
        }

    def _split_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [B, N, C] -> [B, H, N, C / H]

    def _check(self, views: Sequence[Tensor], paddings: Sequence[Tensor | None]) -> None:
        if len(views) < 2:
            raise UsageError(f"there are {len(views)} views; give a primary and another one.")
        if len(paddings) != len(views):
            raise UsageError(f"{len(paddings)} paddings for {len(views)} views; give each its own.")
        for view, padding in zip(views, paddings, strict=True):
            if view.dim() != 3 or view.shape[::2] != (len(views[0]), self.width):
                raise UsageError(
                    f"a view has the shape {list(view.shape)}; give {len(views[0])} pictures x "
                    f"boxes x {self.width} features."
                )
            if padding is not None and padding.shape != view.shape[:2]:
                raise UsageError(
                    f"a padding has the shape {list(padding.shape)}; give that of the boxes of its "
                    f"view, {list(view.shape[:2])}."
                )

    def extra_repr(self) -> str:
        """Return the numbers for the printed module."""
        return f"heads={self.heads}, scale={self.scale}, dropout={self.dropout}"


def _clear_padding(view: Tensor, padding: Tensor | None) -> Tensor:
    """Return a view with 0 at its padding, so that nothing of that gets through, not even a NaN."""
    return view if padding is None else view.masked_fill(padding.unsqueeze(-1), 0)


def _join_heads(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)  # [B, H, N, C / H] -> [B, N, C]
