"""Disentangled attention: scores of content and of relative positions (He et al. 2021, DeBERTa).

An encoder owns one embedding for each bucket of distances, which all layers share. Each layer
projects them, and a scorer compares queries with projected distances and distances with keys.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fairseq_ext.attention.context import HeadCall, Inputs
from fairseq_ext.attention.normalisers import is_fused
from fairseq_ext.attention.options import Rule, check_values, option, whole
from fairseq_ext.attention.projections import Dropout
from fairseq_ext.attention.scorers import SCORERS, Scorer
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.kernels.distances import add_distances

TERMS = ("c2p", "p2c")
INIT_STD = 0.02  # of relative embeddings, as of BERT's others
NO_EMBEDDINGS = (
    "disentangled attention has no relative embeddings, which its encoder hands down as "
    "Inputs.relative; call it through an encoder, or with these"
)


@dataclass
class DisentangledOptions:
    """Options of disentangled attention (DeBERTa).

    Attributes:
        disentangled_terms: terms of disentangled scores beside content to content: content to
            position (c2p), position to content (p2c) or both, as in c2p,p2c
        disentangled_buckets: relative embeddings of disentangled attention on each side; half of
            them are single distances, the others grow with the logarithm of the distance (DeBERTa
            v2 and v3). 0: one for each distance (v1)
        disentangled_distance: distance from which on all are alike
        disentangled_own_projections: project relative embeddings by maps of their own (DeBERTa v1),
            in the place of those of queries and keys (v3)
        disentangled_raw_embeddings: leave out the layer normalisation of relative embeddings
            (DeBERTa v1)
    """

    disentangled_terms: str = "c2p,p2c"
    disentangled_buckets: int = option(
        256,
        whole("[4, 1000000000]", "a number of buckets", special={0: "one for each distance"}),
    )
    disentangled_distance: int = option(
        512,
        whole("[4, 1000000000]", "a number of distances"),
        excludes=Rule(
            "disentangled_buckets",
            "with {other}, half as many distances have buckets of their own, and {one} is not "
            "2 more; give a larger distance, or fewer buckets",
            lambda distance, buckets: distance < buckets // 2 + 2,
        ),
    )
    disentangled_own_projections: bool = False
    disentangled_raw_embeddings: bool = False


class RelativeTables(NamedTuple):
    """Projected embeddings of the 2T - 1 distances between T tokens, for the scores of h heads.

    Attributes:
        keys: [h, D, 2T - 1], which queries are compared with, i - j from T - 1 down; or None.
        queries: [h, D, 2T - 1], which keys are compared with, i - j from 1 - T up; or None.
    """

    keys: Tensor | None
    queries: Tensor | None

    def select(self, heads: slice) -> "RelativeTables":
        """Return the tables of some heads."""
        return RelativeTables(*(table if table is None else table[heads] for table in self))


class Rows(NamedTuple):
    """The relative embeddings that sentences of some length need.

    Attributes:
        used: rows of the table that occur, next to each other.
        places: [2T - 1], the row among these of each distance i - j, from T - 1 down to 1 - T.
    """

    used: slice
    places: Tensor


@SCORERS.register("disentangled", options=DisentangledOptions, summary="DeBERTa's")
class Disentangled(Scorer):
    """s_ij = (q_i k_j + q_i kr_d + k_j qr_d) / sqrt(3 D), d = bucket(i - j).

    This is Eq. 4 of He et al. 2021. kr and qr are relative embeddings, projected as keys and as
    queries are. The paper writes qr_{bucket(j - i)}; the released code and transformers take
    bucket(i - j), and so does this. The factor is 2 if one of both terms is left out.

    Args:
        heads: h; it does not matter.
        options: see `DisentangledOptions`.

    Attributes:
        terms: those of TERMS that there are.
        span: K; there are 2 K relative embeddings.

    Raises:
        UsageError: an option has no meaning.
    """

    encoder_only = True

    def __init__(
        self,
        heads: int,
        disentangled_terms: str = "c2p,p2c",
        disentangled_buckets: int = 256,
        disentangled_distance: int = 512,
        disentangled_own_projections: bool = False,
        disentangled_raw_embeddings: bool = False,
    ) -> None:
        super().__init__()
        self.terms = parse_terms(disentangled_terms)
        self.buckets, self.distance = disentangled_buckets, disentangled_distance
        self.own_projections = disentangled_own_projections
        self.normalised = not disentangled_raw_embeddings
        check_values(
            DisentangledOptions,
            disentangled_buckets=self.buckets,
            disentangled_distance=self.distance,
        )
        if self.buckets % 2:
            raise UsageError(f"--disentangled-buckets is {self.buckets}; give an even number")
        self.span = self.buckets or self.distance

    def forward(self, call: HeadCall) -> Tensor:
        """Return scores [B, h, T, T]."""
        scale = (self.factor() * call.q.size(-1)) ** -0.5
        scores = (call.q * scale) @ call.k.transpose(-1, -2)
        return self._add_positions(scores, call)

    def as_product(self, call: HeadCall) -> tuple[Tensor, Tensor] | None:
        """Return queries q' [B, h, T, D] and a bias b [B, h, T, T]: s = q' k^T / sqrt(D) + b.

        None where that is slower, or on CPUs, where torch's attention has no gradient of a bias.
        """
        if not is_fused(call) or call.q.device.type == "cpu" and self._is_trained(call):
            return None
        q, length = call.q * self.factor() ** -0.5, call.q.size(2)
        return q, self._add_positions(q.new_zeros(*q.shape[:2], length, length), call)

    def _is_trained(self, call: HeadCall) -> bool:
        """Return whether the bias will need a gradient."""
        sources = [call.q, call.k, *(call.relative or ())]
        needed = any(source is not None and source.requires_grad for source in sources)
        return needed and torch.is_grad_enabled()

    def build_embeddings(self, width: int) -> "RelativeEmbeddings":
        """Build the embeddings of distances that all layers share."""
        return RelativeEmbeddings(self, width)

    def build_projections(self, width: int, queries: int, dropout: float) -> nn.Module:
        """Build the projections of relative embeddings in a layer."""
        return RelativeProjections(self, width, queries, dropout)

    def factor(self) -> int:
        """Return by how much the variance of scores grows: the number of terms, with content's."""
        return 1 + len(self.terms)

    def _add_positions(self, scores: Tensor, call: HeadCall) -> Tensor:
        """Return scores [B, h, T, T] with the terms of positions, in the same memory."""
        if call.relative is None:
            raise UsageError(NO_EMBEDDINGS)
        keys, queries = call.relative
        if keys is not None:
            scores = add_distances(scores, call.q, keys)
        if queries is not None:
            scores = add_distances(scores, call.k, queries, keys=True)
        return scores

    def bucket(self, distances: Tensor) -> Tensor:
        """Return the row of the table, from 0 to 2 K - 1, of each distance i - j."""
        return (self._signed_bucket(distances) + self.span).clamp(0, 2 * self.span - 1)

    def _signed_bucket(self, distances: Tensor) -> Tensor:
        if not self.buckets:
            return distances
        middle = self.buckets // 2
        away = distances.abs().clamp(min=middle)
        # in float32, as the released code: at the ends of buckets other numbers round differently
        largest = torch.log(torch.tensor((self.distance - 1) / middle))
        far = torch.ceil(torch.log(away / middle) / largest * (middle - 1)).long() + middle
        return torch.where(distances.abs() <= middle, distances, far * distances.sign())

    def rows(self, length: int, inputs: Inputs, device: torch.device) -> Rows:
        """Return the rows for sentences of T tokens, once for each forward pass."""

        def compute() -> Rows:
            places = self.bucket(torch.arange(length - 1, -length, -1))
            if torch.compiler.is_compiling():  # a graph is the same for all lengths
                return Rows(slice(None), places.to(device))
            first, last = int(places.min()), int(places.max())
            return Rows(slice(first, last + 1), (places - first).to(device, non_blocking=True))

        key = ("disentangled", self.buckets, self.distance, length)
        return inputs.cached(key, compute)

    def extra_repr(self) -> str:
        """Return the options for the printed module."""
        return f"terms={','.join(self.terms)}, buckets={self.buckets}, distance={self.distance}"


