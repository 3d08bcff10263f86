"""Hard-coded Gaussian heads (You et al. 2020): densities of positions, which are not normalised."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import add, sub
from typing import Any

import torch
from torch import Tensor

from fairseq_ext.attention.building import HeadKind, LayerHeads, build_masks, register_heads
from fairseq_ext.attention.context import HeadCall
from fairseq_ext.attention.head_groups import HeadGroup
from fairseq_ext.attention.masks import DEFAULT_MASKS, Masks, add_bias
from fairseq_ext.attention.normalisers import Normaliser
from fairseq_ext.attention.options import check_range, flag, option, real
from fairseq_ext.attention.positions import EMBEDDED
from fairseq_ext.attention.presets import preset
from fairseq_ext.attention.scorers import Scorer
from fairseq_ext.attention.sites import SITES
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.kernels import toeplitz

HALF_LOG_2_PI = 0.5 * math.log(2 * math.pi)
MAX_SIGMAS = 5.33  # 1e-7 of a normal distribution lies further from its mean


class Gaussian(Scorer):
    """The logarithm of a normal density, from positions alone (You et al. 2020, Section 3).

    Head h gives key j, seen from query i, the density of N(ratio * i + offset_h, sigma_h^2) at j,
    both counted from 0 among the real tokens. Densities are not made to sum to one; the fused form
    and a cache leave out keys that are more than MAX_SIGMAS sigmas away.

    Args:
        offsets: of each head.
        sigmas: of each head.
        ratio: source tokens for each target token; 1 in self-attention.

    Raises:
        UsageError: a sigma or the ratio is not above 0.
    """

    learned = False

    def __init__(
        self, offsets: Sequence[float], sigmas: Sequence[float], ratio: float = 1.0
    ) -> None:
        super().__init__()
        check_range(GaussianOptions, "gaussian_ratio", ratio)
        for sigma in sigmas:
            check_range(GaussianOptions, "gaussian_sigma", sigma)
        self.offsets, self.sigmas, self.ratio = tuple(offsets), tuple(sigmas), ratio
        self.window = max(1, -self._reach(slice(None))[0])

    def forward(self, call: HeadCall) -> Tensor:
        """Return scores [1 or B, h, T, S], float32.

        They differ between sentences (B) if the padding on the left of these differs.
        """
        context, heads = call.context, call.heads
        key = (*self._numbers(heads), self.ratio, context.queries, context.keys)

        def compute() -> Tensor:
            return self._log_density(context.distances(self.ratio)[:, None], heads)

        return context.inputs.cached(("gaussian", *key), compute)

    def fused(self, call: HeadCall) -> Tensor | None:
        """Return the output [B, h, T, D] of self-attention, or None for other attention."""
        v, context, heads = call.v, call.context, call.heads
        # blocks depend on the length, and a graph is the same for all
        if torch.compiler.is_compiling() or context.cross or context.queries != context.keys:
            return None
        if context.key_padding is not None:
            v = v.masked_fill(context.key_padding[:, None, :, None], 0)
        causal, length = context.inputs.causal, context.keys
        low, high = self._reach(heads)
        low = max(min(low, 0), 1 - length)
        high = 0 if causal else min(max(high, 0), length - 1)

        def weigh(distances: Tensor) -> Tensor:
            far = (distances < low) | (distances > high)
            return self._log_density(distances, heads).exp().masked_fill(far, 0).to(v.dtype)

        def compute() -> tuple[Tensor, Tensor]:
            forward = toeplitz.distances(length, low, high, v.device)
            backward = toeplitz.distances(length, -high, -low, v.device)
            return weigh(forward), weigh(-backward)

        key = ("toeplitz", *self._numbers(heads), causal, v.dtype, length)
        return toeplitz.attend(v, *context.inputs.cached(key, compute), low, high)

    def _numbers(self, heads: slice) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return self.offsets[heads], self.sigmas[heads]

    def _log_density(self, distances: Tensor, heads: slice) -> Tensor:
        """Return the log-density at distances [..., T, S]: [..., h, T, S]."""
        offsets, sigmas = (
            torch.tensor(numbers).to(distances.device, non_blocking=True)[:, None, None]
            for numbers in self._numbers(heads)
        )
        return -0.5 * ((distances - offsets) / sigmas).square() - sigmas.log() - HALF_LOG_2_PI

    def _reach(self, heads: slice) -> tuple[int, int]:
        """Return the lowest and highest j - i within MAX_SIGMAS sigmas of a head's mean."""
        offsets, sigmas = self._numbers(heads)
        reach = [math.ceil(MAX_SIGMAS * sigma - 0.5) for sigma in sigmas]
        return math.floor(min(map(sub, offsets, reach))), math.ceil(max(map(add, offsets, reach)))

    def extra_repr(self) -> str:
        """Return the parameters for the printed module."""
        return f"offsets={self.offsets}, sigmas={self.sigmas}, ratio={self.ratio}"


class Unnormalised(Normaliser):
    """W_ij = exp(s_ij), for scores that are logarithms of the weights already."""

    def weights(
        self, scores: Tensor, bias: Tensor | None, query_padding: Tensor | None, heads: slice
    ) -> Tensor:
        """Return exp(scores)."""
        return add_bias(scores, bias).exp()


def build_gaussian_heads(
    offsets: Sequence[float],
    sigmas: Sequence[float],
    ratio: float = 1.0,
    masks: Masks = (),
    made_by: str = "",
) -> HeadGroup:
    """Build a group of hard-coded heads (You et al. 2020), one for each offset.

    Args:
        masks: masks beside the default ones.
    """
    scorer = Gaussian(offsets, sigmas, ratio)
    masks = (*DEFAULT_MASKS, *masks)
    return HeadGroup(
        len(offsets), scorer=scorer, normaliser=Unnormalised(), masks=masks, made_by=made_by
    )


