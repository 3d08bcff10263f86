"""The choice of the library that multiplies matrices on a CPU."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from fairseq_ext.commands import products
from fairseq_ext.commands.products import NARROWEST, choose_library

WIDE, NARROW = nn.Linear(NARROWEST, NARROWEST), nn.Linear(NARROWEST - 1, 10_000)


@pytest.fixture(autouse=True)
def _slow_cpu(monkeypatch):
    """A CPU of AMD, with torch as it is at first."""
    torch.set_float32_matmul_precision("highest")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(products, "_is_slow_for_mkl", lambda: True)


@pytest.mark.parametrize("exact", [True, False])
def test_onednn_multiplies_for_wide_models_if_it_is_exact(exact, monkeypatch):
    monkeypatch.setattr(products, "_multiplies_exactly", lambda: exact)
    choose_library(nn.Sequential(NARROW, WIDE))
    assert torch.get_float32_matmul_precision() == ("medium" if exact else "highest")


def test_what_it_multiplies_is_as_exact():
    """Also where the CPU has instructions for 16 bits; else the choice would have been undone."""
    choose_library(WIDE)
    a, b = torch.randn(300, 500), torch.randn(500, 400)
    difference = (a @ b - a.double() @ b.double()).abs().max()
    assert difference < 1e-4


def test_sixteen_bits_are_not_taken_for_exact(monkeypatch):
    assert products._multiplies_exactly()
    multiply = torch.Tensor.__matmul__

    def rounded(a, b):
        return multiply(a if a.dtype == torch.double else a.bfloat16().float(), b)

    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "__matmul__", rounded)
        assert not products._multiplies_exactly()


@pytest.mark.parametrize("case", ["GPU", "another CPU", "narrow", "no matrix", "chosen"])
def test_products_are_left_to_torch(case, monkeypatch):
    if case == "GPU":
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    elif case == "another CPU":
        monkeypatch.setattr(products, "_is_slow_for_mkl", lambda: False)
    elif case == "chosen":
        torch.set_float32_matmul_precision("high")
    before = torch.get_float32_matmul_precision()
    choose_library({"narrow": NARROW, "no matrix": nn.ReLU()}.get(case, WIDE))
    assert torch.get_float32_matmul_precision() == before


def test_models_without_values_choose_nothing():
    with FakeTensorMode():
        choose_library(nn.Linear(NARROWEST, NARROWEST))
    assert torch.get_float32_matmul_precision() == "highest"
