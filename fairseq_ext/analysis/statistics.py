"""Numbers about attention maps, collected batch by batch: what memory holds does not grow.

A collector takes what a `Subject` hears and ends with rows, one for each head.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_ext.analysis.subjects import Heard
from fairseq_ext.guidance.patterns import PATTERNS, Pattern, View

Place = tuple[str, int]
"""Site and layer."""


def entropy(maps: Tensor) -> Tensor:
    """[..., S] -> [...] in nats; 0 log 0 = 0, and weights below 0 (raw hybrid ones) count as 0."""
    return torch.special.entr(maps.clamp(min=0)).sum(-1)


def distance(maps: Tensor, view: View) -> Tensor:
    """[B, H, T, S] -> [B, H, T] tokens between a query and what it looks at, on average: in
    cross-attention between its relative position and that."""
    keys = torch.arange(maps.size(-1), device=maps.device)
    return (maps * (keys - view.centre[..., None]).abs()[:, None]).sum(-1)


def similarity(maps: Tensor) -> Tensor:
    """[B, H, T, S] -> [B, H, H, T]: 1 - JS / log 2, JS being the Jensen-Shannon divergence of the
    same row of two heads (Clark et al. 2019): 1 if they are equal, 0 if they share no key."""
    batch, heads, rows, _ = maps.shape
    found = maps.new_ones(batch, heads, heads, rows)
    own = entropy(maps)
    for one, other in combinations(range(heads), 2):
        mixed = entropy((maps[:, one] + maps[:, other]) / 2)
        divergence = mixed - (own[:, one] + own[:, other]) / 2
        found[:, one, other] = found[:, other, one] = 1 - divergence / math.log(2)
    return found


def fit(maps: Tensor, pattern: Pattern, view: View) -> tuple[Tensor, Tensor]:
    """How much of a row lies where the pattern wants it, and for which rows it wants anything.

    Returns:
        [B, H, T] from 0 to 1, and [B, T] bool.
    """
    rows = pattern.rows(view)
    if rows.dtype == torch.bool:
        wanted = (rows & view.keys)[:, None].expand(-1, maps.size(2), -1).to(maps)
    elif rows.is_floating_point():
        wanted = (rows > 0).to(maps)
    else:
        named = rows.ge(0) & view.queries
        index = rows.where(named, 0)[..., None]
        wanted = torch.zeros_like(maps[:, 0]).scatter_(2, index, 1.0) * named[..., None]
    return torch.einsum("bhts,bts->bht", maps, wanted), wanted.any(-1)


class Means:
    """Means over rows of maps, in float64, of each head."""

    def __init__(self) -> None:
        self._sums: dict[tuple[Place, str], Tensor] = {}
        self._counts: dict[tuple[Place, str], int] = {}

    def add(self, place: Place, name: str, values: Tensor, rows: Tensor) -> None:
        """values [B, ..., T] of the rows [B, T] that count."""
        mask = rows.reshape(len(rows), *(1,) * (values.dim() - 2), -1)
        total = values.double().masked_fill(~mask, 0.0).sum((0, -1))
        self._sums[place, name] = self._sums.get((place, name), 0) + total
        self._counts[place, name] = self._counts.get((place, name), 0) + int(rows.sum())

    def get(self, place: Place, name: str) -> Tensor:
        """[H] or [H, H]; NaN where no row counts."""
        return self._sums[place, name] / (self._counts[place, name] or math.nan)

    def of(self, place: Place) -> dict[str, Tensor]:
        return {name: self.get(at, name) for at, name in self._sums if at == place}

    @property
    def places(self) -> list[Place]:
        return list(dict.fromkeys(place for place, _ in self._sums))


class HeadStatistics:
    """Entropy, distance, similarity to the other heads of the layer, and how well heads fit the
    patterns of attention guidance.

    Args:
        dictionaries: of the keys of each site; some patterns are about symbols.
        period: symbols that count as period.
    """

    def __init__(
        self, dictionaries: dict[str, Dictionary], period: Sequence[str] = (".", "\u2581.")
    ) -> None:
        self.means = Means()
        self._marks = {
            site: {name: _marks(p, dictionary, period) for name, p in PATTERNS.items()}
            for site, dictionary in dictionaries.items()
        }

    def add(self, heard: Heard) -> None:
        site, layer, maps, view = heard
        place, rows = (site, layer), view.queries
        self.means.add(place, "entropy", entropy(maps), rows)
        self.means.add(place, "distance", distance(maps, view), rows)
        self.means.add(place, "similarity", similarity(maps), rows)
        for name in patterns_at(site):
            marked = replace(view, marks=self._marks[site][name])
            share, wanted = fit(maps, PATTERNS[name], marked)
            self.means.add(place, name, share, rows & wanted)

    def rows(self) -> list[dict[str, Any]]:
        """One for each head; similarity is the mean over the other heads of the layer."""
        found = []
        for site, layer in sorted(self.means.places):
            values = self.means.of((site, layer))
            alike = values.pop("similarity")
            heads = len(alike)
            others = (alike.sum(1) - alike.diagonal()) / (heads - 1) if heads > 1 else None
            for head in range(heads):
                own = {name: float(value[head]) for name, value in values.items()}
                alike_others = math.nan if others is None else float(others[head])
                place = {"site": site, "layer": layer, "head": head}
                found.append({**place, **own, "similarity": alike_others})
        return found


def patterns_at(site: str) -> list[str]:
    """Those that a head there can follow, each once."""
    names = [name for name, p in PATTERNS.items() if p.looks_ahead is False or site != "decoder"]
    return [name for name in names if name != ("self" if site == "cross" else "diagonal")]


def _marks(pattern: Pattern, dictionary: Dictionary, period: Sequence[str]) -> tuple[int, ...]:
    symbols = [
        s for name in pattern.symbols for s in (period if name.startswith("--") else (name,))
    ]
    return tuple(dictionary.index(symbol) for symbol in symbols if symbol in dictionary)


class ColumnSums:
    """How much attention each key gets from all queries together (Ding et al., Definition 1).

    Key j is epsilon-explained-away if its sum over the queries i of W_ij is below epsilon. Under
    doubly-normalised attention none gets less than 1/S, S being the keys of its sentence (Theorem
    2). Logarithms are natural ones. Sums of single-precision weights have no logarithm below -103;
    what is below `LOWEST`, or 0, is counted there.

    Args:
        epsilon: the threshold; the paper's figure shows exp(-20) and below.
    """

    LOWEST, HIGHEST, WIDTH = -60.0, 10.0, 0.5

    def __init__(self, epsilon: float = math.exp(-20)) -> None:
        self.epsilon = epsilon
        self.bins = round((self.HIGHEST - self.LOWEST) / self.WIDTH)
        self._found: dict[Place, dict[str, Tensor]] = {}

    def add(self, heard: Heard) -> None:
        site, layer, maps, view = heard
        sums = maps.double().masked_fill(~view.queries[:, None, :, None], 0.0).sum(2)
        flat = sums.transpose(0, 1)[:, view.keys]  # [H, real keys of the batch]
        bound = view.keys.sum(1, keepdim=True).expand_as(view.keys)[view.keys] * flat
        found = {
            "histogram": self._histogram(flat.clamp(min=0).log()),
            "keys": torch.full((len(flat),), flat.size(1)),
            "away": (flat < self.epsilon).sum(1),
            "below": (bound < 1 - 1e-4).sum(1),
            "least": bound.amin(1),
        }
        before = self._found.setdefault((site, layer), {})
        for name, value in found.items():
            join = torch.minimum if name == "least" else torch.add
            before[name] = join(before[name], value) if name in before else value

    def _histogram(self, logs: Tensor) -> Tensor:
        """[H, bins]"""
        places = ((logs - self.LOWEST) / self.WIDTH).floor().clamp(0, self.bins - 1).long()
        return torch.zeros(len(logs), self.bins).scatter_add_(
            1, places, torch.ones_like(logs).float()
        )

    def rows(self) -> list[dict[str, Any]]:
        """One for each head: the share of keys explained away, the share below 1/S (by more than
        rounding), the least of S times a sum."""
        return [
            {
                "site": site,
                "layer": layer,
                "head": head,
                "keys": int(found["keys"][head]),
                "explained_away": float(found["away"][head] / found["keys"][head]),
                "below_bound": float(found["below"][head] / found["keys"][head]),
                "least_times_keys": float(found["least"][head]),
            }
            for (site, layer), found in sorted(self._found.items())
            for head in range(len(found["keys"]))
        ]

    def histograms(self) -> dict[Place, Tensor]:
        """[H, bins] shares of the keys of each head."""
        return {
            place: found["histogram"] / found["keys"][:, None]
            for place, found in sorted(self._found.items())
        }

    def edges(self) -> list[float]:
        return [self.LOWEST + self.WIDTH * i for i in range(self.bins + 1)]

    def range(self, site: str) -> tuple[float, float] | None:
        """The edges between which all sums of a site are; None if the model has no such site."""
        shares = [h.sum(0) for (at, _), h in self.histograms().items() if at == site]
        if not shares:
            return None
        filled = torch.stack(shares).sum(0).nonzero()
        edges = self.edges()
        return edges[int(filled[0])], edges[int(filled[-1]) + 1]
