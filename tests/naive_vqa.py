"""The naive twin of Pythia's model: one question without padding, from its parameters by name."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

Parameters = Mapping[str, Tensor]


def weight(p: Parameters, name: str) -> Tensor:
    """g V / |V|."""
    v = p[f"{name}.weight"]
    return p[f"{name}.scale"] * v / (v * v).sum() ** 0.5


def nonlinear(p: Parameters, name: str, x: Tensor) -> Tensor:
    """A non-linear layer of one vector."""
    if f"{name}.gate.weight" in p:
        raw = p[f"{name}.linear.weight"] @ x + p[f"{name}.linear.bias"]
        gate = p[f"{name}.gate.weight"] @ x + p[f"{name}.gate.bias"]
        return torch.tanh(raw) / (1 + torch.exp(-gate))
    y = weight(p, f"{name}.linear") @ x + p[f"{name}.linear.bias"]
    return torch.where(y > 0, y, torch.zeros_like(y))


def states(p: Parameters, tokens: Sequence[int]) -> list[Tensor]:
    """The states of the GRU or LSTM after each word."""
    wi, wh = p["question.rnn.weight_ih_l0"], p["question.rnn.weight_hh_l0"]
    bi, bh = p["question.rnn.bias_ih_l0"], p["question.rnn.bias_hh_l0"]
    size = wh.size(1)
    h = c = torch.zeros(size, dtype=wi.dtype)
    out = []
    for token in tokens:
        x = p["question.embed_tokens.weight"][token]
        a, b = (wi @ x + bi).split(size), (wh @ h + bh).split(size)
        if len(a) == 3:
            r, z = torch.sigmoid(a[0] + b[0]), torch.sigmoid(a[1] + b[1])
            h = (1 - z) * torch.tanh(a[2] + r * b[2]) + z * h
        else:
            i, f, o = (torch.sigmoid(a[k] + b[k]) for k in (0, 1, 3))
            c = f * c + i * torch.tanh(a[2] + b[2])
            h = o * torch.tanh(c)
        out.append(h)
    return out


def embed_question(p: Parameters, tokens: Sequence[int]) -> Tensor:
    words, heads = states(p, tokens), []
    for row in p["question.output.weight"]:
        hidden = [p["question.hidden.weight"] @ s + p["question.hidden.bias"] for s in words]
        shares = torch.stack([row @ h.clamp(min=0) for h in hidden]).exp()
        shares = shares / shares.sum()
        heads.append(sum(share * s for share, s in zip(shares, words, strict=True)))
    return torch.cat(heads)


def answer(p: Parameters, tokens: Sequence[int], boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Scores [answers] and weights [N] of boxes [N, C], after the views have been combined."""
    q = embed_question(p, tokens)
    asked = nonlinear(p, "attention.question", q)
    w = weight(p, "attention.output")[0]
    shares = torch.stack([w @ (nonlinear(p, "attention.boxes", x) * asked) for x in boxes]).exp()
    shares = shares / shares.sum()
    attended = sum(share * x for share, x in zip(shares, boxes, strict=True))
    z = nonlinear(p, "fuse_boxes", attended) * nonlinear(p, "fuse_question", q)
    scores = p["classifier.image_output.weight"] @ nonlinear(p, "classifier.image", z)
    scores = scores + p["classifier.image_output.bias"]
    return scores + p["classifier.text_output.weight"] @ nonlinear(p, "classifier.text", z), shares
