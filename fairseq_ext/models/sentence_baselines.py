"""Encoders to compare attention with: "sentence_cnn" (Kim 2014) and "sentence_bilstm".

They are trained from scratch on the tasks on labelled text, and have no positions and no segments.
"""

from argparse import Namespace
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.models import FairseqEncoder, FairseqEncoderModel, register_model
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fairseq_ext.errors import UsageError
from fairseq_ext.models.config import Option, flat_config, option

LONGEST = 100_000  # tokens of a row: there is no limit
SCALE = 0.25  # embeddings begin between -SCALE and SCALE, as in Kim 2014

COMMON: list[Option] = [
    option("encoder_embed_dim", int, 100, "width of embeddings"),
    option("dropout", float, 0.2, "dropout of embeddings, and of what a BiLSTM says"),
    option("pooler_dropout", float, 0.5, "dropout of classification heads"),
    option("encoder_attention_heads", int, 4, "heads of --pooling attention"),
    option("attention_dropout", float, 0.1, "dropout of --pooling attention"),
]


class Encoder(FairseqEncoder):
    """Embeddings, then something that looks at several of them: [B, S] -> [B, S, C].

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
        """Features of each token; those of padding are 0."""
        padding = src_tokens.eq(self.dictionary.pad())
        # real tokens stand first, whichever side padding is on
        order = padding.byte().argsort(dim=1, stable=True)
        x = self.dropout(self.embed_tokens(src_tokens.gather(1, order)))
        x = self.look(x, (~padding).sum(1))
        back = order.argsort(1).unsqueeze(-1).expand_as(x)
        return x.gather(1, back).masked_fill(padding.unsqueeze(-1), 0.0)

    def look(self, x: Tensor, lengths: Tensor) -> Tensor:
        """[B, S, E] and how many of S are real, at most S -> [B, S, C]."""
        raise NotImplementedError

    def max_positions(self) -> int:
        return LONGEST


class Cnn(Encoder):
    """Feature maps of windows of several sizes, around each token."""

    def __init__(self, args: Namespace, dictionary: Any) -> None:
        super().__init__(args, dictionary)
        windows, maps = windows_of(args.cnn_windows), args.cnn_maps
        size, self.width = args.encoder_embed_dim, maps * len(windows)
        self.convolutions = nn.ModuleList(nn.Conv1d(size, maps, window) for window in windows)

    def look(self, x: Tensor, lengths: Tensor) -> Tensor:
        x = x.transpose(1, 2)
        found = []
        for maps in self.convolutions:
            around = maps.kernel_size[0] - 1
            found.append(maps(F.pad(x, (around // 2, around - around // 2))))
        return torch.cat(found, 1).relu().transpose(1, 2)


class BiLstm(Encoder):
    """LSTMs in both directions."""

    def __init__(self, args: Namespace, dictionary: Any) -> None:
        super().__init__(args, dictionary)
        layers, self.width = args.encoder_layers, 2 * args.encoder_hidden_size
        self.lstm = nn.LSTM(
            args.encoder_embed_dim,
            args.encoder_hidden_size,
            layers,
            batch_first=True,
            dropout=args.dropout if layers > 1 else 0.0,
            bidirectional=True,
        )

    def look(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        said, _ = pad_packed_sequence(
            self.lstm(packed)[0], batch_first=True, total_length=x.size(1)
        )
        return self.dropout(said)


class SentenceBaseline(FairseqEncoderModel):
    """The common base: an encoder, and the head of a task.

    Attributes:
        args: the options; encoder_embed_dim, by which heads are built, is that of features.
    """

    make: type[Encoder]

    def __init__(self, args: Namespace, encoder: Encoder) -> None:
        super().__init__(encoder)
        self.args = Namespace(**{**vars(args), "encoder_embed_dim": encoder.width})
        self.task_head: nn.Module | None = None

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "SentenceBaseline":
        """Raises UsageError if it is to be fine-tuned, or an option is none."""
        if getattr(task, "pretrained", None):
            raise UsageError(
                f"--arch {cfg._name} is trained from scratch; leave --finetune-from-model out"
            )
        given = OmegaConf.to_container(cfg, resolve=True) if OmegaConf.is_config(cfg) else vars(cfg)
        args = Namespace(**given)
        for name, value in given.items():
            if name.endswith(("_dim", "_size", "_maps", "_layers", "_heads")) and value < 1:
                raise UsageError(f"--{name.replace('_', '-')} is {value} and must be 1 or more")
        return cls(args, cls.make(args, task.source_dictionary))

    def attach(self, head: nn.Module) -> None:
        """Give it the head of a task."""
        self.task_head = head

    def forward(
        self, src_tokens: Tensor, task_head: bool = False, **unused: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """What the head says, or features [B, S, C]; they are in the second result too."""
        features = self.encoder(src_tokens)
        said = features
        if task_head and self.task_head is not None:
            said = self.task_head(features, src_tokens.eq(self.encoder.dictionary.pad()))
        return said, {"features": features}


def windows_of(text: str) -> list[int]:
    """ "3,4,5" as numbers."""
    found = [int(part) for part in text.split(",") if part.isdecimal()]
    if not found or 0 in found or text != ",".join(map(str, found)):
        raise UsageError(f"--cnn-windows is '{text}'; give numbers of tokens, like 3,4,5")
    return found


def _register(name: str, make: type[Encoder], options: list[Option]) -> None:
    class_name = "".join(part.capitalize() for part in name.split("_"))
    config = flat_config(f"{class_name}Config", [*COMMON, *options], {})
    register_model(name, dataclass=config)(type(class_name, (SentenceBaseline,), {"make": make}))


_register(
    "sentence_cnn",
    Cnn,
    [
        option("cnn_windows", str, "3,4,5", "tokens that feature maps look at"),
        option("cnn_maps", int, 100, "feature maps of each window"),
    ],
)
_register(
    "sentence_bilstm",
    BiLstm,
    [
        option("encoder_hidden_size", int, 150, "width of each direction"),
        option("encoder_layers", int, 1, "layers"),
    ],
)
