"""Statistics of attention maps, collected batch by batch in constant memory."""

import math
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_ext.analysis.checkpoint_kinds import Inspector
from fairseq_ext.analysis.recording import SITES, LayerAttention
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.guidance.patterns import PATTERNS, Pattern, View

Place = tuple[str, int]
"""Site and layer."""

CHANCE = "_chance"  # after the name of a pattern: its share under even attention
SENTENCES = "sentences"  # their number, in a row of a head


def collect(inspector: Inspector, args: Namespace, *collectors: "Collector") -> int:
    """Feed the maps of a split to collectors, in one pass over it.

    Args:
        args: split, limit and max_tokens, see `ModelInspector.batches`.

    Returns:
        The number of sentences.

    Raises:
        UsageError: the model can read no sentence of the split.
    """

    def add(attention: LayerAttention) -> None:
        for collector in collectors:
            collector.add(attention)

    sentences = 0
    for batch in inspector.batches(args.split, args.limit, args.max_tokens):
        inspector.record_attention(batch, add)
        sentences += len(batch["net_input"]["src_tokens"])
    if not sentences:
        raise UsageError(
            f"{args.split} has no sentence that {inspector.checkpoint} can read; give another split"
        )
    return sentences


def label_rows(model: str, collector: "Collector") -> list[dict[str, Any]]:
    """Return the rows of a collector with the model's name before them."""
    return [{"model": model, **row} for row in collector.rows()]


