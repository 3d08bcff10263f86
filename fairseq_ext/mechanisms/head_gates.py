"""Gates of heads: a trained weight, one that depends on the input, and one that may close (L0)."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq_ext.attention.gates import GATES, HeadGate

BETA, LOW, HIGH = 2 / 3, -0.1, 1.1  # of the hard concrete distribution (Louizos et al. 2018)
OPEN = 2.0  # log alpha at first: 88 % of the probability is above 0.5


@GATES.register("static", summary="a weight for each head, 1 at first; without a value, too")
def build_static_gate(heads: int, width: int) -> nn.Parameter:
    """Return a trained weight for each head, g = 1 + offset (Wang et al. 2020, without a formula).

    It is an offset from 1: in 16 bits a weight near 1 would hardly move.
    """
    return nn.Parameter(torch.zeros(heads))


@GATES.register("input", summary="a sigmoid of the input")
class InputGate(HeadGate):
    """g_h = sigmoid(w_h x), for each head and query (Qiu et al. 2025, "headwise", after attention).

    x is the input of the layer's queries. w begins as 0, and so g as 1/2.

    Args:
        heads: H.
        width: C.
    """

    def __init__(self, heads: int, width: int) -> None:
        super().__init__(heads, width)
        self.weight = nn.Parameter(torch.zeros(heads, width))

    def forward(self, out: Tensor, x: Tensor) -> Tensor:
        """Return the gated output of the heads, [B, H, T, D]."""
        gate = torch.sigmoid(nn.functional.linear(x, self.weight))  # [T, B, H]
        return out * gate.permute(1, 2, 0)[..., None]


@GATES.register("l0", summary="gates that may close heads, for a criterion with _l0")
class L0Gate(HeadGate):
    """A gate in [0, 1] for each head that may close (Voita et al. 2019, Eq. 5 to 9).

    In training g_h is drawn from the hard concrete distribution of Louizos et al. 2018, a stretched
    and clipped sigmoid, which is 0 with the probability 1 - P_h; the criterion's term "l0" adds
    lambda sum_h P_h. In evaluation g_h = min(1, max(0, sigmoid(log alpha_h) 1.2 - 0.1)).

    log alpha is stored as an offset from 2.0, where gates begin open.

    Args:
        heads: H.
    """

    def __init__(self, heads: int, width: int = 0) -> None:
        super().__init__(heads, width)
        self.offset = nn.Parameter(torch.zeros(heads))

    def open_probability(self) -> Tensor:
        """Return P_h, the probability that a gate is not 0: [H]."""
        return open_probability(self.offset)

    def gate(self) -> Tensor:
        """Return the gates, [H]: sampled in training, in evaluation as they are used."""
        if self.training:
            noise = torch.rand_like(self.offset, dtype=_widen(self.offset)).logit_(1e-6)
            log_alpha = (self.offset + noise.add_(OPEN)) / BETA
        else:
            log_alpha = _log_alpha(self.offset)
        # in place of a clamp, whose gradient takes five operations
        return F.hardtanh(_stretch(log_alpha), 0, 1)

    def forward(self, out: Tensor, x: Tensor) -> Tensor:
        """Return the gated output of the heads, [B, H, T, D]."""
        return out * self.gate().to(out.dtype)[:, None, None]

    def open_heads(self) -> Tensor:
        """Return which heads are open in evaluation, [H] bool."""
        return are_open(self.offset)

    def statistics(self) -> dict[str, Callable[[], float]]:
        """Return the share of heads that are open."""
        return {"open": lambda: round(self.open_heads().float().mean().item(), 4)}


def open_probability(offset: Tensor) -> Tensor:
    """Return P_h of heads, by the offset of their log alpha, float32 or wider."""
    return torch.sigmoid(_log_alpha(offset) - BETA * math.log(-LOW / HIGH))


def are_open(offset: Tensor) -> Tensor:
    """Return which heads are open in evaluation, bool, by the offset of their log alpha."""
    return _stretch(_log_alpha(offset.detach())) > 0


def _log_alpha(offset: Tensor) -> Tensor:
    return OPEN + offset.to(_widen(offset))


def _stretch(log_alpha: Tensor) -> Tensor:
    return torch.sigmoid(log_alpha) * (HIGH - LOW) + LOW


def _widen(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
