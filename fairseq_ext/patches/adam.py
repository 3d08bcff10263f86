"""Adam of fairseq with one kernel for all parameters, in place of ten operations for each."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

DEVICES = ("cpu", "cuda")  # where torch has the kernel


def step(original: Callable, optimizer: Any, closure: Callable | None = None) -> Any:
    """Do what `step` of fairseq's Adam does, and keep the same state; numbers differ by rounding.

    What is not the usual case is left to fairseq: tensors that are sparse, not of float32 or not in
    one piece (the kernel reads memory in its order), and AMSGrad.
    """
    if closure is not None:
        return original(optimizer, closure)
    if not all(map(_is_usual, optimizer.param_groups)):
        return original(optimizer)
    with torch.no_grad():
        _update_all(optimizer)
    return None


def _update_all(optimizer: Optimizer) -> None:
    for group in optimizer.param_groups:
        same_step: dict[tuple[int, torch.device], list[Tensor]] = defaultdict(list)
        for parameter in group["params"]:
            if parameter.grad is not None:
                state = _prepare_state(optimizer, parameter)
                state["step"] += 1
                same_step[state["step"], parameter.device].append(parameter)
        for (count, _), parameters in same_step.items():
            _update(optimizer, group, parameters, count)


def _is_usual(group: dict[str, Any]) -> bool:
    updated = [parameter for parameter in group["params"] if parameter.grad is not None]
    tensors = [*updated, *[parameter.grad for parameter in updated]]
    kinds = {(x.dtype, x.layout, x.device.type) for x in tensors}
    usual = {(torch.float32, torch.strided, device) for device in DEVICES}
    return (
        not group.get("amsgrad")
        and kinds <= usual
        and False not in {x.is_contiguous() for x in tensors}
    )


def _prepare_state(optimizer: Optimizer, parameter: Tensor) -> dict[str, Any]:
    """Return the state of a parameter, begun if it has none, and where the parameter is."""
    state = optimizer.state[parameter]
    state.setdefault("step", 0)
    for name in ("exp_avg", "exp_avg_sq"):
        mean = state.get(name)
        state[name] = (
            torch.zeros_like(parameter) if mean is None else mean.to(parameter).contiguous()
        )
    return state


def _update(
    optimizer: Optimizer, group: dict[str, Any], parameters: list[Tensor], count: int
) -> None:
    """Update parameters of a group whose step of this number it is.

    fairseq adds ε to sqrt(v), and torch to sqrt(v / (1 - β₂ᵗ)).
    """
    beta1, beta2 = group["betas"]
    states = [optimizer.state[parameter] for parameter in parameters]
    step = torch.full((), float(count), device=parameters[0].device)  # no copy from the host
    torch._fused_adamw_(
        parameters,
        [parameter.grad for parameter in parameters if parameter.grad is not None],
        [state["exp_avg"] for state in states],
        [state["exp_avg_sq"] for state in states],
        [],
        [step] * len(parameters),
        lr=group["lr"],
        beta1=beta1,
        beta2=beta2,
        weight_decay=group["weight_decay"],
        eps=group["eps"] / (1 - beta2**count) ** 0.5,
        amsgrad=False,
        maximize=False,
    )
