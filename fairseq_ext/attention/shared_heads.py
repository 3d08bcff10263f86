"""Heads of keys and values that several heads of queries share: grouped and multi-query attention.

Of H heads of queries, h = 0 … H - 1 has the keys and values g(h) = floor(h G / H) of G < H (Ainslie
et al. 2023; with G = 1 Shazeer 2019):

    head_h = softmax(q_h k_g(h)^T / sqrt(D)) v_g(h)

Caches hold G heads. Queries of a group stand together, so that they are further queries of its one
head and nothing is copied; parts of attention that need as many heads everywhere get copies.
"""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from fairseq_ext.errors import UsageError


def multiply_heads(x: Tensor, y: Tensor) -> Tensor:
    """Return x_h y_g(h) [B, H, T, N] of x [B, H, T, M] and y [B, G, M, N], without a copy of y."""
    if y.size(1) >= x.size(1):
        return x @ y
    product = x.unflatten(1, (y.size(1), -1)).flatten(2, 3) @ y
    return product.unflatten(2, (-1, x.size(2))).flatten(1, 2)


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """Return keys or values [B, G, S, D] with a copy for each of the heads, [B, H, S, D]."""
    shared = x.size(1)
    return x.repeat_interleave(heads // shared, 1) if 0 < shared < heads else x


def check_shared_heads(
    site: str, kv_heads: int, heads: int, whole: int, groups: Iterable[Any]
) -> None:
    """Raise UsageError if heads cannot share keys and values.

    Args:
        kv_heads: G.
        heads: H.
        whole: H before some were pruned.
        groups: each a `HeadGroup`.
    """
    flag = f"--{site}-kv-heads {kv_heads}"
    if not 0 < kv_heads <= whole or whole % kv_heads:
        numbers = (str(n) for n in range(1, whole + 1) if whole % n == 0)
        raise UsageError(
            f"{flag} does not divide the {whole} heads of queries; give one of {', '.join(numbers)}"
        )
    if heads != whole:
        raise UsageError(
            f"{flag} does not go with --{site}-heads-left, which leaves groups of heads with "
            "different numbers of queries; leave one of them out"
        )
    if made_by := [group.made_by or "a group" for group in groups if not group.learned]:
        raise UsageError(
            f"{flag} does not go with hard-coded heads ({made_by[0]}), which have values of their "
            "own and no keys; leave one of them out"
        )
    check_product(site, [group.scorer for group in groups], flag)


def check_product(site: str, scorers: Iterable[Any], flag: str = "--qk-norm") -> None:
    """Raise UsageError for an option of queries and keys that a scorer does not multiply."""
    if not all(scorer.multiplies for scorer in scorers):
        raise UsageError(
            f"{flag} is of queries and keys that are multiplied, and --{site}-scorer does not do "
            f"that; give --{site}-scorer dot, or leave out {flag.split()[0]}"
        )
