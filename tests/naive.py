"""The naive twin: attention from the papers' definitions, with loops, in the obvious way."""

import math

import torch
from torch import Tensor


def normalise(
    kind: str,
    scores: Tensor,
    masked: Tensor,
    absent: Tensor,
    *,
    u: Tensor | float = 0.5,
    sweeps: int = 1,
) -> Tensor:
    """Weights [T, S] of one sentence and head.

    Args:
        kind: "softmax", "doubly", "hybrid" or "sinkhorn".
        scores: [T, S]. masked: [T, S] bool. absent: [T] bool, padded queries.
    """
    e = torch.where(masked, torch.zeros_like(scores), scores.exp())
    if kind == "hybrid":
        doubly, softmax = (normalise(n, scores, masked, absent) for n in ("doubly", "softmax"))
        return u * doubly + (1 - u) * softmax
    for _ in range({"softmax": 0, "doubly": 1, "sinkhorn": sweeps}[kind]):
        columns = []
        for j in range(e.size(1)):
            total = sum(e[i, j] for i in range(e.size(0)) if not absent[i])
            columns.append(e[:, j] / total if total.item() > 0 else e[:, j])
        e = rows(torch.stack(columns, 1))
    return rows(e)


def rows(e: Tensor) -> Tensor:
    return torch.stack([row / row.sum() for row in e])


def attend(kind: str, q: Tensor, k: Tensor, v: Tensor, padding: Tensor, **options) -> Tensor:
    """[B, H, T, D] self-attention; padding [B, S] bool is that of the keys and of the queries."""
    out = torch.zeros_like(q)
    for b in range(q.size(0)):
        for h in range(q.size(1)):
            scores = q[b, h] @ k[b, h].T / q.size(-1) ** 0.5
            masked = padding[b].expand_as(scores)
            u = options.get("u", 0.5)
            u = u[h] if isinstance(u, Tensor) else u
            w = normalise(kind, scores, masked, padding[b], u=u, sweeps=options.get("sweeps", 1))
            out[b, h] = w @ v[b, h]
    return out


def multi_head(kind: str, module, x: Tensor, padding: Tensor, **options) -> Tensor:
    """[B, T, C] -> [B, T, C] with the projections of an attention module."""
    heads = module.num_heads

    def split(y: Tensor) -> Tensor:
        return y.view(*y.shape[:2], heads, -1).transpose(1, 2)

    parts = [split(p(x)) for p in (module.q_proj, module.k_proj, module.v_proj)]
    out = attend(kind, *parts, padding, **options)
    return module.out_proj(out.transpose(1, 2).flatten(2))


def gaussian(
    queries: int, keys: int, offset: float, sigma: float = 1.0, ratio: float = 1.0, causal=False
) -> Tensor:
    """[T, S] weights of a hard-coded head (You et al. 2020), densities as they are."""
    weights = torch.zeros(queries, keys, dtype=torch.float64)
    for i in range(queries):
        for j in range(keys):
            away = (j - (ratio * i + offset)) / sigma
            if not (causal and j > i):
                weights[i, j] = math.exp(-0.5 * away**2) / (sigma * math.sqrt(2 * math.pi))
    return weights


def keep(adversary, x: Tensor, reverse: bool = True) -> Tensor:
    """m [h, T, T] of one sentence [T, C]: 1 where scores are above 0. Its gradient is that of their
    sigmoid, with the opposite sign if it is to be reversed."""
    q, k = (x.detach() @ map_.weight.T + map_.bias for map_ in (adversary.query, adversary.key))
    size = q.size(1) // adversary.heads
    masks = []
    for h in range(adversary.heads):
        own = slice(h * size, (h + 1) * size)
        soft = torch.sigmoid(torch.einsum("ic,jc->ij", q[:, own], k[:, own]) / size**0.5)
        change = soft.detach() - soft if reverse else soft - soft.detach()
        masks.append((soft > 0.5).to(soft) + change)
    return torch.stack(masks)


