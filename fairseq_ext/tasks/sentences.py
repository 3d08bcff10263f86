"""The tasks "sentence_classification" and "sentence_regression", on sentences or pairs."""

# The values of choices are types for fairseq, made at run time.
# mypy: disable-error-code="valid-type"

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum
from fairseq.tasks import register_task
from torch import Tensor, nn

from fairseq_ext.attention.options import LAYERS, Rule, option
from fairseq_ext.data.annotations import Annotated, Annotations
from fairseq_ext.data.examples import (
    PAIR,
    TEXT,
    Example,
    Field,
    collect_labels,
    is_number,
    is_text,
)
from fairseq_ext.data.rows import Item, Rows
from fairseq_ext.errors import UsageError
from fairseq_ext.models import config, role_options, task_heads
from fairseq_ext.tasks.labelled_task import LabelledConfig, LabelledTask

Pairs = ChoiceEnum(["joint", "apart"])
Poolings = ChoiceEnum([*task_heads.POOLINGS, "attention"])
Outputs = ChoiceEnum(["mlp", "linear"])


OF_ATTENTION: Any = {"needs": ("pooling",), "values": ("attention",)}

OF_JOINT_PAIRS: Any = {"needs": ("pairs",), "values": ("joint",)}
"""Facts of options without effect on sentences apart, which always end in a dot product."""

LARGE_WEIGHTS = [
    Rule(
        kind,
        "{one} makes numbers too large for {other}; give --bf16, or neither",
        lambda init, sixteen: sixteen and str(init).startswith("uniform"),
    )
    for kind in ("fp16", "amp")
]


@dataclass
@config.help_from_docstring
class SentenceConfig(LabelledConfig):
    """Options of tasks on sentences and pairs of sentences.

    Attributes:
        pairs: two sentences in one row, or in two
        pooling: of a sentence's tokens: the first one, the mean, the maximum, or task-specific
            attention (Jia 2024)
        output: RoBERTa's two layers, or a linear map without bias (Jia's); of sentences apart it is
            the dot product of both after a linear map (Jia's)
        task_layers: blocks of task-specific attention (default: Jia's, 2 for one sentence or a
            joint pair, for two apart 1 to classify and 3 for regression)
        task_init: what the weights of task-specific attention are drawn from: default (that of
            linear maps), uniform:0.9,1 (Jia's 'initialised'), normal:0,0.02, xavier_uniform, ...
        task_attention_bias: give the maps of task-specific attention biases (ours; Jia names none)
        task_attention_residual: add the input of each block to its output (ours)
        task_attention_norm: normalise the output of each block by layer normalisation (ours)
    """

    pairs: Pairs = "joint"
    pooling: Poolings = "first"
    output: Outputs = option("mlp", **OF_JOINT_PAIRS)
    task_layers: Optional[int] = option(None, LAYERS, **OF_ATTENTION)
    task_init: str = option("default", **OF_ATTENTION, excludes=LARGE_WEIGHTS)
    task_attention_bias: bool = option(False, **OF_ATTENTION)
    task_attention_residual: bool = option(False, **OF_ATTENTION)
    task_attention_norm: bool = option(False, **OF_ATTENTION)


BLOCK_PARTS = ("bias", "residual", "norm")

TEXTS = {"text": TEXT, "pair": PAIR}

TWO_CLASSES = nn.ConstantPad1d((1, 0), 0.0)
"""Scores of two classes, 0 and x, for one score x; their softmax gives its logistic loss."""


