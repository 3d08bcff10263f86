"""The tasks "sentence_classification" and "sentence_regression": of a sentence, or of a pair."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import torch.nn.functional as F
from fairseq.dataclass import ChoiceEnum
from torch import Tensor, nn

from fairseq_ext.data.annotations import Annotated
from fairseq_ext.data.annotations import Annotations
from fairseq_ext.data.examples import PAIR, TEXT, Example, Field, is_number, is_text
from fairseq_ext.data.labelled_dataset import Item
from fairseq_ext.data.rows import Rows
from fairseq_ext.errors import UsageError
from fairseq_ext.models.config import Option, option
from fairseq_ext.models.head_options import roles_with_parses
from fairseq_ext.models.task_attention import TaskAttention, parse_initialiser
from fairseq_ext.models.task_heads import (
    Linear,
    Pooling,
    Product,
    SentenceHead,
    build_mlp,
    pool_first,
    pool_max,
    pool_mean,
)
from fairseq_ext.tasks.labelled_options import register
from fairseq_ext.tasks.labelled_task import LabelledTask

POOLINGS: dict[str, Pooling] = {"first": pool_first, "mean": pool_mean, "max": pool_max}

OPTIONS: list[Option] = [
    option("pairs", ChoiceEnum(["joint", "apart"]), "joint", "two sentences in one row, or in two"),
    option(
        "pooling",
        ChoiceEnum([*POOLINGS, "attention"]),
        "first",
        "of a sentence's tokens: the first one, the mean, the maximum, or task-specific attention "
        "(Jia 2024)",
    ),
    option(
        "output",
        ChoiceEnum(["mlp", "linear"]),
        "mlp",
        "RoBERTa's two layers, or a linear map without bias (Jia's); of sentences apart it is the "
        "dot product of both after a linear map (Jia's)",
    ),
    option(
        "task_layers",
        Optional[int],
        None,
        "blocks of task-specific attention (default: Jia's, 2 for one sentence or a joint pair, "
        "for two apart 1 to classify and 3 for regression)",
    ),
    option(
        "task_init",
        str,
        "default",
        "what the weights of task-specific attention are drawn from: default (that of linear "
        "maps), uniform:0.9,1 (Jia's 'initialised'), normal:0,0.02, xavier_uniform, ...",
    ),
]


class Scores(nn.Module):
    """Of one score [B, 1] those of two classes, 0 and the score: its logistic loss, as softmax."""

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x, (1, 0))


class SentenceTask(LabelledTask):
    """A label for each sentence or pair of sentences.

    Attributes:
        sentences: 1 or 2, as the training examples have.
        inner: width of the map before the dot product, in widths of the encoder.
        cross_layers: blocks of attention between two sentences, by default.
        parsed: whether the model, which is built before data are read, looks at annotations.
    """

    inner: int
    cross_layers: int
    sentences = 1
    parsed = True
    KEPT = (*LabelledTask.KEPT, "sentences")

    def begin(self) -> None:
        parse_initialiser(self.cfg.task_init)
        super().begin()
        one = self.examples("train")[0]
        self.sentences = 2 if "pair" in one.values else 1
        if self._apart() and self.sentences == 1:
            raise UsageError(f"{one.where} has no 'pair', and --pairs apart needs two sentences")
        self._check_options()
        if self._apart() and len(self.labels) > 2:
            raise UsageError(
                f"--pairs apart gives one score, for 2 classes, and there are {len(self.labels)}; "
                "use --pairs joint"
            )

    def _check_options(self) -> None:
        """Raise UsageError for what would have no effect."""
        cfg = self.cfg
        if cfg.task_layers is not None and cfg.task_layers < 1:
            raise UsageError(f"--task-layers is {cfg.task_layers} and must be 1 or more")
        if cfg.pooling != "attention" and (cfg.task_layers or cfg.task_init != "default"):
            raise UsageError(
                "--task-layers and --task-init are of task-specific attention; give --pooling "
                "attention, or leave them out"
            )
        if self._apart() and cfg.output != "mlp":
            raise UsageError(
                f"--output {cfg.output} is for one row, and --pairs apart always ends in a dot "
                "product; leave it out"
            )

    @property
    def annotated(self) -> bool:
        """`fairseq-ext annotate` has been here; of pairs there are no annotations."""
        return self.sentences == 1 and self._annotations("train").is_dir()

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        model = super().build_model(cfg, from_checkpoint)
        self.parsed = bool(roles_with_parses(vars(model.args)))
        return model

    def _annotations(self, name: str) -> Path:
        return Path(self.cfg.data) / f"{name}.annotations"

    def load_dataset(self, split: str, combine: bool = False, **unused: Any) -> None:
        super().load_dataset(split, combine, **unused)
        if not (self.parsed and self.annotated):
            return
        name, places = self.places(split)
        texts = [example.values["text"] for example in self._file(name)]
        lengths = [len(found.numbers) for found in self.vocabulary.encode(texts)]
        words = self.source_dictionary
        records = Annotations.open(self._annotations(name), words.symbols, lengths)
        made = self.datasets[split]
        self.datasets[split] = Annotated(made, records, words.pad(), places=places, first=1)

    def items(self, examples: Sequence[Example], rows: Rows) -> list[Item]:
        texts = self.vocabulary.encode([text for e in examples for text in self._texts(e)])
        found = []
        for number, example in enumerate(examples):
            place = number * self.sentences
            parts = [text.numbers for text in texts[place : place + self.sentences]]
            groups = [[part] for part in parts] if self._apart() else [parts]
            target = self.target(example) if "label" in example.values else None
            found.append(Item(example, [rows.make(g, example.where) for g in groups], target))
        return found

    def _texts(self, example: Example) -> list[str]:
        found = [example.values[key] for key in ("text", "pair") if key in example.values]
        if len(found) != self.sentences:
            raise UsageError(
                f"{example.where} has {'no' if self.sentences > 1 else 'a'} 'pair', unlike the "
                "examples of training; give all of them one sentence, or two"
            )
        return found

    def target(self, example: Example) -> float:
        raise NotImplementedError

    def build_head(self, args: Any) -> nn.Module:
        width, dropout, apart = args.encoder_embed_dim, args.pooler_dropout, self._apart()
        classes = len(self.labels) or 1
        if apart:
            output: nn.Module = Product(width, self.inner * width, dropout)
            output = nn.Sequential(output, Scores()) if self.labels else output
        elif self.cfg.output == "linear":
            output = Linear(width, classes, dropout)
        else:
            output = build_mlp(args, classes)
        if self.cfg.pooling != "attention":
            return SentenceHead(POOLINGS[self.cfg.pooling], output)
        blocks = TaskAttention(
            width,
            args.encoder_attention_heads,
            layers=self.cfg.task_layers or (self.cross_layers if apart else 2),
            cross=apart,
            init=self.cfg.task_init,
            dropout=args.attention_dropout,
        )
        return SentenceHead(blocks, output)

    def _apart(self) -> bool:
        return self.cfg.pairs == "apart"


@register("sentence_classification", OPTIONS)
class SentenceClassificationTask(SentenceTask):
    """One of several classes for each sentence or pair."""

    fields = {
        "text": TEXT,
        "pair": PAIR,
        "label": Field("the name of a class", is_text, target=True),
    }
    inner, cross_layers = 1, 1

    def labels_of(self, examples: Iterable[Example]) -> list[str]:
        found = sorted({example.values["label"] for example in examples})
        if len(found) < 2:
            raise UsageError(
                f"{self.cfg.data}/train.jsonl has only the label '{found[0]}'; give examples of "
                "two classes or more"
            )
        return found

    def target(self, example: Example) -> int:
        return self.label(example.values["label"], example.where)

    def answers(self, scores: Tensor, batch: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Label, its probability, and the probabilities of all."""
        found = []
        for row in scores.float().softmax(-1).tolist():
            best = max(range(len(row)), key=row.__getitem__)
            every = dict(zip(self.labels, row, strict=True))
            found.append(
                {"label": self.labels[best], "probability": row[best], "probabilities": every}
            )
        return found


@register("sentence_regression", OPTIONS)
class SentenceRegressionTask(SentenceTask):
    """A number for each sentence or pair."""

    fields = {"text": TEXT, "pair": PAIR, "label": Field("a number", is_number, target=True)}
    inner, cross_layers = 4, 3

    def target(self, example: Example) -> float:
        return float(example.values["label"])

    def answers(self, scores: Tensor, batch: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [{"score": score} for score in scores.float().view(-1).tolist()]
