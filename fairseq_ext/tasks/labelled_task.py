"""The base class of tasks on labelled text: files, vocabulary, folds and the encoder."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Optional

import numpy as np
from fairseq.data import Dictionary
from omegaconf import MISSING
from torch import Tensor, nn

from fairseq_ext.attention.options import Rule, option, whole
from fairseq_ext.data.examples import Example, Field, check_lengths, in_fold, read
from fairseq_ext.data.rows import Item, LabelledDataset, Rows
from fairseq_ext.data.vocabulary import Vocabulary
from fairseq_ext.errors import UsageError
from fairseq_ext.models import pretrained, roberta, task_heads, word_vectors
from fairseq_ext.models.config import help_from_docstring
from fairseq_ext.tasks.kept_state import KeptConfig, KeptTask

logger = logging.getLogger(__name__)

NO_FOLDS = "{other} is given without --folds; give that too, 2 or more, or leave it out"
NO_SUCH_FOLD = "{other} is none of {one}; give a whole number from 1 to {values[folds]}"


@dataclass
@help_from_docstring
class LabelledConfig(KeptConfig):
    """Options of tasks on labelled text.

    Attributes:
        data: folder with train.jsonl, valid.jsonl, ...
        vocabulary: folder with dict.txt and the tokeniser of the encoder (default: the data's)
        tokens_per_sample: tokens of a row, at most; longer ones lose their end (default: the
            encoder's positions)
        strict: refuse what is too long
        folds: cross-validation in so many parts of train.jsonl; there needs to be no valid.jsonl
        fold: the part that is held out, from 1
        freeze_encoder: train the head alone (Jia's 'pretrain')
    """

    data: str = MISSING
    vocabulary: Optional[str] = None
    tokens_per_sample: Optional[int] = None
    strict: bool = False
    folds: int = option(
        0,
        whole("[2, 1000000]", "a number of folds", special={0: "none"}),
        excludes=[
            Rule("fold", NO_FOLDS, lambda folds, fold: not folds and fold != 1),
            Rule("fold", NO_SUCH_FOLD, lambda folds, fold: folds and not 1 <= fold <= folds),
            Rule(
                "train_subset",
                "{other} is given, and {one} are parts of train; leave one of the two out",
                lambda folds, subset: folds and subset != "train",
            ),
        ],
    )
    fold: int = option(1, whole("[1, 2147483647]", "a fold, at most --folds"))
    freeze_encoder: bool = option(
        False,
        excludes=[
            Rule(
                "criterion ag_preset",
                "{criterion} guides attention, and that of a frozen encoder does not learn; leave "
                "out {one}, or the _ag of the criterion",
                lambda frozen, *_: frozen,
            ),
            Rule(
                "criterion asa_baseline",
                "{criterion} cannot train adversaries in a frozen encoder; leave out {one}, or "
                "give an --asa-baseline",
                lambda frozen, _, baseline: frozen and str(baseline) == "none",
            ),
            Rule(
                "criterion l0_lambda",
                "{criterion} closes heads by their gates; leave out {one}",
                lambda frozen, *_: frozen,
            ),
        ],
    )


class LabelledTask(KeptTask):
    """A task on labelled examples. Its subclasses say what an example is.

    Attributes:
        fields, labels: the keys of an example, and the names of the classes, in order.
        vocabulary: the dictionary and the tokeniser.
        room, separators: tokens of a row, at most, and how many </s> separate two texts in it.
        segments: how many segments the encoder tells apart.
        part: the number of folds, and the fold that is held out.
        pretrained: the checkpoint that a model to be built takes its sizes from.
    """

    fields: ClassVar[Mapping[str, Field]]
    KEPT: ClassVar[tuple[str, ...]] = ("labels", "room", "separators", "segments", "part")
    WORDS = "vocabulary"
    NAMES = {
        "room": "--tokens-per-sample",
        "separators": "separators between sentences",
        "part": "--folds and --fold",
    }
    vocabulary: Vocabulary

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self.pretrained: str | None = None
        self.labels: list[str] = []
        self.room, self.separators, self.segments = roberta.POSITIONS, 2, 0
        self.part = [cfg.folds, cfg.fold]
        self._files: dict[str, list[Example]] = {}

    def begin(self) -> None:
        """Read what a training starts from. Raise UsageError if it cannot start from that."""
        cfg = self.cfg
        if cfg.pretrained and not Path(cfg.pretrained).is_file():
            raise UsageError(f"--finetune-from-model is {cfg.pretrained}, which is not there")
        self.pretrained, encoder = cfg.pretrained, pretrained.read_model_options(cfg.pretrained)
        positions = encoder.get("max_positions")
        self.vocabulary = Vocabulary.load(Path(cfg.vocabulary or cfg.data))
        word_vectors.check_word_vectors(cfg.word_vectors, self.vocabulary.by_id)
        wanted = cfg.tokens_per_sample
        self.room = (positions or roberta.POSITIONS) if wanted is None else wanted
        self._set_form(encoder)
        self._check_encoder(positions)
        pretrained.check_dictionary(encoder, cfg.pretrained, self.source_dictionary)
        self.labels = self.list_labels(self._read_file("train"))  # of all folds

    def _check_encoder(self, positions: int | None) -> None:
        """Raise UsageError for rows that the encoder cannot read; if new, it has no positions."""
        if self.room < 8:
            raise UsageError(f"--tokens-per-sample is {self.room}; give 8 or more")
        if positions and self.room > positions:
            raise UsageError(
                f"--tokens-per-sample is {self.room} and the encoder has {positions} positions; "
                "give no more than that"
            )
        if self.segments == 1:
            raise UsageError(f"{self.cfg.pretrained} has 1 segment; give an encoder with 0 or 2")

    def _set_form(self, encoder: Mapping[str, Any]) -> None:
        """Set segments and separators to those of an encoder with these options.

        What separates texts for a trained one is what its tokeniser puts there.
        """
        self.segments = encoder.get("segments") or 0
        one = self.segments or encoder.get("encoder_scorer") == "disentangled"
        known = self.vocabulary.separators() if self.pretrained else None
        self.separators = known or (1 if one else 2)  # as in BERT and DeBERTa, in RoBERTa

    def load_examples(self, split: str) -> list[Example]:
        """Return the examples of a split."""
        name, places = self.locate_split(split)
        return [self._read_file(name)[place] for place in places]

    def locate_split(self, split: str) -> tuple[str, np.ndarray]:
        """Return the file of a split, by name, and the places of its examples there."""
        if not (self.cfg.folds and split in ("train", "valid")):
            return split, np.arange(len(self._read_file(split)))
        count, folds = len(self._read_file("train")), self.cfg.folds
        if count < folds:
            raise UsageError(
                f"{self.cfg.data}/train.jsonl has {count} examples for --folds {folds}; give fewer"
            )
        # in cross-validation both are parts of train.jsonl
        held_out = in_fold(count, folds, self.cfg.fold)
        return "train", np.flatnonzero(held_out if split == "valid" else ~held_out)

    def _read_file(self, name: str) -> list[Example]:
        """Return the examples in NAME.jsonl, which is read once."""
        if name not in self._files:
            self._files[name] = read(Path(self.cfg.data) / f"{name}.jsonl", self.fields)
        return self._files[name]

    def list_labels(self, examples: Iterable[Example]) -> list[str]:
        """Return the names of the classes, in order; none if the task has no classes."""
        return []

    def find_label(self, name: str, where: str) -> int:
        """Return the number of a class; raise UsageError if no training example has this label."""
        if name not in self.labels:
            raise UsageError(
                f"{where} has the label '{name}', which train.jsonl does not have; it has "
                f"{', '.join(self.labels[:20])}"
            )
        return self.labels.index(name)

    def build_items(self, examples: Sequence[Example], rows: Rows) -> list[Item]:
        """Return examples as the encoder reads them."""
        raise NotImplementedError

    def load_dataset(self, split: str, combine: bool = False, **unused: Any) -> None:
        """Load SPLIT.jsonl; raise UsageError if fairseq would append SPLIT1.jsonl."""
        further = Path(self.cfg.data) / f"{split}1.jsonl"
        if combine and further.exists():
            raise UsageError(
                f"{further} would not be read, since the examples of {split} are those of one "
                f"file; append them to {split}.jsonl, or give the file another name"
            )
        examples, rows = self.load_examples(split), self.build_rows()
        self.datasets[split] = self.build_dataset(examples, rows)
        logger.info("Loaded %s with #samples: %d", split, len(examples))
        if rows.lost:
            logger.info("%s: %s", split, rows.report(len(examples)))

    def build_rows(self) -> Rows:
        """Return a builder of rows for this encoder."""
        return Rows(self.source_dictionary, self.room, self.separators, self.cfg.strict)

    def build_dataset(self, examples: Sequence[Example], rows: Rows) -> LabelledDataset:
        """Return examples as a data set."""
        check_lengths(examples)
        items, pad = self.build_items(examples, rows), self.source_dictionary.pad()
        return LabelledDataset(items, pad=pad, segments=self.segments > 1, seed=self.cfg.seed)

    def get_batch_iterator(
        self, dataset: Any, max_tokens: int | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Return batches; raise UsageError if an example has more tokens than a batch may have."""
        most = max(range(len(dataset)), key=dataset.num_tokens)
        if max_tokens and dataset.num_tokens(most) > max_tokens:
            items = getattr(dataset, "dataset", dataset).items  # Annotated wraps a data set
            raise UsageError(
                f"{items[most].example.where} has {dataset.num_tokens(most)} tokens in all "
                f"its rows, and --max-tokens is {max_tokens}; give as many"
            )
        return super().get_batch_iterator(dataset, max_tokens, *args, **kwargs)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the encoder, give it word vectors, attach the head and freeze what is frozen."""
        model = super().build_model(cfg, from_checkpoint)
        if not hasattr(model, "attach"):
            raise UsageError(f"--task {self.cfg._name} needs an encoder of ours, like roberta_una")
        if not (from_checkpoint or self.pretrained):
            word_vectors.begin_embeddings(model, self.cfg, self.source_dictionary)
        segments = getattr(model.args, "segments", 0)
        if not from_checkpoint and segments != self.segments:
            self._check_segments(segments)
        if not (from_checkpoint or self.pretrained):
            self._set_form(vars(model.args))
        model.attach(self.build_head(model.args))
        if not from_checkpoint:
            task_heads.check_pooler(model.task_head, model.args)
        if self.cfg.freeze_encoder:
            model.encoder.requires_grad_(False)
        return model

    def _check_segments(self, segments: int) -> None:
        """Raise UsageError for an encoder with other segments, unless it is new."""
        if self.pretrained or segments == 1:
            raise UsageError(
                f"--segments is {segments}, and must be 0 or 2, and that of the encoder which "
                "training starts from; leave it out"
            )

    def build_criterion(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the criterion; raise UsageError for the criterion of another task."""
        name = str(cfg._name)
        own = self.cfg._name
        # some criterions are registered under fairseq's names
        if not name.startswith((own, "sentence_prediction_", "sentence_ranking_")):
            raise UsageError(f"--criterion {name} is not for --task {own}; give --criterion {own}")
        return super().build_criterion(cfg, from_checkpoint)

    def build_head(self, args: Any) -> nn.Module:
        """Return the head, for an encoder with these options."""
        raise NotImplementedError

    def read_answers(self, scores: Tensor, batch: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return what scores say about each item of a batch, as JSON objects."""
        raise NotImplementedError

    def max_positions(self) -> int:
        """Return the number of tokens that a row has at most."""
        return self.room

    @property
    def source_dictionary(self) -> Dictionary:
        """The dictionary of the vocabulary."""
        return self.vocabulary.dictionary

    def write_words(self) -> dict[str, Any] | None:
        """Return the vocabulary as a checkpoint keeps it, or None before it is known."""
        return self.vocabulary.state() if hasattr(self, "vocabulary") else None

    def read_words(self, kept: dict[str, Any]) -> None:
        """Take the vocabulary that a checkpoint keeps."""
        self.vocabulary = Vocabulary.from_state(kept)

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise UsageError for the state of a training on other data, or with other options."""
        words = state.get("vocabulary") or {}
        counts = {"counts": self.source_dictionary.count}  # not in older checkpoints
        super().check_state({**state, "vocabulary": {**counts, **words}})
