"""Task-specific attention (Jia 2024): blocks of attention on top of an encoder."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fairseq_ext.attention import Attention
from fairseq_ext.errors import UsageError

INITIALISATIONS: dict[str, tuple[Callable[..., object], int]] = {
    "uniform": (nn.init.uniform_, 2),
    "normal": (nn.init.normal_, 2),
    "xavier_uniform": (nn.init.xavier_uniform_, 1),
    "xavier_normal": (nn.init.xavier_normal_, 1),
    "orthogonal": (nn.init.orthogonal_, 1),
}
"""Name -> initialiser, and how many numbers it takes at most (bounds; mean, deviation; gain)."""


def parse_initialiser(text: str) -> Callable[[Tensor], object]:
    """Return the function named as "default", "uniform:0.9,1", "normal:0,0.02", "orthogonal", ...

    Raises:
        UsageError: there is no such function, or it does not take these numbers.
    """
    name, _, numbers = text.partition(":")
    if text == "default":
        return lambda weight: nn.init.kaiming_uniform_(weight, a=5**0.5)  # as in nn.Linear
    try:
        function, most = INITIALISATIONS[name]
        arguments = [float(number) for number in numbers.split(",")] if numbers else []
        if len(arguments) > most:
            raise ValueError
        function(torch.empty(2, 2), *arguments)
    except (KeyError, ValueError, RuntimeError):
        raise UsageError(
            f"--task-init is '{text}' and must be default or one of {', '.join(INITIALISATIONS)}, "
            "with numbers behind a colon if wanted, as in uniform:0.9,1"
        ) from None
    return lambda weight: function(weight, *arguments)


class Block(nn.Module):
    """A block of task-specific attention from X to Y (Eq. 1 and 2 of Jia 2024).

    softmax((X Q)(Y K)ᵀ / √(d/h)) (Y V) of h heads is followed by A; Q, K, V and A are d x d.
    Between two sentences a fifth map follows, the paper's "intermediate transformation", whose
    place the paper does not give. There is no bias, no residual and no layer normalisation: the
    paper's counts of parameters leave no room for them.
    """

    def __init__(
        self, width: int, heads: int, *, cross: bool, layer: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.attention = Attention(
            width, heads, site="cross", layer=layer, bias=False, dropout=dropout
        )
        self.intermediate = nn.Linear(width, width, bias=False) if cross else None

    def forward(self, queries: Tensor, keys: Tensor, padding: Tensor) -> Tensor:
        """Return [T, B, C] of queries [T, B, C], keys [S, B, C] and the keys' padding [B, S]."""
        x, _ = self.attention(queries, keys, keys, key_padding_mask=padding, need_weights=False)
        return x if self.intermediate is None else self.intermediate(x)


class TaskAttention(nn.Module):
    """Task-specific attention: n blocks over the features of one sentence, or of two.

    Two sentences attend to each other, with the same weights. The output is the one at the first
    token.

    Args:
        cross: sentences come in pairs, one after the other.
        init: how every weight of the blocks is initialised; see :func:`parse_initialiser`.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        layers: int,
        cross: bool,
        init: str = "default",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.cross = cross
        self.blocks = nn.ModuleList(
            Block(width, heads, cross=cross, layer=layer, dropout=dropout)
            for layer in range(layers)
        )
        initialise = parse_initialiser(init)
        for weight in self.blocks.parameters():
            initialise(weight)

    def forward(self, features: Tensor, padding: Tensor) -> Tensor:
        """Return [B, C] of features [B, S, C] and their padding [B, S]."""
        x = features.transpose(0, 1)
        if self.cross:
            padding = swap_pairs(padding)
        for block in self.blocks:
            keys = swap_pairs(x, 1) if self.cross else x
            queries = x[:1] if block is self.blocks[-1] else x  # only these are returned
            x = block(queries, keys, padding)
        return x[0]


def swap_pairs(x: Tensor, dim: int = 0) -> Tensor:
    """Exchange the two of each pair; the two follow each other along `dim`."""
    return x.unflatten(dim, (-1, 2)).flip(dim + 1).flatten(dim, dim + 1)
