"""Architectures for visual question answering: Pythia's model of one view, or of several.

"vqa_pythia" reads one view, "vqa_concat" the boxes of all views. "vqa_multi_view_una", "…_dna" and
"…_hna" let the boxes of the primary view attend to those of the others first (Ding et al. 2020).
"""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import register_model
from torch import Tensor, nn

from fairseq_ext.attention import AttentionRecorder
from fairseq_ext.attention.options import HEADS, WIDTH, check_ranges, option
from fairseq_ext.errors import UsageError
from fairseq_ext.models.config import (
    check_requirements,
    default_options,
    flat_config,
    help_from_docstring,
    list_options,
    preset_config,
    to_dict,
)
from fairseq_ext.models.mixins import record_attention
from fairseq_ext.models.reporting import ReportingModel
from fairseq_ext.vqa.model_parts import (
    LAYERS,
    RNNS,
    AnswerClassifier,
    QuestionEncoder,
    TopDownAttention,
)
from fairseq_ext.vqa.multi_view import MultiView, MultiViewOptions

# The values of choices are types for fairseq, made at run time.
# mypy: disable-error-code="valid-type"

Layers = ChoiceEnum(list(LAYERS))
Rnns = ChoiceEnum(list(RNNS))

Views = Sequence[Tensor]
"""Boxes [B, N_m, C], or their padding [B, N_m], of each view m, the primary one first."""

Joined = tuple[Tensor, Tensor]
"""Boxes [B, N, C] and their padding [B, N]."""

Recorder = AttentionRecorder | None

REQUIREMENTS = {
    "hna_init": (["multi_view_normaliser"], ["hybrid"]),
    "hna_weight": (["multi_view_normaliser"], ["hybrid"]),
    "sinkhorn_sweeps": (["multi_view_normaliser"], ["sinkhorn"]),
}
MEANINGS = ("multi_view_normaliser", "multi_view_heads", "multi_view_scale", *REQUIREMENTS)
"""Options that change what parameters mean, though not their shapes."""


@dataclass
@help_from_docstring
class PythiaConfig(FairseqDataclass):
    """Options of all architectures; the defaults are Pythia's.

    Attributes:
        encoder_embed_dim: width of word embeddings
        question_rnn: network over the words: gru as in Pythia's paper, lstm as in its released code
        question_hidden_size: width of its states
        question_attention_hidden_size: width of the hidden layer of question attention
        question_attention_heads: heads of question attention, whose results are joined
        nonlinear: layers are relu(weight-normalised map), as in Pythia, or gated_tanh, as before it
        attention_hidden_size: width in which a box and the question are multiplied
        fusion_hidden_size: width in which the attended boxes and the question are multiplied
        answer_text_hidden_size: width of the smaller layer before the scores of answers
        answer_image_hidden_size: width of the larger layer before the scores of answers
        dropout: dropout of the states of a question and of both products; Pythia has none
    """

    encoder_embed_dim: int = option(300, WIDTH)
    question_rnn: Rnns = "gru"
    question_hidden_size: int = option(1024, WIDTH)
    question_attention_hidden_size: int = option(512, WIDTH)
    question_attention_heads: int = option(2, HEADS)
    nonlinear: Layers = "relu"
    attention_hidden_size: int = option(5000, WIDTH)
    fusion_hidden_size: int = option(5000, WIDTH)
    answer_text_hidden_size: int = option(300, WIDTH)
    answer_image_hidden_size: int = option(5000, WIDTH)
    dropout: float = 0.0


@dataclass
class MultiViewConfig(MultiViewOptions, PythiaConfig):
    """Options of architectures with multi-view attention."""


