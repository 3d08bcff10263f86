"""Products of float32 matrices by the faster one of torch's libraries on a CPU.

On CPUs of AMD torch multiplies by MKL, at less than half of the speed that oneDNN has there. torch
has no switch between them: oneDNN is asked by a lower precision, of which it makes use on other
CPUs alone. It plans each new shape of a product, which takes 0.2 ms; so small models are left out.
"""

from contextlib import suppress
from pathlib import Path

import torch
from torch import nn

NARROWEST = 256  # narrower models lose more by plans than they gain
EXACT = 1e-5  # of the largest product: float32 has 1e-6, bfloat16 1e-3


def choose_library(model: nn.Module) -> None:
    """Ask torch for oneDNN if a model is wide enough, for all products of the process from now on.

    Nothing changes if there is a GPU, if the CPU is none of AMD, if somebody chose a precision, if
    tensors have no values, or if oneDNN's products are not exact to float32.
    """
    wanted = _width(model) >= NARROWEST and torch.get_float32_matmul_precision() == "highest"
    real = type(torch.empty(0)) is torch.Tensor  # FakeTensorMode computes nothing
    if wanted and real and not torch.cuda.is_available() and _is_slow_for_mkl():
        torch.set_float32_matmul_precision("medium")
        if not _multiplies_exactly():
            torch.set_float32_matmul_precision("highest")


def _width(model: nn.Module) -> int:
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return max((min(layer.in_features, layer.out_features) for layer in linear), default=0)


def _is_slow_for_mkl() -> bool:
    with suppress(OSError):
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text()
    return False


def _multiplies_exactly() -> bool:
    random = torch.Generator().manual_seed(1)
    a, b = torch.randn(2, 256, 256, generator=random, device="cpu")
    exact = a.double() @ b.double()
    return bool(((a @ b) - exact).abs().max() < EXACT * exact.abs().max())
