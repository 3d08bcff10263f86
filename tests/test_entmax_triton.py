"""Entmax's kernel: against the twin in torch, in Triton's interpreter, and compiled."""

import pytest
import torch
from cases import slow_but_first
from triton_cases import here_only, run_interpreted

from fairseq_ext.mechanisms import entmax
from fairseq_ext.mechanisms.kernels import entmax_triton, triton_launch

ALPHAS = [1.5, 2.0, 1.05, torch.tensor([1.2, 1.9])[:, None, None]]


@pytest.mark.parametrize("alpha", ALPHAS, ids=["1.5", "2", "1.05", "learned"])
@pytest.mark.parametrize("keys", [1, 37])
def test_outputs_and_gradients_of_entmax(alpha, keys, device):
    """And of rows whose thresholds are known. Some keys are masked."""
    torch.manual_seed(keys)
    scores, probe = (3 * torch.randn(2, 2, 5, keys) for _ in range(2))
    scores[0, ..., keys // 2 + 1 :] = torch.finfo(torch.float32).min / 8
    results = []
    for weigh in (entmax._Entmax.apply, entmax_triton.weigh):
        leaves = [scores.to(device).requires_grad_()]
        if isinstance(alpha, torch.Tensor):
            leaves.append(alpha.to(device).requires_grad_())
        assert entmax_triton.supports(leaves[0], leaves[-1] if len(leaves) > 1 else alpha)
        chosen = leaves[1] if len(leaves) > 1 else alpha
        weights, tau = weigh(leaves[0], chosen, None)
        assert torch.equal(weigh(leaves[0], chosen, tau)[0], weights)
        slopes = torch.autograd.grad((weights * probe.to(device)).sum(), leaves)
        results.append([x.detach().cpu() for x in (weights, tau, *slopes)])
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_outputs_and_gradients_of_entmax_in_16_bits(dtype, device):
    """Weights and slopes are rounded once."""
    torch.manual_seed(0)
    scores, probe = ((3 * torch.randn(2, 2, 5, 37)).to(device, dtype) for _ in range(2))
    results = []
    for narrow in (True, False):
        x = (scores if narrow else scores.float()).requires_grad_()
        weights, _ = entmax_triton.weigh(x, 1.5, None)
        (slope,) = torch.autograd.grad(weights, x, probe.to(x.dtype))
        assert weights.dtype == slope.dtype == x.dtype
        results.append([weights.float(), slope.float()])
    for found, exact in zip(*results, strict=True):
        assert (found - exact).norm() < torch.finfo(dtype).eps / 2 * exact.norm()


def test_wide_rows_have_no_kernel_and_the_log_says_so(device, caplog):
    triton_launch.warn.cache_clear()
    wide = torch.zeros(1, 1, 1, entmax_triton.MOST + 1, device=device)
    assert not any(entmax_triton.supports(wide, 1.5) for _ in range(2))
    assert caplog.text.count("its kernel takes rows of 16,384 keys at most") == 1
    alphas = torch.tensor([1.5, 1.5])
    assert not entmax_triton.supports(wide[..., :4], alphas)
    assert not entmax_triton.supports(wide[..., :4].double(), 1.5)


@here_only
def test_in_the_interpreter():
    run_interpreted(__file__, "of_entmax or wide")


@here_only
@pytest.mark.parametrize("learned", slow_but_first([False, True]))
@pytest.mark.parametrize(
    ("capability", "dtype", "keys"),
    slow_but_first([(90, torch.bfloat16, 512), (80, torch.float32, 2**14)]),
)
def test_it_compiles_without_a_gpu(learned, capability, dtype, keys, compile_for):
    """And needs little shared memory: a row is in registers."""
    compiled = compile_for(capability)
    scores = torch.randn(1, 2, 1, keys, dtype=dtype, requires_grad=True)
    alpha = torch.tensor([1.2, 1.8])[:, None, None] if learned else 1.5
    weights, _ = entmax_triton.weigh(scores, alpha, None)
    weights.sum().backward()
    assert len(compiled) == 2 and all(x.metadata.shared <= 2**12 for x in compiled)
