"""The refusal of second derivatives of what has a backward pass written by hand."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from fairseq_ext.errors import UsageError

Backward = Callable[..., Any]


def first_derivative_only(what: str, otherwise: str = "") -> Callable[[Backward], Backward]:
    """Return a decorator of backward functions that refuses `create_graph=True`.

    torch's `once_differentiable` refuses it later, when the second derivative is asked for, and not
    at all where the first one does not depend on the gradient that is passed in, as of a loss that
    is linear in the output: then that part is taken for zero.

    Args:
        what: has no second derivative.
        otherwise: what to do to have one.
    """

    def decorate(backward: Backward) -> Backward:
        @wraps(backward)
        def refuse_or_run(ctx: Any, *gradients: Any) -> Any:
            if torch.is_grad_enabled():
                raise UsageError(
                    f"{what} has no second derivative, and create_graph=True asks for one; leave "
                    "it out" + (otherwise and f", or {otherwise}")
                )
            return backward(ctx, *gradients)

        return refuse_or_run

    return decorate
