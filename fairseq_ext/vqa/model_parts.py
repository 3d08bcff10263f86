"""Parts of Pythia's model of visual question answering (Jiang et al. 2018, arXiv 1807.09956).

What the paper leaves open is as in its released code, version 0.1.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_ext.attention.masks import mask_to_bias

RNNS = {"gru": nn.GRU, "lstm": nn.LSTM}


class WeightNormLinear(nn.Linear):
    """A linear map with weight normalisation y = (g / ||V||) V x + b (Salimans & Kingma 2016).

    As in Pythia, g is one number for the whole matrix; it starts at ||V||.
    """

    def __init__(self, size: int, out: int, bias: bool = True) -> None:
        super().__init__(size, out, bias)
        self.scale = nn.Parameter(self.weight.detach().norm())

    def normal_weight(self) -> Tensor:
        """Return (g / ||V||) V, [out, in]; the norm is computed in float32 or wider."""
        wide = torch.promote_types(self.weight.dtype, torch.float32)
        norm = torch.linalg.vector_norm(self.weight, dtype=wide)
        return self.weight * (self.scale / norm).to(self.weight.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Return y [..., out] of x [..., in]."""
        return F.linear(x, self.normal_weight(), self.bias)


class WeightNormRelu(nn.Module):
    """Pythia's non-linear layer, max(0, (g / ||V||) V x + b)."""

    def __init__(self, size: int, out: int) -> None:
        super().__init__()
        self.linear = WeightNormLinear(size, out)

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., out] of x [..., in]."""
        return self.linear(x).relu()


class GatedTanh(nn.Module):
    """The non-linear layer that Pythia replaced, tanh(W x + b) * sigmoid(W' x + b')."""

    def __init__(self, size: int, out: int) -> None:
        super().__init__()
        self.linear, self.gate = nn.Linear(size, out), nn.Linear(size, out)

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., out] of x [..., in]."""
        return self.linear(x).tanh() * self.gate(x).sigmoid()


LAYERS: dict[str, type[nn.Module]] = {"relu": WeightNormRelu, "gated_tanh": GatedTanh}
"""Non-linear layers by name."""


def mask_softmax(scores: Tensor, padding: Tensor) -> Tensor:
    """Return the softmax over the last axis of scores [..., N], where padding [..., N] gets 0.

    It is computed, and returned, in float32 or wider. If all is padding, every place gets 1 / N.
    """
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    return (scores + mask_to_bias(padding, scores.dtype)).softmax(-1)


class QuestionEncoder(nn.Module):
    """Word embeddings, a recurrent network and attention to its states, [B, T] -> [B, H C].

    Each of H heads has weights softmax_t(w_h . relu(W s_t)) over the words and adds up their
    states s_t by them; the results stand beside each other.

    Args:
        words: the number of symbols.
        pad: the symbol of padding, which may only stand at the end of a question.
        embed_dim: width of embeddings.
        rnn: a name of RNNS.
        size: C, the width of states.
        attention_size: rows of W.
        heads: H.
        dropout: of the states.

    Attributes:
        width: H C.
    """

    def __init__(
        self,
        words: int,
        pad: int,
        *,
        embed_dim: int,
        rnn: str,
        size: int,
        attention_size: int,
        heads: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.pad, self.width = pad, heads * size
        self.embed_tokens = nn.Embedding(words, embed_dim, pad)
        nn.init.normal_(self.embed_tokens.weight, std=embed_dim**-0.5)
        nn.init.zeros_(self.embed_tokens.weight[pad])
        self.rnn = RNNS[rnn](embed_dim, size, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.hidden = nn.Linear(size, attention_size)
        self.output = nn.Linear(attention_size, heads, bias=False)  # softmax would undo a bias

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the question embedding."""
        states = self.dropout(self.rnn(self.embed_tokens(tokens))[0])
        scores = self.output(self.hidden(states).relu()).transpose(1, 2)
        weights = mask_softmax(scores, tokens.eq(self.pad).unsqueeze(1)).to(states.dtype)
        return (weights @ states).flatten(1)


class TopDownAttention(nn.Module):
    """Attention of a question to boxes: weights softmax_n(w . (f(x_n) * g(q))), N numbers.

    f and g are non-linear layers, and w is normalised like them.

    Args:
        layer: the class of f and g.
        width: of a box.
        question: width of q.
        size: width of f and g.
        dropout: of their product.
    """

    def __init__(
        self, layer: type[nn.Module], width: int, question: int, size: int, dropout: float
    ) -> None:
        super().__init__()
        self.boxes, self.question = layer(width, size), layer(question, size)
        self.dropout = nn.Dropout(dropout)
        self.output = WeightNormLinear(size, 1, bias=False)  # softmax would undo a bias

    def forward(self, boxes: Tensor, padding: Tensor, question: Tensor) -> Tensor:
        """Return weights [B, N], float32 or wider, of boxes [B, N, C] and a question [B, Q].

        Args:
            padding: [B, N] bool, boxes that do not exist.
        """
        # w . (f * g) = f . (g * w): the product of all boxes is never in memory
        wanted = self.question(question) * self.output.normal_weight()
        scores = self.dropout(self.boxes(boxes)) @ wanted.unsqueeze(-1)
        return mask_softmax(scores.squeeze(-1), padding)


class AnswerClassifier(nn.Module):
    """Scores of answers, A f(z) + A' f'(z) + b: two non-linear layers of the joint embedding z."""

    def __init__(
        self, layer: type[nn.Module], size: int, text_size: int, image_size: int, answers: int
    ) -> None:
        super().__init__()
        self.text, self.image = layer(size, text_size), layer(size, image_size)
        self.text_output = nn.Linear(text_size, answers, bias=False)
        self.image_output = nn.Linear(image_size, answers)

    def forward(self, z: Tensor) -> Tensor:
        """Return [B, answers] of z [B, size]."""
        return self.text_output(self.text(z)) + self.image_output(self.image(z))
