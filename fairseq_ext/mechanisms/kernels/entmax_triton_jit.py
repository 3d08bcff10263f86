# mypy: allow-untyped-defs
"""The Triton kernels of `entmax_triton`. Needs Triton.

A program holds a row of scores. `alphas` may be None, and ALPHA is the alpha of all heads then.
"""

import triton
import triton.language as tl

SIZES = ("size", "heads", "queries")  # one compiled kernel for all values of them


@triton.jit(do_not_specialize=SIZES)
def weights(
    x, alphas, p, tau, size, heads, queries,
    ALPHA: tl.constexpr, BLOCK: tl.constexpr, SOLVED: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """Compute the weights of a row, and its threshold unless it is SOLVED."""
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    alpha = _alpha(alphas, row, heads, queries, ALPHA)
    t = _shift(x, row, at, size, alpha)
    if SOLVED:
        threshold = tl.load(tau + row)
    else:
        threshold = tl.max(t, 0) - 1.0  # t is 0 at most; the norm is 1 or more there
        for _ in range(STEPS):
            base = tl.maximum(t - threshold, 0.0)
            lower = _lower(base, alpha, ALPHA)
            total, slope = tl.sum(lower * base, 0), tl.sum(lower, 0)
            step = (total - tl.exp2((2.0 - alpha) * tl.log2(total))) / slope
            threshold += tl.where(total - 1.0 > 5.4e-6, step, 0.0)
        tl.store(tau + row, threshold)
    base = tl.maximum(t - threshold, 0.0)
    w = _lower(base, alpha, ALPHA) * base
    tl.store(p + row * size + at, w / tl.sum(w, 0), mask=at < size)


@triton.jit(do_not_specialize=SIZES)
def slopes(
    x, alphas, tau, gradient, dx, dalpha, size, heads, queries,
    ALPHA: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the slopes of the loss in the scores of a row and, if there are alphas, in its own.

    See `mechanisms/entmax.py` for u, q and e.
    """
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    alpha = _alpha(alphas, row, heads, queries, ALPHA)
    base = tl.maximum(_shift(x, row, at, size, alpha) - tl.load(tau + row), 0.0)
    w = _lower(base, alpha, ALPHA) * base
    p = w / tl.sum(w, 0)
    positive = p > 0.0
    logs = tl.log2(tl.where(positive, p, 1.0))
    u = tl.where(positive, tl.exp2((2.0 - alpha) * logs), 0.0)
    q = u / tl.sum(u, 0)
    g = tl.load(gradient + row * size + at, mask=at < size, other=0.0).to(tl.float32)
    tl.store(dx + row * size + at, u * (g - tl.sum(g * q, 0)), mask=at < size)
    if alphas is not None:
        e = -p * logs * 0.6931471805599453
        rate = 1.0 / (alpha - 1.0)
        of_p = (p - q) * rate * rate + (e - q * tl.sum(e, 0)) * rate
        tl.store(dalpha + row, tl.sum(g * of_p, 0))


@triton.jit
def _alpha(alphas, row, heads, queries, ALPHA: tl.constexpr):
    """Return the alpha of a row of [B, heads, queries, S]."""
    alpha = ALPHA
    if alphas is not None:
        alpha = tl.load(alphas + row // queries % heads)
    return alpha


@triton.jit
def _shift(x, row, at, size, alpha):
    """Return (alpha - 1) s less its greatest value, -infinity where there is no key."""
    s = tl.load(x + row * size + at, mask=at < size, other=float("-inf")).to(tl.float32)
    s = s * (alpha - 1.0)
    return s - tl.max(s, 0)


@triton.jit
def _lower(base, alpha, ALPHA: tl.constexpr):
    """Return base^(1 / (alpha - 1) - 1) where base is positive, and 0 elsewhere."""
    if ALPHA == 2.0:
        lower = tl.where(base > 0.0, 1.0, 0.0)
    elif ALPHA == 1.5:
        lower = base
    else:
        power = (2.0 - alpha) / (alpha - 1.0)
        logs = tl.log2(tl.where(base > 0.0, base, 1.0))
        lower = tl.where(base > 0.0, tl.exp2(power * logs), 0.0)
    return lower