class VqaModel(ReportingModel):
    """Pythia's model: scores of answers to questions about boxes.

    A question attends to boxes; the sum of these boxes, weighted by it, and the question are
    projected, multiplied element by element, and classified.

    Args:
        words: number of symbols of questions.
        pad: the symbol of padding.
        answers: number of answers.
        width: C, of the features of a box.

    Attributes:
        one_view: it reads the primary view alone; others need two views or more.
    """

    one_view = False
    reporting = MultiView

    def __init__(self, args: Namespace, words: int, pad: int, answers: int, width: int) -> None:
        super().__init__()
        self.args = args
        layer = LAYERS[str(args.nonlinear)]
        self.question = QuestionEncoder(
            words,
            pad,
            embed_dim=args.encoder_embed_dim,
            rnn=str(args.question_rnn),
            size=args.question_hidden_size,
            attention_size=args.question_attention_hidden_size,
            heads=args.question_attention_heads,
            dropout=args.dropout,
        )
        asked, joint = self.question.width, args.fusion_hidden_size
        self.attention = TopDownAttention(
            layer, width, asked, args.attention_hidden_size, args.dropout
        )
        self.fuse_boxes, self.fuse_question = layer(width, joint), layer(asked, joint)
        self.dropout = nn.Dropout(args.dropout)
        sizes = args.answer_text_hidden_size, args.answer_image_hidden_size
        self.classifier = AnswerClassifier(layer, joint, *sizes, answers)

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "VqaModel":
        """Build the model; raise UsageError for another task, or options without a meaning."""
        if not hasattr(task, "answers"):
            raise UsageError(f"--arch {cfg._name} answers questions on pictures; give --task vqa")
        options = to_dict(cfg)
        preset = default_options(getattr(cls, "__dataclass"))
        check_requirements(options, preset, {}, REQUIREMENTS)
        args = Namespace(**options)
        check_ranges(getattr(cls, "__dataclass"), args)
        words = task.source_dictionary
        return cls(args, len(words), words.pad(), len(task.answers), task.width)

    def describe(self) -> dict[str, Any]:
        """Return the options that change what parameters mean, as text."""
        return {name: str(getattr(self.args, name, None)) for name in MEANINGS}

    def combine_views(self, boxes: Views, paddings: Views, recorder: Recorder) -> Joined:
        """Return the boxes that the question attends to, and their padding."""
        raise NotImplementedError

    @record_attention
    def forward(
        self,
        src_tokens: Tensor,
        boxes: Views,
        paddings: Views,
        recorder: Recorder = None,
        **unused: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return scores of answers [B, answers], before the sigmoid, and "weights" of boxes [B, N].

        Args:
            src_tokens: [B, T], with padding at the end.
            boxes: [B, N_m, C] of each view, the primary one first, any type of float.
            paddings: [B, N_m] bool of each view, boxes that do not exist.
            recorder: gets the maps of multi-view attention.
        """
        kind = self.classifier.text_output.weight.dtype
        views = [view.to(kind) for view in boxes]
        joined, padding = self.combine_views(views, paddings, recorder)
        question = self.question(src_tokens)
        weights = self.attention(joined, padding, question)
        attended = (weights.to(joined.dtype).unsqueeze(1) @ joined).squeeze(1)
        joint = self.dropout(self.fuse_boxes(attended) * self.fuse_question(question))
        return self.classifier(joint), {"weights": weights}


@register_model("vqa_pythia", dataclass=PythiaConfig)
class Pythia(VqaModel):
    """A model of one view, of 10 to 100 boxes in the paper."""

    one_view = True

    def combine_views(self, boxes: Views, paddings: Views, recorder: Recorder) -> Joined:
        """Return the primary view."""
        return boxes[0], paddings[0]


@register_model("vqa_concat", dataclass=PythiaConfig)
class Concat(VqaModel):
    """A model of the boxes of all views beside each other, without attention between them."""

    def combine_views(self, boxes: Views, paddings: Views, recorder: Recorder) -> Joined:
        """Return the boxes of all views."""
        return torch.cat(list(boxes), 1), torch.cat(list(paddings), 1)


class MultiViewPythia(VqaModel):
    """A model of the primary view's boxes after multi-view attention to the others."""

    def __init__(self, args: Namespace, words: int, pad: int, answers: int, width: int) -> None:
        super().__init__(args, words, pad, answers, width)
        self.views = MultiView(
            width,
            str(args.multi_view_normaliser),
            heads=args.multi_view_heads,
            scale=args.multi_view_scale,
            dropout=args.attention_dropout,
            hna_init=args.hna_init,
            hna_weight=str(args.hna_weight),
            sinkhorn_sweeps=args.sinkhorn_sweeps,
        )

    def combine_views(self, boxes: Views, paddings: Views, recorder: Recorder) -> Joined:
        """Return the boxes of the primary view, with what they get from the others."""
        return self.views(boxes, paddings, recorder), paddings[0]


MECHANISMS: Mapping[str, str] = {"una": "softmax", "dna": "doubly", "hna": "hybrid"}

_base = flat_config("FlatMultiViewConfig", list_options(MultiViewConfig))
for _name, _normaliser in MECHANISMS.items():
    _class = f"MultiView{_name.capitalize()}"
    _config = preset_config(f"{_class}Config", _base, {"multi_view_normaliser": _normaliser})
    register_model(f"vqa_multi_view_{_name}", dataclass=_config)(
        type(_class, (MultiViewPythia,), {"__doc__": MultiViewPythia.__doc__})
    )