def masked_row(scores: Tensor, m: Tensor, padding: Tensor, empty: str) -> Tensor:
    """Weights [S] of a query in a second pass; m [S] is 0 at padding."""
    lost = not m.any()
    if empty == "unmasked":
        logits = scores + 1e4 * (m if lost else m - 1)
        e = torch.where(padding, 0, (logits - logits[~padding].max()).exp())
    else:
        logits = (torch.where(m > 0, scores, 0) if empty == "uniform" else scores) + 1e4 * (m - 1)
        e = (logits - logits.max()).exp()
    return e / e.sum()


def second_pass(
    module, x: Tensor, padding: Tensor, empty: str = "unmasked", padded_rows: bool = False
) -> tuple[Tensor, Tensor]:
    """What an attention module with an adversary makes of x [B, T, C] in a second pass, and how
    many units it keeps [B]."""
    width = x.size(-1) // module.num_heads
    outputs, kept = [], []
    for sentence, pads in zip(x, padding, strict=True):
        m = keep(module.adversary, sentence)
        m = torch.stack([m[..., j] * (not pads[j]) for j in range(len(pads))], -1)
        q, k, v = (p(sentence) for p in (module.q_proj, module.k_proj, module.v_proj))
        heads = []
        for h in range(module.num_heads):
            own = slice(h * width, (h + 1) * width)
            scores = torch.einsum("ic,jc->ij", q[:, own], k[:, own]) / width**0.5
            shared = m[h] if len(m) > 1 else m[0]
            w = [masked_row(*row, pads, empty) for row in zip(scores, shared, strict=True)]
            heads.append(torch.stack(w) @ v[:, own])
        outputs.append(module.out_proj(torch.cat(heads, 1)))
        counted = [i for i in range(len(pads)) if padded_rows or not pads[i]]
        kept.append(sum(mask[i].sum() for mask in m for i in counted) / len(m))
    return torch.stack(outputs), torch.stack(kept)


def masked_heads(module, x: Tensor, masks: list[Tensor]) -> Tensor:
    """Attention whose head h sees masks[h] [B, T, S] alone; x [T, B, C]."""
    size, out = x.size(-1) // len(masks), []
    for head, mask in enumerate(masks):
        own = slice(head * size, (head + 1) * size)
        q, k, v = (
            p(x).transpose(0, 1)[..., own] for p in (module.q_proj, module.k_proj, module.v_proj)
        )
        scores = (q @ k.transpose(1, 2)) / size**0.5
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        weights = torch.where(mask.any(-1, keepdim=True), weights, 0)
        out.append((weights @ v) * (1 + module.gate[head]))
    return module.out_proj(torch.cat(out, -1)).transpose(0, 1)


def sinkformer(scores: Tensor, masked: Tensor, absent: Tensor, normaliser, head: int) -> Tensor:
    """Weights [T, S] of one sentence and head: rows, columns, rows, ... in turn."""
    k = torch.where(masked, 0, scores.exp())
    for step in range(normaliser.iterations):
        if step % 2 == 0:
            k = rows(k)
            continue
        columns = []
        for j in range(k.size(1)):
            total = sum(k[i, j] for i in range(k.size(0)) if not absent[i])
            total = total.detach() if normaliser.detach else total
            columns.append(k[:, j] / total if total > 0 else k[:, j])
        k = torch.stack(columns, 1)
    return k


def entmax(scores: Tensor, masked: Tensor, absent: Tensor, normaliser, head: int) -> Tensor:
    """Weights [T, S]: tau of each row by bisection, its gradient by one exact Newton step."""
    alpha = normaliser.alpha()
    alpha = alpha[head] if isinstance(alpha, Tensor) else alpha
    weights = []
    for row, hidden in zip((alpha - 1) * scores, masked, strict=True):
        low, high = row[~hidden].max().detach() - 1, row[~hidden].max().detach()
        for _ in range(80):
            middle = (low + high) / 2
            total = ((row[~hidden] - middle).clamp(min=0) ** (1 / (alpha - 1))).sum()
            low, high = (middle, high) if total >= 1 else (low, middle)
        support = ~hidden & (row > low.detach())
        base = row[support] - low.detach()
        slope = (base ** (1 / (alpha - 1) - 1) / (alpha - 1)).sum().detach()
        tau = low.detach() + ((base ** (1 / (alpha - 1))).sum() - 1) / slope
        p = (row[support] - tau) ** (1 / (alpha - 1))
        weights.append(torch.zeros_like(row).masked_scatter(support, p))
    return torch.stack(weights)


