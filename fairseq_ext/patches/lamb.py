"""The LAMB optimizer in plain torch, as `--optimizer lamb`; fairseq's own needs apex.

You et al. 2020, "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", Alg. 2.
"""

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import OPTIMIZER_REGISTRY, FairseqOptimizer, register_optimizer
from omegaconf import II
from torch import Tensor

from fairseq_ext.errors import UsageError


class Lamb(torch.optim.Optimizer):
    """LAMB: Adam whose step in each tensor has the tensor's norm times the learning rate.

    m and v are Adam's running means of g and g^2, without bias m' and v'; then
    r = m' / (sqrt(v') + eps) + weight_decay w and w <- w - lr (|w| / |r|) r, where the quotient is
    1 if either norm is 0. Tensors and state of 16-bit parameters are computed in float32.
    """

    supports_memory_efficient_fp16 = True
    supports_flat_params = False  # a norm of all parameters together means something else

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, options)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have a gradient; return what the closure returns."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, self.state[parameter], group)
        return loss

    @staticmethod
    def _update(parameter: Tensor, gradient: Tensor, state: dict, group: dict) -> None:
        weight, grad = _to_float32(parameter), _to_float32(gradient)
        state["step"] = state.get("step", 0) + 1
        for name in ("exp_avg", "exp_avg_sq"):  # loading casts them to the parameter's precision
            state[name] = state[name].to(weight) if name in state else torch.zeros_like(weight)
        beta1, beta2 = group["betas"]
        mean = state["exp_avg"].lerp_(grad, 1 - beta1) / (1 - beta1 ** state["step"])
        state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        square = state["exp_avg_sq"] / (1 - beta2 ** state["step"])
        update = mean.div_(square.sqrt_().add_(group["eps"]))
        update.add_(weight, alpha=group["weight_decay"])
        lengths = weight.norm(), update.norm()
        trust = torch.where((lengths[0] > 0) & (lengths[1] > 0), lengths[0] / lengths[1], 1.0)
        parameter.copy_(weight.sub_(update.mul_(trust), alpha=group["lr"]))


def _to_float32(tensor: Tensor) -> Tensor:
    """Return a 16-bit tensor as float32, another as it is."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


@dataclass
class LambConfig(FairseqDataclass):
    """Flags of the optimizer, the same as those of fairseq's own."""

    lamb_betas: str = field(default="(0.9, 0.999)", metadata={"help": "betas for LAMB optimizer"})
    lamb_eps: float = field(default=1e-8, metadata={"help": "epsilon for LAMB optimizer"})
    weight_decay: float = field(default=0.0, metadata={"help": "weight decay"})
    lr: list[float] = II("optimization.lr")


OPTIMIZER_REGISTRY.pop("lamb")


@register_optimizer("lamb", dataclass=LambConfig)
class LambOptimizer(FairseqOptimizer):
    """Wrapper of `Lamb` for fairseq; raises UsageError for options that have no meaning."""

    def __init__(self, cfg: LambConfig, params: Iterable[Tensor]) -> None:
        super().__init__(cfg)
        self._optimizer = Lamb(params, **self.optimizer_config)

    @property
    def optimizer_config(self) -> dict[str, Any]:
        """Return the options that override those in a checkpoint."""
        return {
            "lr": self.cfg.lr if isinstance(self.cfg.lr, int | float) else self.cfg.lr[0],
            "betas": _parse_betas(self.cfg.lamb_betas),
            "eps": self.cfg.lamb_eps,
            "weight_decay": self.cfg.weight_decay,
        }


def _parse_betas(text: str) -> tuple[float, float]:
    try:
        first, second = (float(beta) for beta in ast.literal_eval(text))
    except (ValueError, TypeError, SyntaxError):
        first = second = -1.0
    if not (0 <= first < 1 and 0 <= second < 1):
        raise UsageError(f"--lamb-betas is '{text}'; give two numbers in [0, 1), as (0.9, 0.999)")
    return first, second
