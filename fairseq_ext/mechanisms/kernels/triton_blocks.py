# mypy: allow-untyped-defs
"""Parts of our Triton kernels: blocks of rows, their products, sums of exponentials, and dropout.

Rows lie in memory as [time, group, width]. Scores are times log2 e, and weights powers of two.
Pointers and seeds may be None; what is computed of them is left out when a kernel is compiled.
"""

import triton
import triton.language as tl


@triton.jit
def span(padding, size, sentence):
    """Return the first real position and the one after the last; `size` and 0 if all are padded."""
    first, last = size * 0, size
    if padding is not None:
        first, last = size, size * 0
        for start in range(0, size, 1024):
            at = start + tl.arange(0, 1024)
            real = hidden(padding, at, size, sentence) == 0.0
            first = tl.minimum(first, tl.min(tl.where(real, at, size), 0))
            last = tl.maximum(last, tl.max(tl.where(real, at + 1, 0), 0))
    return first, last


@triton.jit
def hidden(padding, at, size, sentence):
    """Return infinity where there is padding or nothing, else 0."""
    real = at < size
    if padding is not None:
        real &= tl.load(padding + sentence * size + at, mask=real, other=1) == 0
    return tl.where(real, 0.0, float("inf"))


@triton.jit
def seeds(seed, at, size, group):
    """Return a random number for each query or key of a group; zeros without dropout."""
    drawn = at.to(tl.uint32) * 0
    if seed is not None:
        drawn = mix_bits(mix_bits((group * size + at).to(tl.uint32)) ^ seed.to(tl.uint32))
    return drawn


@triton.jit
def mix_bits(x):
    """Return the finaliser of MurmurHash3."""
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    return x ^ (x >> 16)


@triton.jit
def factor(x, y, dropped, kept):
    """Return the factor of weights by the random numbers x and y of their queries and keys.

    It is 0 if a hash of both is below `dropped` of 2^31, and else `kept`. Without dropout,
    `dropped` is None.
    """
    kept_or_not = 1.0
    if dropped is not None:
        kept_or_not = tl.where((mix_bits(x ^ y) >> 1).to(tl.int32) < dropped, 0.0, kept)
    return kept_or_not


@triton.jit
def potentials(x, at, size, group):
    """Return a, b or z of a group; infinity where there is nothing."""
    # with `other`, Triton 3.2 fails to compile loops
    values = tl.load(x + group * size + at, mask=at < size, other=0.0)
    return tl.where(at < size, values, float("inf"))


@triton.jit
def locate(at, size, group, groups, WIDTH: tl.constexpr, D: tl.constexpr):
    """Return where rows `at` of a group lie in a tensor [size, groups, WIDTH], and which exist."""
    column = tl.arange(0, D)[None, :]
    rows = (at.to(tl.int64) * groups + group)[:, None]
    return rows * WIDTH + column, (at < size)[:, None] & (column < WIDTH)


@triton.jit
def load(x, at, size, group, groups, WIDTH: tl.constexpr, D: tl.constexpr):
    """Return rows `at` of a group, and zeros where there are none."""
    places, real = locate(at, size, group, groups, WIDTH, D)
    return tl.load(x + places, mask=real, other=0.0)


@triton.jit
def store(x, values, at, size, group, groups, WIDTH: tl.constexpr, D: tl.constexpr):
    """Write rows `at` of a group."""
    places, real = locate(at, size, group, groups, WIDTH, D)
    tl.store(x + places, values, mask=real)


@triton.jit
def scores(x, y, scale, PRECISION: tl.constexpr):
    """Return the scores of the rows of x and of y, times log2 e."""
    return tl.dot(x, tl.trans(y), input_precision=PRECISION) * (scale * 1.4426950408889634)


@triton.jit
def plus_product(total, x, y, PRECISION: tl.constexpr):
    """Return total + x y, with x in the precision of y."""
    return tl.dot(x.to(y.dtype), y, total, input_precision=PRECISION)


@triton.jit
def add(t, top, total):
    """Add columns t to rows with their greatest t so far (top) and the sum of 2^(t - top) (total).

    Returns the new top and total, 2^(t - top), and the factor for sums made with the former top.
    """
    new = tl.maximum(top, tl.max(t, 1))
    w, shrink = tl.exp2(t - new[:, None]), tl.exp2(top - new)
    return new, total * shrink + tl.sum(w, 1), w, shrink


@triton.jit
def log(top, total):
    """Return the log-sum-exp, or infinity if nothing was added."""
    return tl.where(total > 0.0, top + tl.log2(total), float("inf"))
