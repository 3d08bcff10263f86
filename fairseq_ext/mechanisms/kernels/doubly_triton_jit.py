# mypy: allow-untyped-defs
"""The Triton kernels of `doubly_triton`, where the letters are explained. Needs Triton.

A program holds all of its rows `here`; the rows `there` pass by, a few at a time. Pointers to
padding may be None, as may u, without which nothing of HNAS is compiled and z and delta_u are not
read, and seeds, without which no weight is dropped.
"""

import triton
import triton.language as tl

SIZES = ("groups", "heads", "T", "S", "dropped")  # one compiled kernel for all values of them


@triton.jit(do_not_specialize=SIZES)
def columns(
    q, k, a, queries, keys,
    groups, heads, T, S, scale, WIDTH: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute a."""
    group, j, first, last = _place(keys, S, queries, T, heads, ROWS)
    k_here = _load(k, j, S, group, groups, WIDTH, D)
    top = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    for start in range(first, last, STEP):
        i = start + tl.arange(0, STEP)
        s = _scores(k_here, _load(q, i, T, group, groups, WIDTH, D), scale, PRECISION)
        s -= _hidden(queries, i, T, group // heads)[None, :]
        top, total, _, _ = _add(s, top, total)
    a_here = _hidden(keys, j, S, group // heads) + _log(top, total)
    tl.store(a + group * S + j, a_here, mask=j < S)


@triton.jit(do_not_specialize=SIZES)
def outputs(
    q, k, v, u, a, b, z, out, apart, queries, keys, query_seeds, key_seeds,
    groups, heads, T, S, scale, dropped, kept, WIDTH: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute b, z, the output, and DNAS - UNAS."""
    group, i, first, last = _place(queries, T, keys, S, heads, ROWS)
    q_here = _load(q, i, T, group, groups, WIDTH, D)
    top = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mix = tl.zeros([ROWS, D], tl.float32)
    top_u, total_u, mix_u = top, total, mix
    seeds_here = _seeds(query_seeds, i, T, group)[:, None]
    for start in range(first, last, STEP):
        j = start + tl.arange(0, STEP)
        v_there = _load(v, j, S, group, groups, WIDTH, D)
        a_there = _potentials(a, j, S, group)[None, :]
        s = _scores(q_here, _load(k, j, S, group, groups, WIDTH, D), scale, PRECISION)
        factor = _factor(seeds_here, _seeds(key_seeds, j, S, group)[None, :], dropped, kept)
        top, total, w, shrink = _add(s - a_there, top, total)
        mix = _plus_product(mix * shrink[:, None], w * factor, v_there, PRECISION)
        if u is not None:
            s = tl.where(a_there < float("inf"), s, float("-inf"))
            top_u, total_u, w, shrink = _add(s, top_u, total_u)
            mix_u = _plus_product(mix_u * shrink[:, None], w * factor, v_there, PRECISION)
    hidden = _hidden(queries, i, T, group // heads)
    b_here = hidden + _log(top, total)
    tl.store(b + group * T + i, b_here, mask=i < T)
    mix = tl.where(b_here[:, None] < float("inf"), mix / total[:, None], 0.0)
    if u is not None:
        tl.store(z + group * T + i, hidden + _log(top_u, total_u), mask=i < T)
        mix_u = tl.where(b_here[:, None] < float("inf"), mix_u / total_u[:, None], 0.0)
        _store(apart, mix - mix_u, i, T, group, groups, WIDTH, D)
        mix = mix_u + tl.load(u + group % heads) * (mix - mix_u)
    _store(out, mix, i, T, group, groups, WIDTH, D)


@triton.jit(do_not_specialize=SIZES)
def deltas(
    dout, out, apart, u, delta, delta_u, slope,
    groups, heads, T, S, scale, WIDTH: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute delta and delta_u, the slopes of sums of weights, and the slope of the loss in u."""
    blocks = tl.cdiv(T, ROWS)
    group, start = tl.program_id(0) // blocks, tl.program_id(0) % blocks * ROWS
    i = start + tl.arange(0, ROWS)
    at, real = group * T + i, i < T
    dout_here = _load(dout, i, T, group, groups, WIDTH, D).to(tl.float32)
    delta_here = tl.sum(dout_here * _load(out, i, T, group, groups, WIDTH, D), 1)
    if u is not None:
        slope_here = tl.sum(dout_here * _load(apart, i, T, group, groups, WIDTH, D), 1)
        share = tl.load(u + group % heads)
        tl.store(slope + at, slope_here, mask=real)
        tl.store(delta_u + at, delta_here - share * slope_here, mask=real)
        delta_here += (1 - share) * slope_here
    tl.store(delta + at, delta_here, mask=real)


@triton.jit(do_not_specialize=SIZES)
def key_gradients(
    q, k, v, u, dout, a, b, z, delta, delta_u, da, dk, dv, queries, keys, query_seeds, key_seeds,
    groups, heads, T, S, scale, dropped, kept, WIDTH: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute dv, da and dk; a adds da C^T q to dk, and da is known at the end."""
    group, j, first, last = _place(keys, S, queries, T, heads, ROWS)
    k_here = _load(k, j, S, group, groups, WIDTH, D)
    v_here = _load(v, j, S, group, groups, WIDTH, D)
    a_here = _potentials(a, j, S, group)[:, None]
    da_here = tl.zeros([ROWS], tl.float32)
    dv_here = tl.zeros([ROWS, D], tl.float32)
    dk_here, cq = dv_here, dv_here
    seeds_here = _seeds(key_seeds, j, S, group)[:, None]
    for start in range(first, last, STEP):
        i = start + tl.arange(0, STEP)
        q_there = _load(q, i, T, group, groups, WIDTH, D)
        dout_there = _load(dout, i, T, group, groups, WIDTH, D)
        at, real = group * T + i, i < T
        b_there = _potentials(b, i, T, group)[None, :]
        z_there = _potentials(z, i, T, group)[None, :]
        delta_there = tl.load(delta + at, mask=real, other=0.0)[None, :]
        delta_u_there = tl.load(delta_u + at, mask=real, other=0.0)[None, :]
        s = _scores(k_here, q_there, scale, PRECISION)
        gain = tl.dot(v_here, tl.trans(dout_there), input_precision=PRECISION)
        factor = _factor(seeds_here, _seeds(query_seeds, i, T, group)[None, :], dropped, kept)
        gain *= factor
        c, w, dt, ds = _slopes(
            s, gain, a_here, b_there, z_there, delta_there, delta_u_there, u, group % heads
        )
        da_here -= tl.sum(dt, 1)
        dv_here = _plus_product(dv_here, w * factor, dout_there, PRECISION)
        dk_here = _plus_product(dk_here, ds, q_there, PRECISION)
        cq = _plus_product(cq, c, q_there, PRECISION)
    dk_here += da_here[:, None] * cq
    tl.store(da + group * S + j, da_here, mask=j < S)
    _store(dk, dk_here * scale, j, S, group, groups, WIDTH, D)
    _store(dv, dv_here, j, S, group, groups, WIDTH, D)


@triton.jit(do_not_specialize=SIZES)
def query_gradients(
    q, k, v, u, dout, a, b, z, delta, delta_u, da, dq, queries, keys, query_seeds, key_seeds,
    groups, heads, T, S, scale, dropped, kept, WIDTH: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute dq."""
    group, i, first, last = _place(queries, T, keys, S, heads, ROWS)
    q_here = _load(q, i, T, group, groups, WIDTH, D)
    dout_here = _load(dout, i, T, group, groups, WIDTH, D)
    at, real = group * T + i, i < T
    b_here = _potentials(b, i, T, group)[:, None]
    z_here = _potentials(z, i, T, group)[:, None]
    delta_here = tl.load(delta + at, mask=real, other=0.0)[:, None]
    delta_u_here = tl.load(delta_u + at, mask=real, other=0.0)[:, None]
    dq_here = tl.zeros([ROWS, D], tl.float32)
    seeds_here = _seeds(query_seeds, i, T, group)[:, None]
    for start in range(first, last, STEP):
        j = start + tl.arange(0, STEP)
        k_there = _load(k, j, S, group, groups, WIDTH, D)
        v_there = _load(v, j, S, group, groups, WIDTH, D)
        a_there = _potentials(a, j, S, group)[None, :]
        da_there = tl.load(da + group * S + j, mask=j < S, other=0.0)[None, :]
        s = _scores(q_here, k_there, scale, PRECISION)
        gain = tl.dot(dout_here, tl.trans(v_there), input_precision=PRECISION)
        gain *= _factor(seeds_here, _seeds(key_seeds, j, S, group)[None, :], dropped, kept)
        c, _, _, ds = _slopes(
            s, gain, a_there, b_here, z_here, delta_here, delta_u_here, u, group % heads
        )
        dq_here = _plus_product(dq_here, ds + c * da_there, k_there, PRECISION)
    _store(dq, dq_here * scale, i, T, group, groups, WIDTH, D)


@triton.jit
def _place(own, own_size, other, other_size, heads, ROWS: tl.constexpr):
    """Return a program's group and rows, and the others it sees: from `first` to before `last`."""
    blocks = tl.cdiv(own_size, ROWS)
    group, start = tl.program_id(0) // blocks, tl.program_id(0) % blocks * ROWS
    own_first, own_last = _span(own, own_size, group // heads)
    first, last = _span(other, other_size, group // heads)
    needed = (start < own_last) & (start + ROWS > own_first)
    return group, start + tl.arange(0, ROWS), first, tl.where(needed, last, first)


@triton.jit
def _span(padding, size, sentence):
    """Return the first real position and the one after the last; `size` and 0 if all are padded."""
    first, last = size * 0, size
    if padding is not None:
        first, last = size, size * 0
        for start in range(0, size, 1024):
            at = start + tl.arange(0, 1024)
            real = _hidden(padding, at, size, sentence) == 0.0
            first = tl.minimum(first, tl.min(tl.where(real, at, size), 0))
            last = tl.maximum(last, tl.max(tl.where(real, at + 1, 0), 0))
    return first, last


@triton.jit
def _hidden(padding, at, size, sentence):
    """Return infinity where there is padding or nothing, else 0."""
    real = at < size
    if padding is not None:
        real &= tl.load(padding + sentence * size + at, mask=real, other=1) == 0
    return tl.where(real, 0.0, float("inf"))


@triton.jit
def _seeds(x, at, size, group):
    """Return the random numbers of queries or keys; zeros without dropout."""
    seeds = at * 0
    if x is not None:
        seeds = tl.load(x + group * size + at, mask=at < size, other=0)
    return seeds.to(tl.uint32)


@triton.jit
def _factor(x, y, dropped, kept):
    """Return the factor of weights by the random numbers x and y of their queries and keys.

    It is 0 if a hash of both is below `dropped` of 2^31, and else `kept`. The hash is the finaliser
    of MurmurHash3. Without dropout, `dropped` is None.
    """
    factor = 1.0
    if dropped is not None:
        x = x ^ y
        x = (x ^ (x >> 16)) * 0x85EBCA6B
        x = (x ^ (x >> 13)) * 0xC2B2AE35
        x = (x ^ (x >> 16)) >> 1
        factor = tl.where(x.to(tl.int32) < dropped, 0.0, kept)
    return factor


@triton.jit
def _potentials(x, at, size, group):
    """Return a, b or z of a group; infinity where there is nothing."""
    # with `other`, Triton 3.2 fails to compile loops
    values = tl.load(x + group * size + at, mask=at < size, other=0.0)
    return tl.where(at < size, values, float("inf"))


@triton.jit
def _places(at, size, group, groups, WIDTH: tl.constexpr, D: tl.constexpr):
    """Return where rows `at` of a group lie in a tensor [size, groups, WIDTH], and which exist."""
    column = tl.arange(0, D)[None, :]
    rows = (at.to(tl.int64) * groups + group)[:, None]
    return rows * WIDTH + column, (at < size)[:, None] & (column < WIDTH)


@triton.jit
def _load(x, at, size, group, groups, WIDTH: tl.constexpr, D: tl.constexpr):
    places, real = _places(at, size, group, groups, WIDTH, D)
    return tl.load(x + places, mask=real, other=0.0)


@triton.jit
def _store(x, values, at, size, group, groups, WIDTH: tl.constexpr, D: tl.constexpr):
    places, real = _places(at, size, group, groups, WIDTH, D)
    tl.store(x + places, values, mask=real)


@triton.jit
def _scores(x, y, scale, PRECISION: tl.constexpr):
    """Return the scores of the rows of x and of y, times log2 e."""
    return tl.dot(x, tl.trans(y), input_precision=PRECISION) * (scale * 1.4426950408889634)


@triton.jit
def _plus_product(total, x, y, PRECISION: tl.constexpr):
    """Return total + x y, with x in the precision of y."""
    return tl.dot(x.to(y.dtype), y, total, input_precision=PRECISION)


@triton.jit
def _add(t, top, total):
    """Add columns t to rows with their greatest t so far (top) and the sum of 2^(t - top) (total).

    Returns the new top and total, 2^(t - top), and the factor for sums made with the former top.
    """
    new = tl.maximum(top, tl.max(t, 1))
    w, shrink = tl.exp2(t - new[:, None]), tl.exp2(top - new)
    return new, total * shrink + tl.sum(w, 1), w, shrink


@triton.jit
def _log(top, total):
    """Return the log-sum-exp, or infinity if nothing was added."""
    return tl.where(total > 0.0, top + tl.log2(total), float("inf"))


@triton.jit
def _slopes(s, gain, a, b, z, delta, delta_u, u, head):
    """Return C, the weights, and the slopes of the loss in s - a and in s, except through a."""
    w = tl.exp2(s - a - b)
    c = w * tl.where(b < float("inf"), tl.exp2(b), 0.0)
    if u is not None:
        share = tl.load(u + head)
        w *= share
    dt = w * (gain - delta)
    ds = dt
    if u is not None:
        w_u = tl.where(a < float("inf"), tl.exp2(s - z), 0.0) * (1 - share)
        ds += w_u * (gain - delta_u)
        w += w_u
    return c, w, dt, ds
