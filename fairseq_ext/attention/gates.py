"""Gates of heads: factors of the outputs of heads, before the output projection."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fairseq_ext.attention.parts import Parts


class HeadGate(nn.Module):
    """Base of the gates of a layer's heads.

    Args:
        heads: H.
        width: C, the width of the layer.
    """

    def __init__(self, heads: int, width: int = 0) -> None:
        super().__init__()

    def forward(self, out: Tensor, x: Tensor) -> Tensor:
        """Return the gated output of the heads, [B, H, T, D].

        Args:
            out: [B, H, T, D], what the heads have attended to.
            x: [T, B, C], the input of the layer's queries.
        """
        raise NotImplementedError

    def statistics(self) -> dict[str, Callable[[], float]]:
        """Return what a training log shows, by name; called when a line is written."""
        return {}


GATES: Parts[HeadGate | nn.Parameter | None] = Parts("head gate", HeadGate, "width")
"""Head gates by name; see `fairseq_ext.registry.register_head_gate`."""


@GATES.register("none")
def build_no_gate(heads: int, width: int) -> None:
    """Return no gate."""


def gate_heads(gate: HeadGate | Tensor | None, out: Tensor, x: Tensor) -> Tensor:
    """Return the output [B, H, T, D] of heads times their gates; x is [T, B, C]."""
    if gate is None:
        return out
    if isinstance(gate, Tensor):  # a parameter, or what torch's functional_call puts there
        offset = gate.to(out.dtype)[:, None, None]
        return torch.addcmul(out, out, offset)  # 1 + offset would be rounded in 16 bits
    return gate(out, x)


def gate_weight(offset: Tensor) -> float:
    """Return the weight of a head, rounded for the log."""
    return round(1 + offset.item(), 4)
