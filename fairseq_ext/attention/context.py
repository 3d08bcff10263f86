"""What attention modules are told: `Inputs` of a forward pass, `AttentionContext` of a call."""

import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from fairseq_ext.errors import UsageError

Bias = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor | None]]
"""(scores [B, h, T, S], mask as `masks.mask_bias` returns it) -> both of them, changed."""


class ExtraPass(Protocol):
    """A pass over the sentences of a batch in which attention differs; see `SecondPass`."""

    def bias(
        self, attention: Any, x: Tensor, context: "AttentionContext"
    ) -> Callable[[slice], Bias] | None:
        """Return what changes in a layer with the input x [T, B, C], by slices of its heads."""


class KeyFeatures(Protocol):
    """What masks may look up of the keys beyond their padding; see `roles.Sentences`."""

    real: Tensor


class AttentionRecorder:
    """Collects attention maps of the heads it asks for, in a forward pass (not incremental).

    Args:
        wants: ``wants(site, layer)`` gives the heads to observe there, or None; sites are
            "encoder", "decoder" (self-attention) and "cross", layers count from 0.
        detach: keep maps without their graph (for analysis; losses need the graph).

    Attributes:
        maps: (site, layer) -> [B, wanted heads in ascending order, T, S], probabilities before
            dropout, float32 or wider, of the last forward pass of a model. Layers dropped by
            LayerDrop are absent.
    """

    def __init__(
        self, wants: Callable[[str, int], Sequence[int] | None], *, detach: bool = False
    ) -> None:
        self.wants = wants
        self.detach = detach
        self.maps: dict[tuple[str, int], Tensor] = {}

    def record(self, site: str, layer: int, maps: Tensor) -> None:
        """Keep the maps [B, heads, T, S] of a layer."""
        # activation checkpointing runs a layer twice; the first map carries the gradient
        self.maps.setdefault((site, layer), maps.detach() if self.detach else maps)

    def hear(self, site: str, layer: int, maps: Tensor) -> None:
        """Keep the maps, with a warning: this is the deprecated name of `record`."""
        _warn_of_hear()
        AttentionRecorder.record(self, site, layer, maps)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "hear" in vars(cls):
            _warn_of_hear()
            cls.record = cls.hear  # type: ignore[method-assign]


@dataclass
class Inputs:
    """What every attention module of a stack sees of one forward pass.

    Passed down as an argument in the place of fairseq's key padding mask, never stored in a module.

    Args:
        padding: [B, S] bool, True where a key is padding; None when there is none.
        causal: a query may not attend to keys after its own position.
        masked: bool, [T, S] or [B, 1, T, S]; further positions that may not be attended, by any
            head.
        recorder: who observes the maps.
        first: position of the first query, if the keys are others (> 0 token by token).
        query_padding: [B, T] bool, padding among such queries; None if none stands before a token.
        passes: what is attended to is several passes over B sentences, all rows of one after all of
            the other. This is each one's `ExtraPass`, or None.
        sentences: what role-guided heads know of the keys.

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
    token_features: KeyFeatures | None = None
    _made: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        shape = [] if self.masked is None else list(self.masked.shape)
        if len(shape) not in (0, 2, 4) or shape[1:-2] not in ([], [1]):
            raise UsageError(
                f"A mask of attention is {shape}; give one for all heads, [T, S] or [B, 1, T, S]."
            )

    def cached(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """make(), computed for the first layer that needs it and shared by the others."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def padded_queries(self) -> Tensor | None:
        """[B, S] padding as queries see it: a sentence of nothing but padding counts as real."""
        if self.padding is None:
            return None
        padding = self.padding
        return self.cached("absent", lambda: padding & ~padding.all(-1, keepdim=True))

    def observed_heads(self, site: str, layer: int) -> Sequence[int]:
        """Heads whose maps the recorder wants from this place."""
        return (self.recorder and self.recorder.wants(site, layer)) or ()


def as_inputs(padding: Tensor | Inputs | None, attn_mask: Tensor | None) -> Inputs:
    """`Inputs` of what fairseq gives an attention module: padding [B, S] and a mask [T, S]."""
    inputs = padding
    if not isinstance(inputs, Inputs):
        inputs = Inputs(None if inputs is None else inputs.bool())
    if attn_mask is None:
        return inputs
    if attn_mask.dtype != torch.bool:
        if not ((attn_mask == 0) | (attn_mask <= -1e4)).all():
            raise UsageError("attn_mask adds numbers to scores; give one of 0 and -inf, or a bool.")
        attn_mask = attn_mask < 0
    masked = attn_mask if inputs.masked is None else inputs.masked | attn_mask
    return replace(inputs, masked=masked)


@dataclass(frozen=True)
class AttentionContext:
    """The queries and keys of one attention call.

    Args:
        inputs: of the forward pass.
        queries, keys: T and S, cached keys included.
        first: position of the first query (> 0 in incremental decoding), in self-attention on the
            axis of the keys.
        key_padding: [B, S] bool or None. query_padding: [B, T] bool or None.
        cross: the keys are not those of the queries.
        beam: how many hypotheses of a sentence follow each other in T.
        bias: what a second pass changes, for some heads.
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
    bias: Bias | None = None

    def distances(self, ratio: float) -> Tensor:
        """[1 or B, T, S] j - ratio * i in float32, for the i-th token and the j-th key.

        What is padded on the left does not count.
        """
        count = partial(torch.arange, device=self.device, dtype=torch.float32)
        i = count(self.first_query, self.first_query + self.queries // self.beam).repeat(self.beam)[
            None
        ]
        j = count(self.keys)[None]
        if self.cross:  # elsewhere both begin together
            i = i if self.query_padding is None else i - _leading(self.query_padding)
            j = j if self.key_padding is None else j - _leading(self.key_padding)
        return j[:, None] - ratio * i[:, :, None]


def _leading(padding: Tensor) -> Tensor:
    """[B, S] -> [B, 1] how much of it stands on the left."""
    return padding.long().cumprod(1).sum(1, keepdim=True)


def _warn_of_hear() -> None:
    warnings.warn(
        "AttentionRecorder.hear is now AttentionRecorder.record", DeprecationWarning, stacklevel=3
    )
