"""Encoders to compare attention with: "sentence_cnn" (Kim 2014) and "sentence_bilstm".

They are trained from scratch on the tasks on labelled text. They have no positions or segments.
"""

from argparse import Namespace
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.models import FairseqEncoder, FairseqEncoderModel, register_model
from torch import Tensor, nn
from torch.nn.utils import rnn

from fairseq_ext.attention.options import HEADS, LAYERS, WIDTH, check_ranges, option
from fairseq_ext.errors import UsageError
from fairseq_ext.models.config import TaskFacts, help_from_docstring, to_dict

SCALE = 0.25  # embeddings begin between -SCALE and SCALE, as in Kim 2014


@dataclass
@help_from_docstring
class BaselineConfig(FairseqDataclass):
    """Options of both baselines.

    Attributes:
        encoder_embed_dim: width of embeddings
        dropout: dropout of embeddings, and of the output of a BiLSTM
        pooler_dropout: dropout of classification heads
        encoder_attention_heads: heads of --pooling attention
        attention_dropout: dropout of --pooling attention
    """

    encoder_embed_dim: int = option(100, WIDTH)
    dropout: float = 0.2
    pooler_dropout: float = 0.5
    encoder_attention_heads: int = option(4, HEADS)
    attention_dropout: float = 0.1


class Encoder(FairseqEncoder):
    """An encoder of embeddings and a layer that mixes them, [B, S] -> [B, S, C].

    Attributes:
        width: C.
    """

    width: int

    def __init__(self, args: Namespace, dictionary: Any) -> None:
        super().__init__(dictionary)
        size, pad = args.encoder_embed_dim, dictionary.pad()
        self.embed_tokens = nn.Embedding(len(dictionary), size, pad)
        nn.init.uniform_(self.embed_tokens.weight, -SCALE, SCALE)
        nn.init.zeros_(self.embed_tokens.weight[pad])
        self.dropout = nn.Dropout(args.dropout)

    def forward(self, src_tokens: Tensor) -> Tensor:
        """Return features [B, S, C] of tokens [B, S]; the features of padding are 0."""
        padding = src_tokens.eq(self.dictionary.pad())
        # real tokens stand first, whichever side padding is on
        order = padding.byte().argsort(dim=1, stable=True)
        x = self.dropout(self.embed_tokens(src_tokens.gather(1, order)))
        x = self.mix(x, (~padding).sum(1))
        back = order.argsort(1).unsqueeze(-1).expand_as(x)
        return x.gather(1, back).masked_fill(padding.unsqueeze(-1), 0.0)

    def mix(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Return [B, S, C] of embeddings [B, S, E], the first `lengths` [B] of which are real."""
        raise NotImplementedError


class Cnn(Encoder):
    """Feature maps of windows of several sizes around each token (Kim 2014)."""

    def __init__(self, args: Namespace, dictionary: Any) -> None:
        super().__init__(args, dictionary)
        self.windows, maps = parse_windows(args.cnn_windows), args.cnn_maps
        size, self.width = args.encoder_embed_dim, maps * len(self.windows)
        self.convolutions = nn.ModuleList(nn.Conv1d(size, maps, window) for window in self.windows)

    def mix(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Return the maps of all windows, each padded so that it has an output for each token."""
        x = x.transpose(1, 2)
        maps = [
            convolve(nn.functional.pad(x, ((window - 1) // 2, window // 2)))
            for window, convolve in zip(self.windows, self.convolutions, strict=True)
        ]
        return torch.cat(maps, 1).relu().transpose(1, 2)


class BiLstm(Encoder):
    """LSTMs in both directions."""

    def __init__(self, args: Namespace, dictionary: Any) -> None:
        super().__init__(args, dictionary)
        size, layers = args.encoder_hidden_size, args.encoder_layers
        self.width, between = 2 * size, args.dropout if layers > 1 else 0.0
        options = {"batch_first": True, "bidirectional": True, "dropout": between}
        self.lstm = nn.LSTM(args.encoder_embed_dim, size, layers, **options)

    def mix(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Return the states of both directions."""
        packed = rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        packed, _ = self.lstm(packed)
        states, _ = rnn.pad_packed_sequence(packed, batch_first=True, total_length=x.size(1))
        return self.dropout(states)


class SentenceBaseline(FairseqEncoderModel):
    """The common base of these models: an encoder, and the head of a task.

    Attributes:
        encoder_class: the encoder of the architecture.
        args: the options; encoder_embed_dim, by which heads are built, is the width of features.
    """

    encoder_class: type[Encoder]
    encoder: Encoder

    def __init__(self, args: Namespace, encoder: Encoder) -> None:
        super().__init__(encoder)
        self.args = Namespace(**{**vars(args), "encoder_embed_dim": encoder.width})
        self.task_head: nn.Module | None = None

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "SentenceBaseline":
        """Build the model; raise UsageError if it is fine-tuned, or a size out of range."""
        if TaskFacts.read(task).pretrained:
            raise UsageError(
                f"--arch {cfg._name} is trained from scratch; leave --finetune-from-model out"
            )
        args = Namespace(**to_dict(cfg))
        check_ranges(getattr(cls, "__dataclass"), args)
        return cls(args, cls.encoder_class(args, task.source_dictionary))

    def attach(self, head: nn.Module) -> None:
        """Give the model the head of a task."""
        self.task_head = head

    def forward(
        self, src_tokens: Tensor, task_head: bool = False, **unused: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the head's output, or features [B, S, C]; they are in the second result too."""
        features = self.encoder(src_tokens)
        if task_head and self.task_head is not None:
            padding = src_tokens.eq(self.encoder.dictionary.pad())
            return self.task_head(features, padding), {"features": features}
        return features, {"features": features}


def parse_windows(text: str) -> list[int]:
    """Return the numbers of "3,4,5"."""
    windows = [int(part) for part in text.split(",") if part.isdecimal()]
    if not windows or 0 in windows or text != ",".join(map(str, windows)):
        raise UsageError(f"--cnn-windows is '{text}'; give numbers of tokens, like 3,4,5")
    return windows


@dataclass
@help_from_docstring
class SentenceCnnConfig(BaselineConfig):
    """Options of "sentence_cnn".

    Attributes:
        cnn_windows: sizes of the windows of feature maps, in tokens
        cnn_maps: feature maps of each window
    """

    cnn_windows: str = "3,4,5"
    cnn_maps: int = option(100, WIDTH)


@register_model("sentence_cnn", dataclass=SentenceCnnConfig)
class SentenceCnn(SentenceBaseline):
    """A model with the encoder of Kim (2014)."""

    encoder_class = Cnn


@dataclass
@help_from_docstring
class SentenceBilstmConfig(BaselineConfig):
    """Options of "sentence_bilstm".

    Attributes:
        encoder_hidden_size: width of each direction
        encoder_layers: layers
    """

    encoder_hidden_size: int = option(150, WIDTH)
    encoder_layers: int = option(1, LAYERS)


@register_model("sentence_bilstm", dataclass=SentenceBilstmConfig)
class SentenceBilstm(SentenceBaseline):
    """A model with LSTMs in both directions."""

    encoder_class = BiLstm