def sink(scores: Tensor, masked: Tensor, absent: Tensor, normaliser, head: int) -> Tensor:
    """Weights [T, S], with exp(b) among what a row is divided by."""
    e = torch.where(masked, 0, scores.exp())
    b = scores.new_zeros(()) if normaliser.sink_logit is None else normaliser.sink_logit[head]
    return torch.stack([row / (b.exp() + row.sum()) for row in e])


def t5_bucket(distance: int, causal: bool, buckets: int, farthest: int) -> int:
    """The bucket of a distance j - i (Raffel et al. 2020): single ones, then ever wider ones."""
    first = 0
    if not causal:
        buckets //= 2
        first = buckets if distance > 0 else 0
    away = max(-distance, 0) if causal else abs(distance)
    single = buckets // 2
    if away < single:
        return first + away
    share = math.log(away / single) / math.log(farthest / single)
    return first + min(single + int(share * (buckets - single)), buckets - 1)


def softmax_rows(scores: Tensor, masked: Tensor) -> Tensor:
    """Weights [T, S] of one map."""
    return rows(torch.where(masked, 0, scores.exp()))


def talking(q: Tensor, k: Tensor, v: Tensor, masked: Tensor, mixer) -> tuple[Tensor, Tensor]:
    """Output [H, T, D] and weights [H, T, S] of one sentence (Shazeer et al. 2020)."""
    heads = range(len(q))
    logits = [q[h] @ k[h].T / q.size(-1) ** 0.5 for h in heads]

    def mix(offset: Tensor, maps: list[Tensor]) -> list[Tensor]:
        return [sum((offset[g, h] + (1 if g == h else 0)) * maps[h] for h in heads) for g in heads]

    weights = [softmax_rows(each, masked) for each in mix(mixer.score_offset, logits)]
    weights = mix(mixer.weight_offset, weights)
    return torch.stack([weights[h] @ v[h] for h in heads]), torch.stack(weights)


def differential(q: Tensor, k: Tensor, v: Tensor, masked: Tensor, mixer) -> tuple[Tensor, Tensor]:
    """Output [H, T, D] and weights [H, T, S] of one sentence (Ye et al. 2025), in layer 2."""
    half = q.size(-1) // 2
    first = 0.8 - 0.6 * math.exp(-0.3 * (2 - 1))
    (q1, k1), (q2, k2) = mixer.vectors
    subtracted = (q1 @ k1).exp() - (q2 @ k2).exp() + first
    outputs, weights = [], []
    for h in range(len(q)):
        one, other = (
            softmax_rows(q[h, :, part] @ k[h, :, part].T / half**0.5, masked)
            for part in (slice(0, half), slice(half, None))
        )
        weights.append(one - subtracted * other)
        mixed = weights[-1] @ v[h]
        normed = [x / ((x * x).mean() + 1e-5).sqrt() * (1 + mixer.gain_offset) for x in mixed]
        outputs.append((1 - first) * torch.stack(normed))
    return torch.stack(outputs), torch.stack(weights)


def dense(q: Tensor, k: Tensor, scorer, head: int) -> Tensor:
    """Scores [T, S] of an MLP of each query (Tay et al. 2020); keys count by their number alone."""
    rows = []
    for i in range(len(q)):
        hidden = [x if x > 0 else 0 * x for x in q[i]]
        row = []
        for j in range(len(k)):
            weights = scorer.weight[head, :, j]
            row.append(
                sum(w * x for w, x in zip(weights, hidden, strict=True)) + scorer.bias[head, j]
            )
        rows.append(torch.stack(row))
    return torch.stack(rows)


def random(q: Tensor, k: Tensor, scorer, head: int) -> Tensor:
    """Scores [T, S] that are parameters."""
    rows = [torch.stack([scorer.scores[head, i, j] for j in range(len(k))]) for i in range(len(q))]
    return torch.stack(rows)
