# mypy: allow-untyped-defs
"""The Triton kernels of `doubly_triton`, where the letters are explained. Needs Triton.

A program holds all of its rows `here`; the rows `there` pass by, a few at a time. Pointers to
padding may be None, as may that to the offset of u, without which nothing of HNAS is compiled and z
is not read, and seeds, without which no weight is dropped.
"""

import triton
import triton.language as tl

from fairseq_ext.mechanisms.kernels.triton_blocks import (
    add,
    factor,
    hidden,
    load,
    log,
    plus_product,
    potentials,
    scores,
    seeds,
    span,
    store,
)

# one compiled kernel for all values of them
SIZES = ("groups", "heads", "T", "S", "query_seed", "key_seed", "dropped")


@triton.jit(do_not_specialize=SIZES)
def columns(
    q, k, a, queries, keys, groups, heads, T, S, scale, WIDTH: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute a."""
    group, j, first, last = _place(keys, S, queries, T, heads, ROWS)
    k_here = load(k, j, S, group, groups, WIDTH, D)
    top = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    for start in range(first, last, STEP):
        i = start + tl.arange(0, STEP)
        s = scores(k_here, load(q, i, T, group, groups, WIDTH, D), scale, PRECISION)
        s -= hidden(queries, i, T, group // heads)[None, :]
        top, total, _, _ = add(s, top, total)
    a_here = hidden(keys, j, S, group // heads) + log(top, total)
    tl.store(a + group * S + j, a_here, mask=j < S)


@triton.jit(do_not_specialize=SIZES)
def outputs(
    q, k, v, offset, a, b, z, out, apart, queries, keys,
    query_seed, key_seed, dropped, kept, origin, KIND: tl.constexpr,
    groups, heads, T, S, scale, WIDTH: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute b, z, the output, and DNAS - UNAS."""
    group, i, first, last = _place(queries, T, keys, S, heads, ROWS)
    q_here = load(q, i, T, group, groups, WIDTH, D)
    top = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mix = tl.zeros([ROWS, D], tl.float32)
    top_u, total_u, mix_u = top, total, mix
    seeds_here = seeds(query_seed, i, T, group)[:, None]
    for start in range(first, last, STEP):
        j = start + tl.arange(0, STEP)
        v_there = load(v, j, S, group, groups, WIDTH, D)
        a_there = potentials(a, j, S, group)[None, :]
        s = scores(q_here, load(k, j, S, group, groups, WIDTH, D), scale, PRECISION)
        f = factor(seeds_here, seeds(key_seed, j, S, group)[None, :], dropped, kept)
        top, total, w, shrink = add(s - a_there, top, total)
        mix = plus_product(mix * shrink[:, None], w * f, v_there, PRECISION)
        if offset is not None:
            s = tl.where(a_there < float("inf"), s, float("-inf"))
            top_u, total_u, w, shrink = add(s, top_u, total_u)
            mix_u = plus_product(mix_u * shrink[:, None], w * f, v_there, PRECISION)
    absent = hidden(queries, i, T, group // heads)
    b_here = absent + log(top, total)
    tl.store(b + group * T + i, b_here, mask=i < T)
    mix = tl.where(b_here[:, None] < float("inf"), mix / total[:, None], 0.0)
    if offset is not None:
        tl.store(z + group * T + i, absent + log(top_u, total_u), mask=i < T)
        mix_u = tl.where(b_here[:, None] < float("inf"), mix_u / total_u[:, None], 0.0)
        store(apart, mix - mix_u, i, T, group, groups, WIDTH, D)
        mix = mix_u + _share(offset, group % heads, origin, KIND) * (mix - mix_u)
    store(out, mix, i, T, group, groups, WIDTH, D)


@triton.jit(do_not_specialize=SIZES)
def deltas(
    dout, out, apart, offset, delta, delta_u, origin, KIND: tl.constexpr,
    groups, heads, T, S, scale, WIDTH: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute delta and delta_u, the slopes of sums of weights."""
    blocks = tl.cdiv(T, ROWS)
    group, i = tl.program_id(0) // blocks, tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)
    u = _share(offset, group % heads, origin, KIND)
    dout_here = load(dout, i, T, group, groups, WIDTH, D)
    own, own_u, _ = _deltas(dout_here, out, apart, u, i, T, group, groups, WIDTH, D)
    tl.store(delta + group * T + i, own, mask=i < T)
    if offset is not None:
        tl.store(delta_u + group * T + i, own_u, mask=i < T)


@triton.jit(do_not_specialize=SIZES)
def key_gradients(
    q, k, v, offset, dout, out, apart, a, b, z, delta, delta_u, da, dk, dv, queries, keys,
    query_seed, key_seed, dropped, kept, origin, KIND: tl.constexpr,
    groups, heads, T, S, scale, WIDTH: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute dv, da and dk; a adds da C^T q to dk, and da is known at the end.

    Without delta and delta_u they are computed for each block of keys.
    """
    group, j, first, last = _place(keys, S, queries, T, heads, ROWS)
    k_here = load(k, j, S, group, groups, WIDTH, D)
    v_here = load(v, j, S, group, groups, WIDTH, D)
    a_here = potentials(a, j, S, group)[:, None]
    u = _share(offset, group % heads, origin, KIND)
    da_here = tl.zeros([ROWS], tl.float32)
    dv_here = tl.zeros([ROWS, D], tl.float32)
    dk_here, cq = dv_here, dv_here
    seeds_here = seeds(key_seed, j, S, group)[:, None]
    for start in range(first, last, STEP):
        i = start + tl.arange(0, STEP)
        q_there = load(q, i, T, group, groups, WIDTH, D)
        dout_there = load(dout, i, T, group, groups, WIDTH, D)
        if delta is None:
            own, own_u, _ = _deltas(dout_there, out, apart, u, i, T, group, groups, WIDTH, D)
        else:
            own = tl.load(delta + group * T + i, mask=i < T, other=0.0)
            own_u = own
            if offset is not None:
                own_u = tl.load(delta_u + group * T + i, mask=i < T, other=0.0)
        b_there = potentials(b, i, T, group)[None, :]
        z_there = potentials(z, i, T, group)[None, :]
        s = scores(k_here, q_there, scale, PRECISION)
        f = factor(seeds_here, seeds(query_seed, i, T, group)[None, :], dropped, kept)
        gain = tl.dot(v_here, tl.trans(dout_there), input_precision=PRECISION) * f
        c, w, dt, ds = _slopes(s, gain, a_here, b_there, z_there, own[None, :], own_u[None, :], u)
        da_here -= tl.sum(dt, 1)
        dv_here = plus_product(dv_here, w * f, dout_there, PRECISION)
        dk_here = plus_product(dk_here, ds, q_there, PRECISION)
        cq = plus_product(cq, c, q_there, PRECISION)
    dk_here += da_here[:, None] * cq
    tl.store(da + group * S + j, da_here, mask=j < S)
    store(dk, dk_here * scale, j, S, group, groups, WIDTH, D)
    store(dv, dv_here, j, S, group, groups, WIDTH, D)


@triton.jit(do_not_specialize=SIZES)
def query_gradients(
    q, k, v, offset, dout, out, apart, a, b, z, da, dq, slopes, queries, keys,
    query_seed, key_seed, dropped, kept, origin, KIND: tl.constexpr,
    groups, heads, T, S, scale, WIDTH: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute dq, and the part of each query in the slope of the offset of u."""
    group, i, first, last = _place(queries, T, keys, S, heads, ROWS)
    q_here = load(q, i, T, group, groups, WIDTH, D)
    dout_here = load(dout, i, T, group, groups, WIDTH, D)
    u = _share(offset, group % heads, origin, KIND)
    delta, delta_u, slope = _deltas(dout_here, out, apart, u, i, T, group, groups, WIDTH, D)
    if offset is not None:
        rise = u * (1 - u) if KIND == "sigmoid" else 1.0  # of u in its offset
        tl.store(slopes + group * T + i, slope * rise, mask=i < T)
    b_here = potentials(b, i, T, group)[:, None]
    z_here = potentials(z, i, T, group)[:, None]
    dq_here = tl.zeros([ROWS, D], tl.float32)
    seeds_here = seeds(query_seed, i, T, group)[:, None]
    for start in range(first, last, STEP):
        j = start + tl.arange(0, STEP)
        k_there = load(k, j, S, group, groups, WIDTH, D)
        v_there = load(v, j, S, group, groups, WIDTH, D)
        a_there = potentials(a, j, S, group)[None, :]
        da_there = tl.load(da + group * S + j, mask=j < S, other=0.0)[None, :]
        s = scores(q_here, k_there, scale, PRECISION)
        f = factor(seeds_here, seeds(key_seed, j, S, group)[None, :], dropped, kept)
        gain = tl.dot(dout_here, tl.trans(v_there), input_precision=PRECISION) * f
        c, _, _, ds = _slopes(s, gain, a_there, b_here, z_here, delta[:, None], delta_u[:, None], u)
        dq_here = plus_product(dq_here, ds + c * da_there, k_there, PRECISION)
    store(dq, dq_here * scale, i, T, group, groups, WIDTH, D)


@triton.jit
def _place(own, own_size, other, other_size, heads, ROWS: tl.constexpr):
    """Return a program's group and rows, and the others it sees: from `first` to before `last`."""
    blocks = tl.cdiv(own_size, ROWS)
    group, start = tl.program_id(0) // blocks, tl.program_id(0) % blocks * ROWS
    own_first, own_last = span(own, own_size, group // heads)
    first, last = span(other, other_size, group // heads)
    needed = (start < own_last) & (start + ROWS > own_first)
    return group, start + tl.arange(0, ROWS), first, tl.where(needed, last, first)


@triton.jit
def _share(offset, head, origin, KIND: tl.constexpr):
    """Return u of a head, or None without HNAS."""
    u = None
    if offset is not None:
        u = tl.load(offset + head).to(tl.float32) + origin
        if KIND == "sigmoid":
            u = 1 / (1 + tl.exp(-u))
        if KIND == "clamp":
            u = tl.minimum(tl.maximum(u, 0.0), 1.0)
    return u


@triton.jit
def _deltas(dout, out, apart, u, i, T, group, groups, WIDTH: tl.constexpr, D: tl.constexpr):
    """Return the slopes of sums of weights in DNAS and UNAS, and that of the loss in u."""
    dout = dout.to(tl.float32)
    delta = tl.sum(dout * load(out, i, T, group, groups, WIDTH, D), 1)
    delta_u, slope = delta, delta
    if u is not None:
        slope = tl.sum(dout * load(apart, i, T, group, groups, WIDTH, D), 1)
        delta_u = delta - u * slope
        delta += (1 - u) * slope
    return delta, delta_u, slope


@triton.jit
def _slopes(s, gain, a, b, z, delta, delta_u, u):
    """Return C, the weights, and the slopes of the loss in s - a and in s, except through a."""
    w = tl.exp2(s - a - b)
    c = w * tl.where(b < float("inf"), tl.exp2(b), 0.0)
    if u is not None:
        w *= u
    dt = w * (gain - delta)
    ds = dt
    if u is not None:
        w_u = tl.where(a < float("inf"), tl.exp2(s - z), 0.0) * (1 - u)
        ds += w_u * (gain - delta_u)
        w += w_u
    return c, w, dt, ds
