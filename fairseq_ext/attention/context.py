"""Context of attention: `Inputs` of a forward pass, `AttentionContext` and `HeadCall` of a call."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from fairseq_ext.errors import UsageError

T = TypeVar("T")

Bias = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor | None]]
"""A bias from outside: (scores [B, h, T, S], mask of `masks.combined_bias`) -> both, changed.

Most change the mask alone, which is added to the scores; what needs the scores can change these.
"""


@dataclass(eq=False)
class AddedBias:
    """A bias that changes the mask alone and reads no scores, so that kernels may add it."""

    mask_units: Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor | None]]
    keep: Tensor

    def __call__(self, scores: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the scores, and the mask without the units that are not kept."""
        return self.mask_units(self.keep, scores, mask)


LayerBias = Callable[[slice], Bias]
"""Heads of a layer -> their bias."""


class Meter(NamedTuple):
    """Attention that returns what a recorder takes of maps, in place of the maps.

    Attributes:
        attend: (which of the wanted heads, place of the first of them in the call, call, `Mask`) ->
            output [B, h, T, D] and what is recorded, [B, wanted heads of the call, ...].
        all_heads: calls may have heads beside the wanted ones, of the same group.
    """

    attend: Callable[[slice, int, "HeadCall", Any], tuple[Tensor, Tensor]]
    all_heads: bool = False

    def select(self, wanted: Sequence[int], heads: slice) -> Callable:
        """Return what attends in a call of these heads of the layer, of which some are wanted."""
        places = [n for n, head in enumerate(wanted) if heads.start <= head < heads.stop]
        first = wanted[places[0]] - heads.start
        return partial(self.attend, slice(places[0], places[-1] + 1), first)


class ExtraPass(Protocol):
    """A pass over the sentences of a batch in which attention differs, from outside of it."""

    def bias(self, attention: Any, x: Tensor, context: "AttentionContext") -> LayerBias | None:
        """Return the bias of a layer whose input is x [T, B, C], or None to change nothing."""


class AttentionRecorder:
    """Collector of attention maps of the heads it asks for, in a forward pass (not incremental).

    A subclass may take what it needs of maps, [B, heads, ...], in their place: see `build_meter`.

    Args:
        wants: ``wants(site, layer)`` gives the heads to observe there, or None; sites are
            "encoder", "decoder" (self-attention) and "cross", layers count from 0.
        detach: keep maps without their graph (for analysis; losses need the graph).
        dropped: keep maps after dropout, as values are mixed by them.

    Attributes:
        maps: (site, layer) -> [B, wanted heads in ascending order, T, S], weights before dropout
            unless `dropped`, float32 or wider, of the last forward pass of a model. Rows of
            softmax sum to one; with a sink, mixed or hard-coded heads they need not, and mixed
            weights may be negative. Layers dropped by LayerDrop are absent.
        inputs: the arguments of the model in that pass, by name.
    """

    def __init__(
        self,
        wants: Callable[[str, int], Sequence[int] | None],
        *,
        detach: bool = False,
        dropped: bool = False,
    ) -> None:
        self.wants = wants
        self.detach = detach
        self.dropped = dropped
        self.maps: dict[tuple[str, int], Tensor] = {}
        self.inputs: Mapping[str, Any] = {}

    def begin(self, inputs: Mapping[str, Any]) -> None:
        """Forget the maps; a model whose arguments are these begins a forward pass."""
        self.maps, self.inputs = {}, inputs

    def build_meter(self, site: str, layer: int, q: Tensor, k: Tensor) -> Meter | None:
        """Return what attends in place of maps being recorded, or None to record them.

        It is asked where heads are softmax of q k^T / sqrt(D) and nobody else wants their maps.

        Args:
            site: of the layer.
            layer: its number.
            q: [B, wanted heads, T, D].
            k: [B, wanted heads, S, D].
        """
        return None

    def record(self, site: str, layer: int, maps: Tensor) -> None:
        """Keep the maps [B, wanted heads, T, S] of a layer."""
        # activation checkpointing runs a layer twice; the first map carries the gradient
        self.maps.setdefault((site, layer), maps.detach() if self.detach else maps)


