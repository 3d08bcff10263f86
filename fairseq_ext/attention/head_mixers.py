"""Mixers of heads: attention maps that are made of the maps of all heads, or of parts of a head."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_ext.attention.context import HeadCall, Inputs
from fairseq_ext.attention.masks import Mask
from fairseq_ext.attention.parts import Parts
from fairseq_ext.errors import UsageError


class HeadMixer(nn.Module):
    """Base of the mixers of a layer's heads.

    Args:
        heads: H.
        width: D, the width of a head.
        layer: index of the layer, from 0.

    Attributes:
        mixes_heads: a head gets scores or weights of others. Then the layer's heads are all
            learned, with the same masks and normaliser, and their maps are in memory.
        parts: how many maps a head has, each from 1 / parts of the width of its queries and keys.
        numbered: it computes something else in another layer.
    """

    mixes_heads, numbered = True, False
    parts = 1

    def __init__(self, heads: int, width: int = 0, layer: int = 0) -> None:
        super().__init__()

    def mix_scores(self, scores: Tensor) -> Tensor:
        """Return other scores [B, H, T, S], before positions and masks are added to them.

        It is not called if the mixer does not mix heads.
        """
        return scores

    def mix_weights(self, weights: Tensor) -> Tensor:
        """Return other weights [B, H, T, S], before dropout; 0 where all heads have 0.

        It is not called if the mixer does not mix heads.
        """
        return weights

    def split(self, call: HeadCall) -> list[HeadCall]:
        """Return a call for each map, with its part of queries and keys, [B, h, T or S, D / parts].

        Heads are all of the layer, or some if the mixer does not mix heads.
        """
        if self.parts == 1:
            return [call]
        widths = zip(*(x.chunk(self.parts, -1) for x in call[:2]), strict=True)
        return [call._replace(q=q, k=k) for q, k in widths]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the weighted sum of the parts' maps [B, h, T, S], or of their outputs."""
        return parts[0]

    def finish(self, out: Tensor) -> Tensor:
        """Return what follows on the mixed values [B, h, T, D]."""
        return out

    def statistics(self) -> dict[str, Callable[[], float]]:
        """Return what a training log shows, by name; called when a line is written."""
        return {}


MIXERS: Parts[HeadMixer | None] = Parts("head mixer", HeadMixer, "width", "layer")
"""Head mixers by name; see `fairseq_ext.registry.register_head_mixer`."""


@MIXERS.register("none")
def build_no_mixer(heads: int, width: int, layer: int) -> None:
    """Return no mixer."""


def stack_parts(q: Tensor, parts: int, inputs: Inputs) -> Tensor:
    """Return queries that see a part of a head's width each: [B, h, T, D] -> [B, h, parts T, D].

    They are 0 elsewhere, and have a factor for the larger D in q k^T / sqrt(D).
    """

    def compute() -> Tensor:
        chosen = torch.eye(parts, dtype=q.dtype, device=q.device) * parts**0.5
        return chosen.repeat_interleave(q.size(-1) // parts, 1)[:, None, None, None]

    chosen = inputs.cached(("parts", parts, q.size(-1), q.dtype), compute)
    return (q.permute(2, 0, 1, 3) * chosen).flatten(0, 1).permute(1, 2, 0, 3)


def check_mixer(mixer: HeadMixer, groups: Sequence[Any], adversary: Any, site: str) -> None:
    """Raise UsageError if a mixer has no meaning with the groups of heads, or with the adversary.

    Args:
        groups: each a `HeadGroup`.
        adversary: an `Adversary`, or None.
        site: of the attention.
    """
    flag = f"--{site}-head-mixer"
    learned = [group for group in groups if group.learned]
    if not learned:
        raise UsageError(
            f"{flag} is given, and all heads are hard-coded, whose maps are not mixed; give fewer "
            f"{_name_makers(groups)}, or {flag} none"
        )
    if mixer.parts > 1 and not all(group.scorer.multiplies for group in learned):
        raise UsageError(
            f"{flag} makes {mixer.parts} maps of parts of queries and keys, which only "
            f"--{site}-scorer dot compares; give that, or {flag} none"
        )
    if mixer.mixes_heads and (len(groups) > 1 or any(group.made_by for group in groups)):
        raise UsageError(
            f"{flag} mixes the maps of all heads of a layer, and {_name_makers(groups)} gives some "
            f"of them maps of another kind; leave that out, or give another {flag}, such as none"
        )
    if mixer.mixes_heads and adversary is not None and adversary.heads > 1:
        raise UsageError(
            f"{adversary.per_head_flag} masks a unit in one head, which with {flag} gets weights "
            f"of the others; leave that out, or give another {flag}, such as none"
        )


def _name_makers(groups: Sequence[Any]) -> str:
    named = dict.fromkeys(group.made_by for group in groups if group.made_by)
    return " and ".join(named) or "a group of other heads"


def check_shared_mask(mask: Mask) -> None:
    """Raise UsageError if heads that are mixed have masks of their own."""
    masked = mask.masked
    if masked is not None and masked.dim() == 4 and masked.size(1) > 1:
        raise UsageError(
            "a head mixer gives a head the weights of others, and a mask differs between heads; "
            "leave out the mask, or the mixer"
        )
