"""Sparse attention: alpha-entmax, with sparsemax and a learned alpha (Correia et al. 2019)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from fairseq_ext.attention.context import HeadCall
from fairseq_ext.attention.derivatives import first_derivative_only
from fairseq_ext.attention.masks import Mask, add_bias
from fairseq_ext.attention.normalisers import NORMALISERS, Normaliser, select_heads
from fairseq_ext.attention.options import Rule, check_values, option, real
from fairseq_ext.attention.presets import preset
from fairseq_ext.mechanisms.kernels import entmax_triton, recomputed

ALPHAS = 1.01, 1.99  # of learned ones; nearer to 1 powers overflow, and the weights are softmax's
STEPS = 40  # of Newton's method at most; 3 to 6 are usual
# of a GPU, which would be waited for to be asked whether it is done
STEPS_UNASKED = entmax_triton.STEPS


@dataclass
class EntmaxOptions:
    """Options of entmax.

    Attributes:
        entmax_alpha: alpha of entmax, above 1 (softmax) and up to 2 (sparsemax)
        entmax_learned: learn an alpha between 1 and 2 for each head, which begins as --entmax-alpha
    """

    entmax_alpha: float = option(
        1.5, real("(1, 2]", "1 would be softmax, 2 is sparsemax"), relative="entmax_learned"
    )
    entmax_learned: bool = option(
        False,
        excludes=Rule(
            "entmax_alpha",
            "{other} is at the edge of what {one} can learn; give a number between "
            f"{ALPHAS[0]} and {ALPHAS[1]}",
            lambda learned, alpha: learned and not ALPHAS[0] < alpha < ALPHAS[1],
        ),
    )


@NORMALISERS.register("entmax", options=EntmaxOptions)
class Entmax(Normaliser):
    """W_i = [(alpha - 1) s_i - tau_i]_+ ^ (1 / (alpha - 1)), with tau such that rows sum to one.

    Correia et al. 2019, "Adaptively Sparse Transformers", Eq. 6 and 8: alpha = 1 + sigmoid(a). A
    learned alpha is stored as an offset of a that starts at zero, so that it moves in 16 bits.

    Args:
        heads: h.
        entmax_alpha: alpha, or where it begins.
        entmax_learned: learn one for each head.

    Raises:
        UsageError: alpha is not in (1, 2], or a learned one not between 1.01 and 1.99.
    """

    fuses_bias = True

    def __init__(self, heads: int, entmax_alpha: float = 1.5, entmax_learned: bool = False) -> None:
        super().__init__(heads)
        check_values(EntmaxOptions, entmax_alpha=entmax_alpha, entmax_learned=entmax_learned)
        self.init = entmax_alpha
        self.alpha_offset = nn.Parameter(torch.zeros(heads)) if entmax_learned else None

    def alpha(self) -> Tensor | float:
        """Return alpha: a number, or a learned one for each head [h], float32 or wider."""
        if self.alpha_offset is None:
            return self.init
        offset = self.alpha_offset.to(torch.promote_types(self.alpha_offset.dtype, torch.float32))
        start = math.log((self.init - 1) / (2 - self.init))
        alpha = 1 + torch.sigmoid(start + offset)
        return alpha + (alpha.clamp(*ALPHAS) - alpha).detach()  # a gradient leads back from a bound

    def weights(
        self, scores: Tensor, bias: Tensor | None, query_padding: Tensor | None, heads: slice
    ) -> Tensor:
        """Return the entmax of each row."""
        return entmax(add_bias(scores, bias), self._alpha_of(heads, scores.dtype))

    def _alpha_of(self, heads: slice, dtype: torch.dtype) -> Tensor | float:
        alpha = self.alpha()
        if not isinstance(alpha, Tensor):
            return alpha
        return select_heads(alpha, heads)[:, None, None].to(dtype)

    def fused(self, call: HeadCall, mask: Mask) -> Tensor | None:
        """Return the output of a map that is computed again for its gradient, once tau is known."""
        found: list[Tensor] = []
        exact = torch.promote_types(call.q.dtype, torch.float32)
        alpha = self._alpha_of(call.heads, exact)
        learned = alpha if isinstance(alpha, Tensor) else None

        def normalise(scores: Tensor, bias: Tensor | None, alphas: Tensor | None) -> Tensor:
            chosen = alpha if alphas is None else alphas
            if bias is not None or not entmax_triton.supports(scores, chosen):
                scores = add_bias(scores.to(exact), bias)
            weights, tau = _solve(scores, chosen, *found)
            found[:] = [tau]
            return weights

        return recomputed.attend(call, mask, normalise, learned)

    def statistics(self) -> dict[str, Callable[[], float]]:
        """Return the mean of learned alphas over the heads."""
        if self.alpha_offset is None:
            return {}
        return {"alpha": lambda: round(torch.as_tensor(self.alpha()).mean().item(), 4)}

    def extra_repr(self) -> str:
        """Return the options for the printed module."""
        return f"alpha={self.init}, learned={self.alpha_offset is not None}"


def entmax(scores: Tensor, alpha: Tensor | float) -> Tensor:
    """Return the alpha-entmax of the last axis, with its exact gradient.

    Args:
        scores: [..., S].
        alpha: in (1, 2]; a tensor is broadcast to [..., 1].
    """
    return _solve(scores, alpha)[0]


def _solve(
    scores: Tensor, alpha: Tensor | float, tau: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the entmax of the last axis and its thresholds [..., 1], which may be known."""
    if entmax_triton.supports(scores, alpha):
        return entmax_triton.weigh(scores, alpha, tau)
    return _Entmax.apply(scores, alpha, tau)