@dataclass
class Inputs:
    """Inputs of one forward pass, the same for every attention module of a stack.

    They are passed down as an argument in the place of fairseq's key padding mask and never stored
    in a module.

    Args:
        padding: [B, S] bool, True where a key is padding; None if there is none.
        causal: a query may not attend to keys after its own position.
        masked: bool, [T, S] or [B, 1, T, S]; further positions that no head may attend to.
        recorder: collects maps.
        first_query: position of the first query, if the keys are others (> 0 token by token).
        query_padding: [B, T] bool, padding among such queries; None if none stands before a token.
        passes: the keys belong to several passes over the same B sentences, all rows of one pass
            after all rows of the other. Each pass has an entry: its `ExtraPass`, or None.
        token_features: features of the keys, for masks that need more than padding.
        relative: [2 K, C], embeddings of relative positions that all layers share.
        keys: [S, B, C], what keys and values of self-attention are made of, where queries attend
            to other states of the same tokens than their own.

    Raises:
        UsageError: `masked` has another shape.
    """

    padding: Tensor | None = None
    causal: bool = False
    masked: Tensor | None = None
    recorder: AttentionRecorder | None = None
    first_query: int = 0
    query_padding: Tensor | None = None
    passes: Sequence[ExtraPass | None] = (None,)
    token_features: Any = None
    relative: Tensor | None = None
    keys: Tensor | None = None

    def __post_init__(self) -> None:
        self._cache: dict[Hashable, Any] = {}  # no field: fully_shard would copy it
        shape = [] if self.masked is None else list(self.masked.shape)
        if len(shape) not in (0, 2, 4) or shape[1:-2] not in ([], [1]):
            raise UsageError(f"A mask is {shape}; give one for all heads, [T, S] or [B, 1, T, S].")

    def cached(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return `compute()`, which runs once and is shared by all layers of this forward pass.

        In a graph that is compiled it runs each time: keys have sizes, for which a graph would be
        made anew, and the compiler finds what is equal.
        """
        if torch.compiler.is_compiling():
            return compute()
        if key not in self._cache:
            self._cache[key] = compute()
        return self._cache[key]

    def holds(self, value: Any) -> bool:
        """Return whether this very object is cached, so that no other one gets its id."""
        return any(each is value for each in self._cache.values())

    def padded_queries(self) -> Tensor | None:
        """Return the padding of queries, [B, S] bool; a sentence that is all padding has none."""
        if (padding := self.padding) is None:
            return None
        return self.cached("padded queries", lambda: padding & ~padding.all(-1, keepdim=True))

    def observed_heads(self, site: str, layer: int, num_heads: int) -> list[int]:
        """Return the heads whose maps the recorder wants from this layer, in ascending order.

        Raises:
            UsageError: the layer does not have these heads.
        """
        heads = sorted(set((self.recorder and self.recorder.wants(site, layer)) or ()))
        if heads and not 0 <= heads[0] <= heads[-1] < num_heads:
            raise UsageError(
                f"A recorder wants {heads}; {site} layer {layer} has heads 0 to {num_heads - 1}."
            )
        return heads


def split_passes(x: Tensor, passes: int, axis: int = 0) -> Sequence[Tensor]:
    """Return the rows of each pass along an axis; those of a single one are x, without a copy."""
    return [x] if passes == 1 else x.chunk(passes, axis)


def as_inputs(padding: Tensor | Inputs | None, attn_mask: Tensor | None) -> Inputs:
    """Return `Inputs` for the arguments of fairseq's attention: padding [B, S] and a mask [T, S].

    Raises:
        UsageError: the mask adds other numbers than 0 and large negative ones.
    """
    if not isinstance(padding, Inputs):
        padding = Inputs(None if padding is None else padding.bool())
    if attn_mask is None:
        return padding
    if attn_mask.dtype != torch.bool:
        if not ((attn_mask == 0) | (attn_mask <= -1e4)).all():
            raise UsageError("attn_mask adds numbers to scores; give one of 0 and -inf, or a bool.")
        attn_mask = attn_mask < 0
    masked = attn_mask if padding.masked is None else padding.masked | attn_mask
    return replace(padding, masked=masked)


@dataclass(frozen=True)
class AttentionContext:
    """The queries and keys of one attention call.

    Args:
        inputs: of the forward pass.
        queries, keys: T and S, cached keys included.
        first_query: position of the first query (> 0 in incremental decoding), in self-attention
            on the axis of the keys.
        device: of all tensors.
        key_padding: [B, S] bool or None.
        query_padding: [B, T] bool or None.
        cross: keys and queries belong to different sequences.
        beam: how many hypotheses of a sentence follow each other in T.
    """

    inputs: Inputs
    queries: int
    keys: int
    first_query: int
    device: torch.device
    key_padding: Tensor | None = None
    query_padding: Tensor | None = None
    cross: bool = False
    beam: int = 1

    def distances(self, ratio: float) -> Tensor:
        """Return j - ratio * i for the i-th token and the j-th key: [1 or B, T, S], float32.

        In cross-attention, tokens are counted without the padding on their left.
        """
        arange = partial(torch.arange, device=self.device, dtype=torch.float32)
        last_query = self.first_query + self.queries // self.beam
        i = arange(self.first_query, last_query).repeat(self.beam)[None]
        j = arange(self.keys)[None]
        if self.cross:  # in self-attention the padding on the left of both is the same
            i = i if self.query_padding is None else i - count_leading(self.query_padding)
            j = j if self.key_padding is None else j - count_leading(self.key_padding)
        return j[:, None] - ratio * i[:, :, None]


def count_leading(padding: Tensor) -> Tensor:
    """Return how many positions on the left are padding: [B, S] bool -> [B, 1]."""
    return padding.long().cumprod(1).sum(1, keepdim=True)


class HeadCall(NamedTuple):
    """One attention call of some heads of a group.

    Attributes:
        q: [B, h, T, D].
        k: [B, h, S, D]; q and k have no heads if these heads are hard-coded.
        v: [B, h, S, D].
        context: of the call of the whole layer.
        heads: which heads of the group these are.
        dropout: probability that a learned weight is dropped.
        bias: what an extra pass changes, or None.
        relative: what a layer's `Scorer.build_projections` made of shared embeddings, or None.
        meter: attends to these heads in place of their maps being recorded, or None.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    context: AttentionContext
    heads: slice
    dropout: float = 0.0
    bias: Bias | None = None
    relative: Any = None
    meter: Callable[["HeadCall", Any], tuple[Tensor, Tensor]] | None = None
