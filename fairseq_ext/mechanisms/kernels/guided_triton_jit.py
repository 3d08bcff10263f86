# mypy: allow-untyped-defs
"""The Triton kernels of `guided_triton`, where the letters are explained. Needs Triton.

A program holds all of its rows `here`; the rows `there` pass by, a few at a time. Pointers to the
mask and to shares may be None, as may seeds, without which no weight is dropped. Heads from `first`
on are guided, `guided` of them; the others have no target, and the slope of their d is 0.
"""

import triton
import triton.language as tl

from fairseq_ext.mechanisms.kernels.triton_blocks import (
    add,
    factor,
    load,
    plus_product,
    potentials,
    scores,
    seeds,
    store,
)

# one compiled kernel for all values of them
SIZES = (
    "batch", "heads", "first", "guided", "T", "S", "pitch", "dout_pitch", "targets_apart", "mask_b",
    "mask_h", "mask_t", "query_seed", "key_seed", "dropped",
)  # fmt: skip


@triton.jit(do_not_specialize=SIZES)
def outputs(
    q, k, v, mask, keys, exist, share, out, z, distances, rest,
    batch, heads, first, guided, T, S, pitch, targets_apart, mask_b, mask_h, mask_t,
    query_seed, key_seed, dropped, kept, BY_QUERY: tl.constexpr, CAUSAL: tl.constexpr,
    DROPPED: tl.constexpr,
    scale, WIDTH: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the output, z, d, and what delta needs of the maps."""
    group, i = _place(T, ROWS)
    sentence, head = group // heads, group % heads
    mask_here = _mask_of(mask, sentence, head, mask_b, mask_h)
    place, places = sentence * pitch + head, batch * pitch
    q_here = load(q, i, T, place, places, WIDTH, D)
    own = (i < T) & (head >= first) & (head < first + guided)
    t_here = _targets(keys, exist, i, own, sentence * targets_apart + (head - first) * T)
    top = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    squares, hit, sums = total, total, total
    mix = tl.zeros([ROWS, D], tl.float32)
    seeds_here = seeds(query_seed, i, T, group)[:, None]
    last = tl.minimum(S, (tl.program_id(0) % tl.cdiv(T, ROWS) + 1) * ROWS) if CAUSAL else S
    for start in range(0, last, STEP):
        j = start + tl.arange(0, STEP)
        k_there = load(k, j, S, place, places, WIDTH, D)
        v_there = load(v, j, S, place, places, WIDTH, D)
        s = scores(q_here, k_there, scale, PRECISION)
        seen = _seen(mask_here, i[:, None], j[None, :], T, S, mask_t, BY_QUERY, CAUSAL)
        f = factor(seeds_here, seeds(key_seed, j, S, group)[None, :], dropped, kept)
        top, total, w, shrink = add(tl.where(seen, s, float("-inf")), top, total)
        mix = plus_product(mix * shrink[:, None], w * f, v_there, PRECISION)
        if DROPPED:
            w *= f
            sums = sums * shrink + tl.sum(w, 1)
        squares = squares * shrink * shrink + tl.sum(w * w, 1)
        hit = hit * shrink + tl.sum(tl.where(j[None, :] == t_here[:, None], w, 0.0), 1)
    store(out, mix / total[:, None], i, T, group, batch * heads, WIDTH, D)
    at, real = group * T + i, i < T
    tl.store(z + at, top + tl.log2(total), mask=real)
    squares, hit = squares / total / total, hit / total
    sums = sums / total if DROPPED else sums + 1
    edge = _shares(share, i, own, sentence * T)
    drawn = edge * sums if DROPPED else edge * 0.0  # softmax has no slope in its sum
    tl.store(rest + at, squares - tl.where(t_here >= 0, hit, drawn), mask=real)
    target = tl.where(t_here >= 0, 1 - 2 * hit, (1 - 2 * sums) * edge)
    at = (sentence * guided + head - first) * T + i
    tl.store(distances + at, squares + target, mask=own)


@triton.jit(do_not_specialize=SIZES)
def query_gradients(
    q, k, v, mask, keys, exist, share, out, z, rest, dout, slope, delta, dq,
    batch, heads, first, guided, T, S, pitch, dout_pitch, targets_apart, mask_b, mask_h, mask_t,
    query_seed, key_seed, dropped, kept, BY_QUERY: tl.constexpr, CAUSAL: tl.constexpr,
    DROPPED: tl.constexpr,
    scale, WIDTH: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute delta and dq."""
    group, i = _place(T, ROWS)
    sentence, head = group // heads, group % heads
    mask_here = _mask_of(mask, sentence, head, mask_b, mask_h)
    place, places = sentence * pitch + head, batch * pitch
    at, real = group * T + i, i < T
    q_here = load(q, i, T, place, places, WIDTH, D)
    dout_here = load(dout, i, T, sentence * dout_pitch + head, batch * dout_pitch, WIDTH, D)
    own = real & (head >= first) & (head < first + guided)
    twice = _twice(slope, i, own, (sentence * guided + head - first) * T)
    delta_here = tl.sum(
        dout_here.to(tl.float32) * load(out, i, T, group, batch * heads, WIDTH, D), 1
    )
    delta_here += twice * tl.load(rest + at, mask=real, other=0.0)
    tl.store(delta + at, delta_here, mask=real)
    t_here = _targets(keys, exist, i, own, sentence * targets_apart + (head - first) * T)
    edge = tl.where(t_here < 0, _shares(share, i, own, sentence * T), 0.0)
    z_here = potentials(z, i, T, group)[:, None]
    dq_here = tl.zeros([ROWS, D], tl.float32)
    seeds_here = seeds(query_seed, i, T, group)[:, None]
    last = tl.minimum(S, (tl.program_id(0) % tl.cdiv(T, ROWS) + 1) * ROWS) if CAUSAL else S
    for start in range(0, last, STEP):
        j = start + tl.arange(0, STEP)
        k_there = load(k, j, S, place, places, WIDTH, D)
        v_there = load(v, j, S, place, places, WIDTH, D)
        s = scores(q_here, k_there, scale, PRECISION)
        seen = _seen(mask_here, i[:, None], j[None, :], T, S, mask_t, BY_QUERY, CAUSAL)
        f = factor(seeds_here, seeds(key_seed, j, S, group)[None, :], dropped, kept)
        gain = tl.dot(dout_here, tl.trans(v_there), input_precision=PRECISION)
        w = tl.where(seen, tl.exp2(s - z_here), 0.0)
        found = j[None, :] == t_here[:, None]
        ds = w * (_slopes(w, gain, f, twice[:, None], found, edge[:, None], DROPPED)
                  - delta_here[:, None])  # fmt: skip
        dq_here = plus_product(dq_here, ds, k_there, PRECISION)
    store(dq, dq_here * scale, i, T, group, batch * heads, WIDTH, D)


@triton.jit(do_not_specialize=SIZES)
def key_gradients(
    q, k, v, mask, keys, exist, share, z, dout, slope, delta, dk, dv,
    batch, heads, first, guided, T, S, pitch, dout_pitch, targets_apart, mask_b, mask_h, mask_t,
    query_seed, key_seed, dropped, kept, BY_QUERY: tl.constexpr, CAUSAL: tl.constexpr,
    DROPPED: tl.constexpr,
    scale, WIDTH: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute dk and dv."""
    group, j = _place(S, ROWS)
    sentence, head = group // heads, group % heads
    mask_here = _mask_of(mask, sentence, head, mask_b, mask_h)
    place, places = sentence * pitch + head, batch * pitch
    k_here = load(k, j, S, place, places, WIDTH, D)
    v_here = load(v, j, S, place, places, WIDTH, D)
    dk_here = tl.zeros([ROWS, D], tl.float32)
    dv_here = dk_here
    seeds_here = seeds(key_seed, j, S, group)[:, None]
    start_i = tl.program_id(0) % tl.cdiv(S, ROWS) * ROWS if CAUSAL else 0
    for start in range(start_i, T, STEP):
        i = start + tl.arange(0, STEP)
        at, real = group * T + i, i < T
        q_there = load(q, i, T, place, places, WIDTH, D)
        dout_there = load(dout, i, T, sentence * dout_pitch + head, batch * dout_pitch, WIDTH, D)
        own = real & (head >= first) & (head < first + guided)
        twice = _twice(slope, i, own, (sentence * guided + head - first) * T)
        delta_there = tl.load(delta + at, mask=real, other=0.0)
        t_there = _targets(keys, exist, i, own, sentence * targets_apart + (head - first) * T)
        edge = tl.where(t_there < 0, _shares(share, i, own, sentence * T), 0.0)
        s = scores(k_here, q_there, scale, PRECISION)
        seen = _seen(mask_here, i[None, :], j[:, None], T, S, mask_t, BY_QUERY, CAUSAL)
        f = factor(seeds_here, seeds(query_seed, i, T, group)[None, :], dropped, kept)
        gain = tl.dot(v_here, tl.trans(dout_there), input_precision=PRECISION)
        w = tl.where(seen, tl.exp2(s - potentials(z, i, T, group)[None, :]), 0.0)
        found = j[:, None] == t_there[None, :]
        ds = w * (_slopes(w, gain, f, twice[None, :], found, edge[None, :], DROPPED)
                  - delta_there[None, :])  # fmt: skip
        dv_here = plus_product(dv_here, w * f, dout_there, PRECISION)
        dk_here = plus_product(dk_here, ds, q_there, PRECISION)
    store(dk, dk_here * scale, j, S, group, batch * heads, WIDTH, D)
    store(dv, dv_here, j, S, group, batch * heads, WIDTH, D)


@triton.jit
def _place(size, ROWS: tl.constexpr):
    """Return a program's group and rows."""
    blocks = tl.cdiv(size, ROWS)
    return tl.program_id(0) // blocks, tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)


@triton.jit
def _targets(keys, exist, i, own, start):
    """Return the key that each row should look at, or -1."""
    found = tl.load(exist + start + i, mask=own, other=0) != 0
    return tl.where(found, tl.load(keys + start + i, mask=own, other=0).to(tl.int32), -1)


@triton.jit
def _shares(share, i, own, start):
    """Return 1 / n of each row, for one without a target; 0 if that should be 0."""
    shares = i * 0.0
    if share is not None:
        shares = tl.load(share + start + i, mask=own, other=0.0)
    return shares


@triton.jit
def _twice(slope, i, own, start):
    """Return twice the slope of d of each row."""
    return 2 * tl.load(slope + start + i, mask=own, other=0.0)


@triton.jit
def _mask_of(mask, sentence, head, mask_b, mask_h):
    """Return where the mask of a head begins, or None."""
    begin = mask
    if mask is not None:
        begin += sentence.to(tl.int64) * mask_b + head * mask_h
    return begin


@triton.jit
def _seen(mask, i, j, T, S, mask_t, BY_QUERY: tl.constexpr, CAUSAL: tl.constexpr):
    """Return which keys j the queries i see; these stand along two axes."""
    seen = (i < T) & (j < S)
    if CAUSAL:
        seen &= j <= i
    if mask is not None:
        if BY_QUERY:
            seen &= tl.load(mask + i.to(tl.int64) * mask_t + j, mask=seen, other=1) == 0
        else:
            seen &= tl.load(mask + j, mask=j < S, other=1) == 0
    return seen


@triton.jit
def _slopes(w, gain, f, twice, found, edge, DROPPED: tl.constexpr):
    """Return the slopes of the loss in weights before dropout, up to a constant of each row."""
    if DROPPED:
        slopes = (gain + twice * (w * f - tl.where(found, 1.0, edge))) * f
    else:
        slopes = gain * f + twice * (w - tl.where(found, 1.0, 0.0))
    return slopes
