"""Heads of fine-tuning, on an encoder's output [B, S, C] with its padding [B, S].

Among them is task-specific attention (Jia 2024): blocks of attention on top of an encoder.
"""

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch
from fairseq.models.roberta.model import RobertaClassificationHead
from torch import Tensor, nn

from fairseq_ext.attention import Attention
from fairseq_ext.errors import UsageError

Pooling = Callable[[Tensor, Tensor], Tensor]
POOLER = {"pooler_activation_fn": "tanh", "spectral_norm_classification_head": False}
"""Options of `Mlp` alone, with their defaults."""


def pool_first(features: Tensor, padding: Tensor) -> Tensor:
    """Return the features of the first token, [B, C]."""
    return features[:, 0]


def pool_mean(features: Tensor, padding: Tensor) -> Tensor:
    """Return the mean over tokens that are no padding, [B, C]."""
    real = (~padding).unsqueeze(-1).to(features.dtype)
    return (features * real).sum(1) / real.sum(1)


def pool_max(features: Tensor, padding: Tensor) -> Tensor:
    """Return the maximum over tokens that are no padding, [B, C]."""
    return features.masked_fill(padding.unsqueeze(-1), -torch.inf).amax(1)


POOLINGS: dict[str, Pooling] = {"first": pool_first, "mean": pool_mean, "max": pool_max}


class Mlp(RobertaClassificationHead):
    """RoBERTa's classification head: dropout, linear, activation, dropout, linear.

    Attributes:
        pooler: the first linear layer is BERT's trained pooler, without dropout before it.
    """

    pooler = False

    def forward(self, x: Tensor, **unused: Any) -> Tensor:
        """Return [..., classes] of x [..., C]; fairseq's own reads the first token alone."""
        x = x if self.pooler else self.dropout(x)
        return self.out_proj(self.dropout(self.activation_fn(self.dense(x))))


def build_mlp(args: Namespace, classes: int, activation: str | None = None) -> Mlp:
    """Build the head from the options of an encoder, perhaps with another activation function."""
    options, width = {**POOLER, **vars(args)}, args.encoder_embed_dim
    head = Mlp(
        *(width, width, classes),
        activation or options["pooler_activation_fn"],
        args.pooler_dropout,
        options.get("quant_noise_pq", 0),
        options.get("quant_noise_pq_block_size", 8),
        options["spectral_norm_classification_head"],
    )
    head.pooler = activation is None and bool(options.get("pretrained_pooler"))
    return head


def load_pooler(head: nn.Module, weight: Tensor, bias: Tensor) -> None:
    """Let the first linear layer of an `Mlp` in a head begin as BERT's pooler."""
    for module in head.modules():
        if isinstance(module, Mlp) and module.pooler:
            module.dense.load_state_dict({"weight": weight, "bias": bias})


def check_pooler(head: nn.Module, args: Namespace) -> None:
    """Raise UsageError for options of `Mlp` if the head has none."""
    changed = any(getattr(args, name, usual) != usual for name, usual in POOLER.items())
    if changed and not any(isinstance(module, Mlp) for module in head.modules()):
        raise UsageError(
            "--pooler-activation-fn and --spectral-norm-classification-head are of heads of two "
            "layers, and this one has none; leave them out"
        )


class Linear(nn.Module):
    """A linear map of the features that dropout leaves; Jia's (2024) for a sentence has no bias."""

    def __init__(self, width: int, classes: int, dropout: float = 0.0, bias: bool = False) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.out_proj = nn.Linear(width, classes, bias)

    def forward(self, x: Tensor, *padding: Tensor) -> Tensor:
        """Return [..., classes] of x [..., C]; padding is scored like everything else."""
        return self.out_proj(self.dropout(x))


class Product(nn.Module):
    """Jia's (2024) head of two sentences: the dot product of both after one linear map."""

    def __init__(self, width: int, inner: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.shared = nn.Linear(width, inner, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, 1] of x [2 B, C], in which the sentences of a pair follow each other."""
        one, other = self.shared(self.dropout(x)).unflatten(0, (-1, 2)).unbind(1)
        return (one * other).sum(-1, keepdim=True)


class SentenceHead(nn.Module):
    """A head that pools each sentence to one vector and scores it."""

    def __init__(self, pooling: Pooling, output: nn.Module) -> None:
        super().__init__()
        self.pooling, self.output = pooling, output

    def forward(self, features: Tensor, padding: Tensor) -> Tensor:
        """Return [B, classes] of features [B, S, C] and padding [B, S]."""
        return self.output(self.pooling(features, padding))


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
    place the paper does not give. By default there is no bias, no residual and no layer
    normalisation, since the paper names none; its counts of parameters hardly tell.

    Args:
        bias: every map has a bias.
        residual: X is added to the output.
        norm: layer normalisation follows.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        layer: int,
        cross: bool,
        dropout: float,
        bias: bool = False,
        residual: bool = False,
        norm: bool = False,
    ) -> None:
        super().__init__()
        self.attention = Attention(
            width, heads, site="cross", layer=layer, bias=bias, dropout=dropout
        )
        self.intermediate = nn.Linear(width, width, bias=bias) if cross else None
        self.residual, self.norm = residual, nn.LayerNorm(width) if norm else None

    def forward(self, queries: Tensor, keys: Tensor, padding: Tensor) -> Tensor:
        """Return [T, B, C] of queries [T, B, C], keys [S, B, C] and the keys' padding [B, S]."""
        x, _ = self.attention(queries, keys, keys, key_padding_mask=padding, need_weights=False)
        x = x if self.intermediate is None else self.intermediate(x)
        x = x + queries if self.residual else x
        return x if self.norm is None else self.norm(x)


class TaskAttention(nn.Module):
    """Task-specific attention: n blocks over the features of one sentence, or of two.

    Two sentences attend to each other, with the same weights. The output is the one at the first
    token.

    Args:
        cross: sentences come in pairs, one after the other.
        init: how every weight of the blocks' maps is initialised; see :func:`parse_initialiser`.
            Biases begin as 0.
        parts: `bias`, `residual` and `norm` of every :class:`Block`.
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
        **parts: bool,
    ) -> None:
        super().__init__()
        self.cross = cross
        blocks = (Block(width, heads, layer, cross, dropout, **parts) for layer in range(layers))
        self.blocks = nn.ModuleList(blocks)
        initialise = parse_initialiser(init)
        for name, parameter in self.blocks.named_parameters():
            if parameter.dim() > 1:
                initialise(parameter)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

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
