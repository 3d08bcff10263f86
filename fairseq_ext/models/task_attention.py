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
"""What a weight can be drawn from, with the most numbers it takes (bounds, mean and deviation,
gain)."""


def parse_initialiser(text: str) -> Callable[[Tensor], object]:
    """The function that "default", "uniform:0.9,1", "normal:0,0.02", "orthogonal", ... names.

    Raises:
        UsageError: there is none.
    """
    name, _, numbers = text.partition(":")
    if text == "default":
        return lambda weight: nn.init.kaiming_uniform_(weight, a=5**0.5)  # that of nn.Linear
    try:
        function, most = INITIALISATIONS[name]
        given = [float(number) for number in numbers.split(",")] if numbers else []
        if len(given) > most:
            raise ValueError
        function(torch.empty(2, 2), *given)
    except (KeyError, ValueError, RuntimeError):
        raise UsageError(
            f"--task-init is '{text}' and must be default or one of {', '.join(INITIALISATIONS)}, "
            "with numbers behind a colon if wanted, as in uniform:0.9,1"
        ) from None
    return lambda weight: function(weight, *given)


class Block(nn.Module):
    """softmax((X Q)(Y K)ᵀ / √(d/h)) (Y V) of h heads, then A: four maps d x d (Eq. 1 and 2).

    Between two sentences a fifth follows, the paper's "intermediate transformation", whose place
    it does not give. There is no bias, no residual and no layer normalisation: the paper's counts
    of parameters leave no room for them.
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
        """[T, B, C] from queries [T, B, C], keys [S, B, C] and their padding [B, S]."""
        x, _ = self.attention(queries, keys, keys, key_padding_mask=padding, need_weights=False)
        return x if self.intermediate is None else self.intermediate(x)


class TaskAttention(nn.Module):
    """n blocks over what an encoder says of one sentence, or of two: then each attends to the
    other, by the same weights. The output is that at the first token.

    Args:
        cross: sentences come in pairs, one after the other.
        init: see :func:`parse_initialiser`; of every weight of the blocks.
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
        draw = parse_initialiser(init)
        for weight in self.blocks.parameters():
            draw(weight)

    def forward(self, features: Tensor, padding: Tensor) -> Tensor:
        """[B, C] from features [B, S, C] and their padding [B, S]."""
        x = features.transpose(0, 1)
        if self.cross:
            padding = swap_pairs(padding)
        for block in self.blocks:
            keys = swap_pairs(x, 1) if self.cross else x
            queries = x[:1] if block is self.blocks[-1] else x  # the last needs no others
            x = block(queries, keys, padding)
        return x[0]


def swap_pairs(x: Tensor, dim: int = 0) -> Tensor:
    """Each of a pair in the place of the other, of pairs one after the other along `dim`."""
    return x.unflatten(dim, (-1, 2)).flip(dim + 1).flatten(dim, dim + 1)