def parse_terms(text: str) -> tuple[str, ...]:
    """Return the terms that an option names; raise UsageError for others."""
    names = {name.strip() for name in text.split(",")}
    if not names <= {*TERMS}:
        raise UsageError(f"--disentangled-terms is '{text}'; give c2p, p2c, or c2p,p2c")
    return tuple(name for name in TERMS if name in names)


class RelativeEmbeddings(nn.Module):
    """Embeddings of buckets of distances [2 K, C], layer-normalised if the scorer says so."""

    def __init__(self, scorer: Disentangled, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2 * scorer.span, width)
        nn.init.normal_(self.embedding.weight, std=INIT_STD)
        self.norm = nn.LayerNorm(width) if scorer.normalised else None

    def forward(self) -> Tensor:
        """Return [2 K, C]."""
        x = self.embedding.weight
        return x if self.norm is None else self.norm(x)


class RelativeProjections(nn.Module):
    """The projections of relative embeddings in a layer, to keys and to queries of its heads.

    Args:
        scorer: of the layer's heads.
        width: C.
        heads_width: h D, of learned heads.
        dropout: of relative embeddings.
    """

    def __init__(
        self, scorer: Disentangled, width: int, heads_width: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        own = scorer.terms if scorer.own_projections else ()
        self.scorer = scorer
        self.key = nn.Linear(width, heads_width) if "c2p" in own else None
        self.query = nn.Linear(width, heads_width) if "p2c" in own else None
        self.dropout = Dropout(dropout)

    def forward(self, attention: Any, inputs: Inputs, length: int) -> RelativeTables:
        """Return the tables of T tokens for the scorer, divided by the square root of 3 D.

        Args:
            attention: whose projections of queries and keys are taken if there are no own ones.
        """
        scorer = self.scorer
        if inputs.relative is None:
            raise UsageError(NO_EMBEDDINGS)
        used, places = scorer.rows(length, inputs, inputs.relative.device)
        x = self.dropout(inputs.relative[used])
        scale = (scorer.factor() * attention.head_dim) ** -0.5

        def project(projection: nn.Module, rows: Tensor) -> Tensor:
            table = (projection(x) * scale)[rows].unflatten(-1, (-1, attention.head_dim))
            return table.permute(1, 2, 0)

        keys = queries = None
        if "c2p" in scorer.terms:
            keys = project(self.key or attention.k_proj, places)
        if "p2c" in scorer.terms:  # k_j with i - j: the distances of its row go up
            queries = project(self.query or attention.q_proj, places.flip(0))
        return RelativeTables(keys, queries)