class SentenceTask(LabelledTask):
    """A label for each sentence or pair of sentences.

    Attributes:
        sentences: 1 or 2, the number of sentences in each training example.
        inner: width of the map before the dot product, in widths of the encoder.
        cross_layers: the default number of blocks of attention between two sentences.
        parsed: whether the model reads annotations. It is built before data are loaded.
    """

    inner: int
    cross_layers: int
    sentences = 1
    parsed = True
    KEPT = (*LabelledTask.KEPT, "sentences")
    SETTINGS = ("pooling", "task_attention_residual")

    def begin(self) -> None:
        """Read what a training starts from, and check the options of the head."""
        task_heads.parse_initialiser(self.cfg.task_init)
        super().begin()
        first = self.load_examples("train")[0]
        self.sentences = 2 if "pair" in first.values else 1
        if self._apart() and self.sentences == 1:
            raise UsageError(f"{first.where} has no 'pair', and --pairs apart needs two sentences")
        usual = config.default_options(SentenceConfig)
        needs = config.list_requirements(config.read_facts(SentenceConfig))
        values = {name: getattr(self.cfg, name) for name in (*needs, "pooling", "pairs")}
        config.check_requirements(values, usual, {}, needs)
        if self._apart() and len(self.labels) > 2:
            raise UsageError(
                f"--pairs apart gives one score, for 2 classes, and there are {len(self.labels)}; "
                "use --pairs joint"
            )

    @property
    def annotated(self) -> bool:
        """Whether `fairseq-ext annotate` has written annotations; pairs have none."""
        return self.sentences == 1 and self._annotations_path("train").is_dir()

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the model, and note whether it reads annotations."""
        model = super().build_model(cfg, from_checkpoint)
        self.parsed = bool(role_options.roles_with_parses(vars(model.args)))
        return model

    def _annotations_path(self, name: str) -> Path:
        return Path(self.cfg.data) / f"{name}.annotations"

    def load_dataset(self, split: str, combine: bool = False, **unused: Any) -> None:
        """Load a split, with its annotations if the model reads them."""
        super().load_dataset(split, combine, **unused)
        if not (self.parsed and self.annotated):
            return
        name, places = self.locate_split(split)
        texts = [example.values["text"] for example in self._read_file(name)]
        lengths = [len(text.numbers) for text in self.vocabulary.encode(texts)]
        data, words = self.datasets[split], self.source_dictionary
        records = Annotations.open(self._annotations_path(name), words.symbols, lengths)
        self.datasets[split] = Annotated(data, records, words.pad(), places=places, first=1)

    def build_items(self, examples: Sequence[Example], rows: Rows) -> list[Item]:
        """Return each example as one row, or as a row for each of two sentences apart."""
        texts = iter(self.vocabulary.encode([t for e in examples for t in self._list_texts(e)]))
        items = []
        for example in examples:
            parts = [next(texts).numbers for _ in range(self.sentences)]
            groups = [[part] for part in parts] if self._apart() else [parts]
            target = self.read_target(example) if "label" in example.values else None
            items.append(Item(example, [rows.make(g, example.where) for g in groups], target))
        return items

    def _list_texts(self, example: Example) -> list[str]:
        texts = [example.values[key] for key in ("text", "pair") if key in example.values]
        if len(texts) != self.sentences:
            has, give = ("no", "two, as text with a tab") if self.sentences > 1 else ("a", "one")
            raise UsageError(
                f"{example.where} has {has} 'pair', unlike the examples of training; give as many "
                f"sentences as these, {give}"
            )
        return texts

    def read_target(self, example: Example) -> float:
        """Return the target of a labelled example."""
        raise NotImplementedError

    def build_head(self, args: Any) -> nn.Module:
        """Return a head of --pooling and --output; sentences apart end in a dot product."""
        width, dropout, apart = args.encoder_embed_dim, args.pooler_dropout, self._apart()
        classes = len(self.labels) or 1
        if apart:
            output: nn.Module = task_heads.Product(width, self.inner * width, dropout)
            output = nn.Sequential(output, TWO_CLASSES) if self.labels else output
        elif self.cfg.output == "linear":
            output = task_heads.Linear(width, classes, dropout)
        else:
            output = task_heads.build_mlp(args, classes)
        if self.cfg.pooling != "attention":
            return task_heads.SentenceHead(task_heads.POOLINGS[self.cfg.pooling], output)
        blocks = task_heads.TaskAttention(
            width,
            args.encoder_attention_heads,
            layers=self.cfg.task_layers or (self.cross_layers if apart else 2),
            cross=apart,
            init=self.cfg.task_init,
            dropout=args.attention_dropout,
            **{name: getattr(self.cfg, f"task_attention_{name}", False) for name in BLOCK_PARTS},
        )
        return task_heads.SentenceHead(blocks, output)

    def _apart(self) -> bool:
        return self.cfg.pairs == "apart"


@register_task("sentence_classification", dataclass=SentenceConfig)
class SentenceClassificationTask(SentenceTask):
    """One of several classes for each sentence or pair."""

    fields = TEXTS | {"label": Field("the name of a class", is_text, target=True)}
    inner, cross_layers = 1, 1

    def list_labels(self, examples: Iterable[Example]) -> list[str]:
        """Return the names of the classes.

        Raises:
            UsageError: there is only one, or two look alike.
        """
        labels = sorted(collect_labels((example.values["label"], example) for example in examples))
        if len(labels) < 2:
            raise UsageError(
                f"{self.cfg.data}/train.jsonl has only the label '{labels[0]}'; give two or more"
            )
        return labels

    def read_target(self, example: Example) -> int:
        """Return the number of the class."""
        return self.find_label(example.values["label"], example.where)

    def read_answers(self, scores: Tensor, batch: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return label, its probability, and the probabilities of all classes."""
        answers = []
        for row in scores.float().softmax(-1).tolist():
            best, shares = max(row), dict(zip(self.labels, row, strict=True))
            label = self.labels[row.index(best)]
            answers.append({"label": label, "probability": best, "probabilities": shares})
        return answers


@register_task("sentence_regression", dataclass=SentenceConfig)
class SentenceRegressionTask(SentenceTask):
    """A number for each sentence or pair."""

    fields = TEXTS | {"label": Field("a number", is_number, target=True)}
    inner, cross_layers = 4, 3

    def read_target(self, example: Example) -> float:
        """Return the number."""
        return float(example.values["label"])

    def read_answers(self, scores: Tensor, batch: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the predicted numbers."""
        return [{"score": score} for score in scores.float().view(-1).tolist()]