def list_sites(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the sites that rows have, in the order of `SITES`."""
    present = {row["site"] for row in rows}
    return [site for site in SITES if site in present]


def entropy(maps: Tensor) -> Tensor:
    """Return the entropy [...] in nats of rows [..., S] of shares; 0 log 0 is 0."""
    return torch.special.entr(maps).sum(-1)


def as_shares(maps: Tensor) -> Tensor:
    """Return maps [..., S] with rows that sum to one, or are 0 where no weight is above 0.

    Rows of sinks, mixed heads and hard-coded heads do not sum to one, nor are all weights of mixed
    heads and raw hybrid attention above 0; those below count as 0.
    """
    maps = maps.clamp(min=0)
    return maps / maps.sum(-1, keepdim=True).clamp(min=torch.finfo(maps.dtype).tiny)


def distance(maps: Tensor, view: View) -> Tensor:
    """Return the mean distance [B, H, T] in tokens from a query to the keys of maps [B, H, T, S].

    In cross-attention a query stands at its relative position among the keys.
    """
    keys = torch.arange(maps.size(-1), device=maps.device)
    return (maps * (keys - view.centre[..., None]).abs()[:, None]).sum(-1)


def similarity(maps: Tensor) -> Tensor:
    """Return the similarity [B, H, H, T] of each two heads in maps [B, H, T, S].

    It is 1 - JS / log 2, JS being the Jensen-Shannon divergence of the same row of both (Clark et
    al. 2019): 1 if the rows are equal, 0 if they share no key.
    """
    batch, heads, rows, _ = maps.shape
    alike = maps.new_ones(batch, heads, heads, rows)
    entropies = entropy(maps)
    for one, other in combinations(range(heads), 2):
        mixed = entropy((maps[:, one] + maps[:, other]) / 2)
        divergence = mixed - (entropies[:, one] + entropies[:, other]) / 2
        alike[:, one, other] = alike[:, other, one] = 1 - divergence / math.log(2)
    return alike


def pattern_share(maps: Tensor, pattern: Pattern, view: View) -> tuple[Tensor, Tensor]:
    """Return how much of each row of maps [B, H, T, S] lies on the keys that a pattern wants.

    Returns:
        [B, H, T] from 0 to 1, and [B, T] bool: the rows for which the pattern wants any key.
    """
    rows = pattern.rows(view)
    if rows.dtype == torch.bool:  # the same keys for all queries
        wanted = (rows & view.keys)[:, None].expand(-1, maps.size(2), -1).to(maps)
    elif rows.is_floating_point():  # weights of keys
        wanted = (rows > 0).to(maps)
    else:  # one key for each query, below 0 for none
        named = rows.ge(0) & view.queries
        index = rows.where(named, 0)[..., None]
        wanted = torch.zeros_like(maps[:, 0]).scatter_(2, index, 1.0) * named[..., None]
    return torch.einsum("bhts,bts->bht", maps, wanted), wanted.any(-1)


def even_attention(maps: Tensor, view: View) -> Tensor:
    """Return maps [B, 1, T, S] of queries that attend evenly to all keys that they see."""
    seen = view.keys[:, None].expand(-1, maps.size(2), -1)
    return as_shares((seen.tril() if view.causal else seen)[:, None].to(maps))


class HeadStatistics:
    """Collector of each head's entropy, distance, similarity and fit to patterns.

    All are of shares of rows (`as_shares`). Similarity is to the other heads of the layer; the
    patterns are those of attention guidance, each with the share that even attention would give it.

    Args:
        dictionaries: the dictionary of each site's keys; some patterns are about symbols.
        period: symbols that count as full stop.
    """

    def __init__(
        self, dictionaries: dict[str, Dictionary], period: Sequence[str] = (".", "\u2581.")
    ) -> None:
        self._totals: dict[Place, dict[str, tuple[Tensor, int]]] = {}
        self._sentences: Counter[Place] = Counter()
        self._marks = {
            site: {name: _find_marks(p, dictionary, period) for name, p in PATTERNS.items()}
            for site, dictionary in dictionaries.items()
        }

    def add(self, attention: LayerAttention) -> None:
        """Take the maps of a layer for a batch."""
        site, layer, maps, view = attention
        place, rows, maps = (site, layer), view.queries, as_shares(maps)
        self._add(place, "entropy", entropy(maps), rows)
        self._add(place, "distance", distance(maps, view), rows)
        self._add(place, "similarity", similarity(maps), rows)
        self._sentences[place] += len(maps)
        even = even_attention(maps, view)
        for name in patterns_at(site):
            marked = replace(view, marks=self._marks[site][name])
            share, wanted = pattern_share(maps, PATTERNS[name], marked)
            self._add(place, name, share, rows & wanted)
            chance, _ = pattern_share(even, PATTERNS[name], marked)
            self._add(place, name + CHANCE, chance.expand_as(share), rows & wanted)

    def _add(self, place: Place, name: str, values: Tensor, rows: Tensor) -> None:
        """Add values [B, H, ..., T] of those rows [B, T] that count to float64 sums over them."""
        mask = rows.reshape(len(rows), *(1,) * (values.dim() - 2), -1)
        added = values.double().masked_fill(~mask, 0.0).sum((0, -1))
        totals = self._totals.setdefault(place, {})
        total, count = totals.get(name, (torch.zeros_like(added), 0))
        totals[name] = total + added, count + int(rows.sum())

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each head: means over all rows of its maps, NaN where no row counts.

        Similarity is the mean over the other heads of the layer. NAME_chance is what a pattern NAME
        gets if a query attends evenly to all keys that it sees.
        """
        rows = []
        for (site, layer), totals in sorted(self._totals.items()):
            means = {name: total / (count or math.nan) for name, (total, count) in totals.items()}
            alike = means.pop("similarity")
            others = len(alike) - 1 or math.nan  # a head alone has no similarity
            means["similarity"] = (alike.sum(1) - alike.diagonal()) / others
            rows += [
                {"site": site, "layer": layer, "head": head}
                | {name: float(mean[head]) for name, mean in means.items()}
                | {SENTENCES: self._sentences[site, layer]}
                for head in range(len(alike))
            ]
        return rows


def patterns_at(site: str) -> list[str]:
    """Return the patterns that a head of a site can follow, each once.

    "self" and "diagonal" are the same pattern in self-attention and in cross-attention.
    """
    names = [name for name, p in PATTERNS.items() if p.looks_ahead is False or site != "decoder"]
    return [name for name in names if name != ("self" if site == "cross" else "diagonal")]


def _find_marks(pattern: Pattern, dictionary: Dictionary, period: Sequence[str]) -> tuple[int, ...]:
    symbols = [
        s for name in pattern.symbols for s in (period if name.startswith("--") else (name,))
    ]
    return tuple(dictionary.index(symbol) for symbol in symbols if symbol in dictionary)


class ColumnSums:
    """Collector of how much attention each key receives from all queries of its sentence together.

    Key j is epsilon-explained-away if the sum of W_ij over the queries i is below epsilon (Ding et
    al. 2020, Definition 1). Under doubly-normalised attention no key receives less than 1/S, S
    being the keys of its sentence (Theorem 2). Logarithms are natural ones. The logarithm of a sum
    of single-precision weights is never below -103; sums that are 0 or below exp(`LOWEST`) are
    counted in the lowest bin.

    Args:
        epsilon: the threshold; the paper's figure shows exp(-20) and below.
    """

    LOWEST, HIGHEST, WIDTH = -60.0, 10.0, 0.5  # of the bins of logarithms

    def __init__(self, epsilon: float = math.exp(-20)) -> None:
        self.epsilon = epsilon
        self.bins = round((self.HIGHEST - self.LOWEST) / self.WIDTH)
        self._totals: dict[Place, dict[str, Tensor]] = {}

    def add(self, attention: LayerAttention) -> None:
        """Take the maps of a layer for a batch."""
        site, layer, maps, view = attention
        sums = maps.double().masked_fill(~view.queries[:, None, :, None], 0.0).sum(2)
        flat = sums.transpose(0, 1)[:, view.keys]  # [H, real keys of the batch]
        times_keys = view.keys.sum(1, keepdim=True).expand_as(view.keys)[view.keys] * flat
        batch = {
            "histogram": self._histogram(flat.clamp(min=0).log()),
            "keys": torch.full((len(flat),), flat.size(1)),
            "explained_away": (flat < self.epsilon).sum(1),
            "below_bound": (times_keys < 1 - 1e-4).sum(1),
            "least": times_keys.amin(1),
        }
        totals = self._totals.setdefault((site, layer), {})
        for name, value in batch.items():
            join = torch.minimum if name == "least" else torch.add
            totals[name] = join(totals[name], value) if name in totals else value

    def _histogram(self, logs: Tensor) -> Tensor:
        """Return counts [H, bins] of logarithms [H, keys]."""
        bins = ((logs - self.LOWEST) / self.WIDTH).floor().clamp(0, self.bins - 1).long()
        return torch.zeros(len(logs), self.bins).scatter_add_(1, bins, torch.ones(bins.shape))

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each head.

        It has the share of keys explained away, the share below 1/S (by more than rounding), and
        the least product of S and a sum.
        """
        return [
            {"site": site, "layer": layer, "head": head, "keys": int(totals["keys"][head])}
            | {
                name: float(totals[name][head] / totals["keys"][head])
                for name in ("explained_away", "below_bound")
            }
            | {"least_times_keys": float(totals["least"][head])}
            for (site, layer), totals in sorted(self._totals.items())
            for head in range(len(totals["keys"]))
        ]

    def histograms(self) -> dict[Place, Tensor]:
        """Return the shares [H, bins] of each head's keys, by site and layer."""
        return {
            place: totals["histogram"] / totals["keys"][:, None]
            for place, totals in sorted(self._totals.items())
        }

    def edges(self) -> list[float]:
        """Return the edges of the bins, one more than bins."""
        return [self.LOWEST + self.WIDTH * i for i in range(self.bins + 1)]

    def range(self, site: str) -> tuple[float, float] | None:
        """Return the edges that enclose all sums of a site; None if the model has no such site."""
        shares = [h.sum(0) for (at, _), h in self.histograms().items() if at == site]
        if not shares:
            return None
        filled = torch.stack(shares).sum(0).nonzero()
        edges = self.edges()
        return edges[int(filled[0])], edges[int(filled[-1]) + 1]


Collector = HeadStatistics | ColumnSums
"""A consumer of maps, batch by batch, that returns a row of statistics for each head."""
