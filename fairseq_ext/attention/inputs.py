"""What one forward pass tells the attention modules: `Inputs` per stack, `Frame` per call."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fairseq_ext.errors import UsageError

if TYPE_CHECKING:
    from fairseq_ext.attention.second_pass import SecondPass
    from fairseq_ext.roles import Sentences


Bias = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor | None]]
"""(scores [B, h, T, S], what is blocked, as `blockers.bias`) -> both of them, changed."""


class Listener:
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

    def hear(self, site: str, layer: int, maps: Tensor) -> None:
        # activation checkpointing runs a layer twice; the first map carries the gradient
        self.maps.setdefault((site, layer), maps.detach() if self.detach else maps)


@dataclass
class Inputs:
    """What every attention module of a stack sees of one forward pass.

    Passed down as an argument in the place of fairseq's key padding mask, never stored in a module.

    Args:
        padding: [B, S] bool, True where a key is padding; None when there is none.
        causal: a query may not attend to keys after its own position.
        blocked: bool, [T, S] or [B, 1, T, S]; further positions that may not be attended, by any
            head.
        listener: who observes the maps.
        first: position of the first query, if the keys are others (> 0 token by token).
        query_padding: [B, T] bool, padding among such queries; None if none stands before a token.
        passes: what is attended to is several passes over B sentences, all rows of one after all of
            the other. This is each one's `SecondPass`, or None.
        sentences: what role-guided heads know of the keys.

    Raises:
        UsageError: `blocked` has another shape.
    """

    padding: Tensor | None = None
    causal: bool = False
    blocked: Tensor | None = None
    listener: Listener | None = None
    first: int = 0
    query_padding: Tensor | None = None
    passes: "Sequence[SecondPass | None]" = (None,)
    sentences: "Sentences | None" = None
    _made: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        shape = [] if self.blocked is None else list(self.blocked.shape)
        if len(shape) not in (0, 2, 4) or shape[1:-2] not in ([], [1]):
            raise UsageError(
                f"A mask of attention is {shape}; give one for all heads, [T, S] or [B, 1, T, S]."
            )

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """make(), computed for the first layer that needs it and shared by the others."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def absent(self) -> Tensor | None:
        """[B, S] padding as queries see it: a sentence of nothing but padding counts as real."""
        if self.padding is None:
            return None
        padding = self.padding
        return self.once("absent", lambda: padding & ~padding.all(-1, keepdim=True))

    def wanted(self, site: str, layer: int) -> Sequence[int]:
        """Heads whose maps the listener wants from this place."""
        return (self.listener and self.listener.wants(site, layer)) or ()


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
    blocked = attn_mask if inputs.blocked is None else inputs.blocked | attn_mask
    return replace(inputs, blocked=blocked)


@dataclass(frozen=True)
class Frame:
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
    first: int
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
        i = count(self.first, self.first + self.queries // self.beam).repeat(self.beam)[None]
        j = count(self.keys)[None]
        if self.cross:  # elsewhere both begin together
            i = i if self.query_padding is None else i - _leading(self.query_padding)
            j = j if self.key_padding is None else j - _leading(self.key_padding)
        return j[:, None] - ratio * i[:, :, None]


def _leading(padding: Tensor) -> Tensor:
    """[B, S] -> [B, 1] how much of it stands on the left."""
    return padding.long().cumprod(1).sum(1, keepdim=True)