class _Entmax(Function):
    """Entmax by Newton's method for tau; its gradient needs the weights alone.

    With p = entmax(s), u_i = p_i^(2 - alpha) on the support and q = u / sum(u):
    dp/ds = diag(u) - u u^T / sum(u), and with e_i = -p_i log p_i
    dp_i/dalpha = (p_i - q_i) / (alpha - 1)^2 + (e_i - q_i sum(e)) / (alpha - 1)
    (Correia et al. 2019, Proposition 1).
    """

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, alpha: Tensor | float, tau: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        x = scores * (alpha - 1)
        if torch.compiler.is_compiling():
            p, tau = _weigh_in_graph(x, alpha)
        else:
            p, tau = _weigh(x, alpha, tau)
        ctx.alpha = None if isinstance(alpha, Tensor) else alpha
        ctx.save_for_backward(p, *([alpha] if isinstance(alpha, Tensor) else []))
        ctx.mark_non_differentiable(tau)
        return p, tau

    @staticmethod
    @first_derivative_only("entmax")
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, Tensor | None, None]:
        p, *learned = ctx.saved_tensors
        alpha = learned[0] if learned else ctx.alpha
        u = _power(p, 2 - alpha)
        q = u / u.sum(-1, keepdim=True)
        mean = (gradient * q).sum(-1, keepdim=True)
        of_alpha = None
        if learned and ctx.needs_input_grad[1]:
            entropy = -torch.xlogy(p, p)
            of_p = (p - q) / (alpha - 1).square()
            of_p = of_p + (entropy - q * entropy.sum(-1, keepdim=True)) / (alpha - 1)
            of_alpha = (gradient * of_p).sum_to_size(alpha.shape)
        return u.mul_(gradient - mean), of_alpha, None


def _weigh(x: Tensor, alpha: Tensor | float, tau: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return [x - tau]_+ ^ (1 / (alpha - 1)), whose sum over the last axis is 1, and tau.

    It changes x, and finds tau if that is not known.
    """
    x -= x.amax(-1, keepdim=True)
    power, base = 1 / (alpha - 1), torch.empty_like(x)
    if tau is None:
        tau = _find_threshold(x, power, base)
    p = _power(torch.sub(x, tau, out=base).clamp_(min=0), power)
    return p.div_(p.sum(-1, keepdim=True)), tau


def _find_threshold(x: Tensor, power: Tensor | float, base: Tensor) -> Tensor:
    """Return tau [..., 1] of x [..., S], whose rows end at 0; `base` is memory like x.

    The norm of [x - tau]_+ with this power, which has to be 1, is convex and falls in tau. So
    Newton's method from max(x) - 1, where the norm is 1 or more, rises to the solution and never
    passes it. It squares the error in each step.
    """
    close = torch.finfo(x.dtype).eps ** 0.5
    tau = torch.full_like(x[..., :1], -1)
    asks = x.device.type == "cpu"
    for _ in range(STEPS if asks else STEPS_UNASKED):
        torch.sub(x, tau, out=base).clamp_(min=0)
        total, slope = _sum_powers(base, power)
        # a row that is done stays: it must not depend on other rows, not even in its last bit
        todo = total - 1 > close / 64
        tau = torch.where(todo, tau + (total - total ** (1 - 1 / power)) / slope, tau)
        if asks and not (total - 1 > close).any():
            break
    return tau


@torch.library.custom_op("fairseq_ext::entmax", mutates_args=())
def _entmax_op(x: Tensor, alpha: Tensor | None, number: float) -> tuple[Tensor, Tensor]:
    """Return what `_weigh` returns, as one node of a graph: its steps are not known before."""
    return _weigh(x.clone(), number if alpha is None else alpha, None)


@_entmax_op.register_fake
def _entmax_shapes(x: Tensor, alpha: Tensor | None, number: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(*x.shape[:-1], 1)


def _weigh_in_graph(x: Tensor, alpha: Tensor | float) -> tuple[Tensor, Tensor]:
    return _entmax_op(x, *((alpha, 0.0) if isinstance(alpha, Tensor) else (None, alpha)))


def _sum_powers(base: Tensor, power: Tensor | float) -> tuple[Tensor, Tensor]:
    """Return the sums over the last axis of base^power and of base^(power - 1)."""
    if not isinstance(power, Tensor) and power in (1, 2):  # sparsemax and 1.5-entmax
        total = base.sum(-1, keepdim=True)
        if power == 1:
            return total, base.sign().sum(-1, keepdim=True)
        return torch.linalg.vector_norm(base, dim=-1, keepdim=True).square_(), total
    lower = _power(base, power - 1)
    slope = lower.sum(-1, keepdim=True)
    # not linalg.vecdot, for which autocast would take 16 bits
    return lower.mul_(base).sum(-1, keepdim=True), slope


def _power(x: Tensor, exponent: Tensor | float) -> Tensor:
    """Return x^exponent where x > 0 and 0 elsewhere, as a new tensor."""
    if not isinstance(exponent, Tensor):
        if exponent == 0:
            return (x > 0).to(x.dtype)
        if exponent in (0.5, 1, 2):
            return {0.5: x.sqrt, 1: x.clone, 2: x.square}[exponent]()
    if x.device.type != "cpu":
        return x**exponent
    # much quicker than a power on CPUs, but not at zeros and where the result is no normal number
    tiny = torch.finfo(x.dtype).tiny
    y = x.clamp(min=tiny).log_().mul_(exponent).clamp_(min=math.log(tiny) + 1).exp_()
    return y.mul_(x > 0)


preset("entmax", "transformer roberta", 4, encoder_normaliser="entmax")
preset("entmax", "transformer_lm", 4, decoder_normaliser="entmax")