def _offsets(site: str, default: str) -> Any:
    return option(default, needs=(f"{site}_gaussian_heads",))


@dataclass
class GaussianOptions:
    """Options of hard-coded heads.

    Attributes:
        encoder_gaussian_heads: number of hard-coded heads (You et al. 2020) in each layer's encoder
            self-attention, or all; they are the first ones
        decoder_gaussian_heads: number of hard-coded heads (You et al. 2020) in each layer's decoder
            self-attention, or all; they are the first ones
        cross_gaussian_heads: number of hard-coded heads (You et al. 2020) in each layer's
            encoder-decoder attention, or all; they are the first ones
        encoder_gaussian_offsets: centres of the hard-coded heads, in tokens from the query, as in
            --encoder-gaussian-offsets=-1,1 (with =); repeated over the heads; / separates layers
        decoder_gaussian_offsets: centres of the hard-coded heads, in tokens from the query, as in
            --decoder-gaussian-offsets=-1,0 (with =); repeated over the heads; / separates layers
        cross_gaussian_offsets: centres of the hard-coded heads, in tokens from the query, as in
            --cross-gaussian-offsets=-1,1 (with =); repeated over the heads; / separates layers
        gaussian_sigma: standard deviation of hard-coded heads, in tokens: one, or one for each head
        gaussian_ratio: source tokens per target token, for hard-coded heads of cross-attention
    """

    encoder_gaussian_heads: str = "0"
    decoder_gaussian_heads: str = "0"
    cross_gaussian_heads: str = "0"
    encoder_gaussian_offsets: str = _offsets("encoder", "-1,1")
    decoder_gaussian_offsets: str = _offsets("decoder", "-1,0")
    cross_gaussian_offsets: str = _offsets("cross", "-1,1")
    gaussian_sigma: str = option(
        "1",
        real("(0, 1e9]", "a standard deviation, in tokens"),
        needs=tuple(f"{site}_gaussian_heads" for site in SITES),
    )
    gaussian_ratio: float = option(
        1.0,
        real("(0, 1e9]", "a factor above 0"),
        needs=("cross_gaussian_heads",),
        sites=("cross",),
    )


SUITABLE: dict[str, tuple[tuple[str | None, ...], str]] = {
    "normaliser": (("softmax",), "are not normalised"),
    "scorer": (("dot",), "have scores of their own"),
    "positions": (("none", None, *EMBEDDED), "have positions of their own"),
}
"""Slot -> values that hard-coded heads alone go with, the first one advised, and the reason."""


@register_heads
class GaussianHeads(HeadKind):
    """Hard-coded heads, which come first in a layer."""

    name, off, options = "gaussian_heads", "0", GaussianOptions

    def build(self, layer: LayerHeads) -> None:
        """Add the group of hard-coded heads, unless they are none."""
        site, options = layer.site, layer.options
        made_by, text = flag(f"{site}_gaussian_heads"), layer.read("gaussian_heads")
        if not (count := _parse_count(made_by, text, layer.heads)):
            return
        for slot, (usual, reason) in SUITABLE.items():
            value = layer.read(slot)
            if count == layer.heads and value not in usual:
                raise UsageError(
                    f"{made_by} {text} leaves no head to {flag(f'{site}_{slot}', value)}, since "
                    f"hard-coded heads {reason}; give fewer of them, or --{site}-{slot} {usual[0]}"
                )
        names = f"{site}_gaussian_offsets", "gaussian_sigma"
        offsets, sigmas = (_parse_numbers(name, layer, count) for name in names)
        ratio = options["gaussian_ratio"] if site == "cross" else 1.0
        masks = tuple(build_masks(site, count, options))
        layer.groups.append(build_gaussian_heads(offsets, sigmas, ratio, masks, made_by))
        layer.hard_coded += count


def _parse_count(made_by: str, text: str, heads: int) -> int:
    if text == "all":
        return heads
    if not text.isdecimal() or int(text) > max(heads, 0):
        raise UsageError(f"{made_by} is '{text}'; give all, or a number from 0 to {heads}")
    return int(text)


def _parse_numbers(name: str, layer: LayerHeads, heads: int) -> list[float]:
    """Return a number for each hard-coded head of a layer; "-1,1" is repeated over the heads."""
    given, text = flag(name), layer.options[name]
    try:
        lists = [[float(number) for number in part.split(",")] for part in text.split("/")]
    except ValueError:
        lists = [[math.nan]]
    if not all(math.isfinite(number) for numbers in lists for number in numbers):
        example = "=-1,1" if given.endswith("offsets") else " 1,2"
        raise UsageError(
            f"{given} is '{text}'; give numbers with commas between them, as in {given}{example}"
        )
    if len(lists) not in (1, layer.layers) or any(heads % len(numbers) for numbers in lists):
        raise UsageError(
            f"{given} is '{text}', which fits neither {heads} hard-coded heads nor {layer.layers} "
            "layers; give a number for each head, or so many that they can be repeated, and with / "
            "between layers one such list for each"
        )
    numbers = lists[layer.layer if len(lists) > 1 else 0]
    return numbers * (heads // len(numbers))


HARD_CODED = {"encoder_gaussian_heads": "all", "decoder_gaussian_heads": "all"}

preset("gaussian", "transformer", 10, **HARD_CODED)
preset("gaussian_all", "transformer", 11, **HARD_CODED, cross_gaussian_heads="all")
preset(
    "gaussian_shx", "transformer", 12, **HARD_CODED, cross_layers="last", cross_attention_heads=1
)
preset("gaussian", "transformer_lm", 1, decoder_gaussian_heads="all")
