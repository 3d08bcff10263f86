"""fairseq's optimiser for 16 bits with one operation for all parameters, in place of one for each.

Numbers are the same to the bit, but for the norm of gradients on a GPU, which adds up in another
order.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def copy_gradients(original: Callable, optimizer: Any) -> None:
    """Copy the gradients of parameters in 16 bits to those in float32."""
    if not optimizer._needs_sync or optimizer.has_flat_params:
        return original(optimizer)
    copies = []
    for parameter, own in zip(optimizer.fp16_params, optimizer.fp32_params, strict=True):
        if parameter.requires_grad and parameter.grad is None:  # a layer that LayerDrop left out
            own.grad = torch.zeros_like(own)
        elif parameter.requires_grad:
            if own.grad is None:
                own.grad = torch.empty_like(own)
            copies.append((own.grad, parameter.grad))
    _copy(copies)
    optimizer._needs_sync = False
    return None


def copy_parameters(original: Callable, optimizer: Any) -> None:
    """Copy parameters in float32 to those in 16 bits."""
    if optimizer.has_flat_params:
        return original(optimizer)
    pairs = zip(optimizer.fp16_params, optimizer.fp32_params, strict=True)
    return _copy([(to, source) for to, source in pairs if to.requires_grad])


def zero_gradients(original: Callable, optimizer: Any) -> None:
    """Forget gradients in float32, which the next copy makes anew, in place of writing zeros."""
    if not optimizer.has_flat_params:
        for parameter in optimizer.fp32_params:
            parameter.grad = None
    original(optimizer)


def clip_norm(original: Callable, params: Any, max_norm: float, *args: Any, **how: Any) -> Tensor:
    """Return the norm of all gradients, and scale them down to a largest norm above 0."""
    params = [params] if isinstance(params, Tensor) else list(params)
    grads = [x.grad.detach() for x in params if x is not None and x.grad is not None]
    usual = len(grads) > 1 and not [x for x in params if hasattr(x, "expert")]
    if not usual or {x.layout for x in grads} != {torch.strided}:
        return original(params, max_norm, *args, **how)
    total = torch.linalg.vector_norm(torch.stack(_norms(grads)))
    for aggregate in filter(None, (*args, *how.values())):
        total = aggregate(total)
    if max_norm > 0:
        torch._foreach_mul_(grads, (float(max_norm) / (total + 1e-6)).clamp_(max=1))
    return total


def _norms(grads: list[Tensor]) -> list[Tensor]:
    """Return the norm of each gradient in float32, on the device of the first."""
    groups: dict[torch.device, list[Tensor]] = {}
    for grad in grads:
        groups.setdefault(grad.device, []).append(grad)
    norms = (torch._foreach_norm(each, 2, dtype=torch.float32) for each in groups.values())
    return [norm.to(grads[0].device) for each in norms for norm in each]


def _copy(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    if pairs:
        with torch.no_grad():
            torch._foreach_copy_([to for to, _ in pairs], [source for _, source in pairs])
