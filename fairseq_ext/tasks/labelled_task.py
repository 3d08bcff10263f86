"""What tasks on labelled text share: files, vocabulary, folds, and the encoder they start from."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from fairseq.data import Dictionary
from fairseq.tasks import FairseqTask
from torch import Tensor, nn

from fairseq_ext.data.annotations import Annotated
from fairseq_ext.data.examples import Example, Field, in_fold, read
from fairseq_ext.data.labelled_dataset import Item, LabelledDataset
from fairseq_ext.data.rows import Rows
from fairseq_ext.data.vocabulary import Vocabulary
from fairseq_ext.errors import UsageError
from fairseq_ext.models.pretrained import check_dictionary, read_model_options
from fairseq_ext.models.roberta import POSITIONS
from fairseq_ext.models.task_heads import POOLER, Mlp
from fairseq_ext.models.word_vectors import load_vectors

logger = logging.getLogger(__name__)

FOLDED = ("train", "valid")
ADVERSARIAL = ("sentence_prediction_", "sentence_ranking_")  # fairseq's names, of our criterions
LAST = "checkpoint_last.pt"  # fairseq's --restore-file, which lies in --save-dir
NAMES = {
    "room": "--tokens-per-sample",
    "separators": "separators between sentences",
    "part": "--folds and --fold",
}


class LabelledTask(FairseqTask):
    """A task on examples that have been labelled. Each kind says what an example is.

    Attributes:
        fields: the keys of an example.
        vocabulary, labels, room, separators, segments, part: how text becomes rows, the classes in
            order, and the number of folds with the one held out; kept in checkpoints, so that a
            model can be used without its data, and a training goes on with the same.
        pretrained: the checkpoint that a model to be built takes its sizes from.

    Raises:
        UsageError: data, vocabulary or folds are not there, or do not fit.
    """

    fields: ClassVar[Mapping[str, Field]]
    KEPT = ("labels", "room", "separators", "segments", "part")

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self.pretrained: str | None = None
        self.vocabulary: Vocabulary | None = None
        self.labels: list[str] = []
        self.room, self.separators, self.segments = POSITIONS, 2, 0
        self.part = [cfg.folds, cfg.fold]
        self._read: dict[str, list[Example]] = {}

    @classmethod
    def setup_task(cls, cfg: Any, from_checkpoint: bool = False, **unused: Any) -> "LabelledTask":
        task = cls(cfg)
        if not from_checkpoint:  # else the checkpoint says it all
            task.begin()
        return task

    def begin(self) -> None:
        """Read what training starts from, and refuse what it cannot start from."""
        cfg = self.cfg
        whole = not cfg.folds and cfg.fold == 1
        if not (whole or cfg.folds >= 2 and 1 <= cfg.fold <= cfg.folds):
            raise UsageError(
                f"--fold is {cfg.fold} of --folds {cfg.folds}; give 2 or more, and one of them"
            )
        if cfg.pretrained and not Path(cfg.pretrained).is_file():
            raise UsageError(f"--finetune-from-model is {cfg.pretrained}, which is not there")
        self.pretrained, encoder = cfg.pretrained, read_model_options(cfg.pretrained)
        positions = encoder.get("max_positions")
        self.vocabulary = Vocabulary.load(Path(cfg.vocabulary or cfg.data))
        self._check_word_vectors()
        self.room = cfg.tokens_per_sample
        if self.room is None:
            self.room = positions or POSITIONS
        self._set_segments(encoder.get("segments") or 0)
        self._check_encoder(encoder, positions)
        check_dictionary(encoder, cfg.pretrained, self.source_dictionary)
        self.labels = self.labels_of(self._file("train"))  # of all folds

    def _check_encoder(self, encoder: Mapping[str, Any], positions: int | None) -> None:
        """Of one that starts from scratch, the model decides how many positions it has."""
        if self.room < 8:
            raise UsageError(f"--tokens-per-sample is {self.room}; give 8 or more")
        if positions and self.room > positions:
            raise UsageError(
                f"--tokens-per-sample is {self.room} and the encoder has {positions} positions; "
                "give no more than that"
            )
        if self.segments == 1:
            raise UsageError(f"{self.cfg.pretrained} has 1 segment; give an encoder with 0 or 2")

    def _set_segments(self, segments: int) -> None:
        self.segments, self.separators = segments, 1 if segments else 2  # as in BERT, in RoBERTa

    def _check_word_vectors(self) -> None:
        if self.cfg.word_vectors and self.cfg.pretrained:
            raise UsageError(
                "--word-vectors are for an encoder trained from scratch, and --finetune-from-model "
                "gives a trained one; leave one of them out"
            )
        if self.cfg.word_vectors and self.vocabulary.by_id:
            raise UsageError(
                "--word-vectors need a dictionary of words, and that of --vocabulary has numbers; "
                "leave them out, or make one by scripts/prepare_task.sh --words"
            )

    # Examples.

    def examples(self, split: str) -> list[Example]:
        """Those of a split."""
        name, places = self.places(split)
        found = self._file(name)
        return [found[place] for place in places]

    def places(self, split: str) -> tuple[str, np.ndarray]:
        """The file of a split, and which of its examples are meant; in cross-validation "train" and
        "valid" are parts of train.jsonl."""
        if not (self.cfg.folds and split in FOLDED):
            return split, np.arange(len(self._file(split)))
        found = self._file("train")
        if len(found) < self.cfg.folds:
            raise UsageError(
                f"{self.cfg.data}/train.jsonl has {len(found)} examples and --folds is "
                f"{self.cfg.folds}; give fewer folds"
            )
        held_out = in_fold(len(found), self.cfg.folds, self.cfg.fold)
        return "train", np.flatnonzero(held_out if split == "valid" else ~held_out)

    def _file(self, name: str) -> list[Example]:
        """What is in NAME.jsonl, read once."""
        if name not in self._read:
            self._read[name] = read(Path(self.cfg.data) / f"{name}.jsonl", self.fields)
        return self._read[name]

    def labels_of(self, examples: Iterable[Example]) -> list[str]:
        """The classes, in order; none if the task has no classes."""
        return []

    def label(self, name: str, where: str) -> int:
        """The number of a class. Raises UsageError if the training part has none of this name."""
        if name not in self.labels:
            raise UsageError(
                f"{where} has the label '{name}', which train.jsonl does not have; it has "
                f"{', '.join(self.labels[:20])}"
            )
        return self.labels.index(name)

    def items(self, examples: Sequence[Example], rows: Rows) -> list[Item]:
        raise NotImplementedError

    def load_dataset(self, split: str, combine: bool = False, **unused: Any) -> None:
        further = Path(self.cfg.data) / f"{split}1.jsonl"
        if combine and further.exists():
            raise UsageError(
                f"{further} would not be read, since the examples of {split} are those of one "
                f"file; append them to {split}.jsonl, or give the file another name"
            )
        examples, rows = self.examples(split), self.rows()
        self.datasets[split] = self.dataset_of(examples, rows)
        logger.info("Loaded %s with #samples: %d", split, len(examples))
        if rows.lost:
            logger.info("%s: %s", split, rows.report(len(examples)))

    def rows(self) -> Rows:
        """What makes rows for this encoder."""
        return Rows(self.source_dictionary, self.room, self.separators, self.cfg.strict)

    def dataset_of(self, examples: Sequence[Example], rows: Rows) -> LabelledDataset:
        items, pad = self.items(examples, rows), self.source_dictionary.pad()
        return LabelledDataset(items, pad=pad, segments=self.segments > 1, seed=self.cfg.seed)

    def get_batch_iterator(
        self,
        dataset: LabelledDataset | Annotated,
        max_tokens: int | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """As in fairseq; raises UsageError if an example has more tokens than a batch may have."""
        most = max(range(len(dataset)), key=dataset.num_tokens)
        if max_tokens and dataset.num_tokens(most) > max_tokens:
            items = getattr(dataset, "dataset", dataset).items
            raise UsageError(
                f"{items[most].example.where} has {dataset.num_tokens(most)} tokens in all "
                f"its rows, and --max-tokens is {max_tokens}; give as many"
            )
        return super().get_batch_iterator(dataset, max_tokens, *args, **kwargs)

    # Model.

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        model = super().build_model(cfg, from_checkpoint)
        if not hasattr(model, "attach"):
            raise UsageError(
                f"--task {self.cfg._name} needs an encoder of ours; use --arch roberta_una, "
                "roberta_dna, roberta_hna or one of their sizes"
            )
        if self.cfg.word_vectors and not (from_checkpoint or self._goes_on()):
            embedding = next(m for n, m in model.named_modules() if n.endswith(".embed_tokens"))
            load_vectors(Path(self.cfg.word_vectors), embedding, self.source_dictionary)
        segments = getattr(model.args, "segments", 0)
        if not from_checkpoint and segments != self.segments:
            self._take_segments(segments)
        model.attach(self.build_head(model.args))
        if not from_checkpoint:
            self._check_head(model)
        if self.cfg.freeze_encoder:
            model.encoder.requires_grad_(False)
        return model

    def _take_segments(self, segments: int) -> None:
        """Of an encoder that starts from scratch, the model decides."""
        if self.pretrained or segments == 1:
            raise UsageError(
                f"--segments is {segments}, and must be 0 or 2, and that of the encoder which "
                "training starts from; leave it out"
            )
        self._set_segments(segments)

    def _check_head(self, model: Any) -> None:
        """Raise UsageError for options of a head that this one is not."""
        if any(isinstance(module, Mlp) for module in model.task_head.modules()):
            return
        if all(getattr(model.args, name, usual) == usual for name, usual in POOLER.items()):
            return
        raise UsageError(
            "--pooler-activation-fn and --spectral-norm-classification-head are of heads of two "
            "layers, and this one has none; leave them out"
        )

    def _goes_on(self) -> bool:
        """Whether a checkpoint is there, with which training will go on."""
        folder = self.cfg.save_dir if self.cfg.restore_file == LAST else "."
        return Path(folder, self.cfg.restore_file).is_file()

    def build_criterion(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """As in fairseq; raises UsageError for the criterion of another task."""
        name = str(cfg._name)
        if not name.startswith((self.cfg._name, *ADVERSARIAL)):
            raise UsageError(
                f"--criterion {name} is not for --task {self.cfg._name}; give --criterion "
                f"{self.cfg._name}"
            )
        return super().build_criterion(cfg, from_checkpoint)

    def build_head(self, args: Any) -> nn.Module:
        """The head, for an encoder with these options."""
        raise NotImplementedError

    def answers(self, scores: Tensor, batch: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What the model says of each item of a batch, in words."""
        raise NotImplementedError

    def max_positions(self) -> int:
        return self.room

    @property
    def source_dictionary(self) -> Dictionary:
        return self.vocabulary.dictionary

    target_dictionary = source_dictionary

    # Checkpoints.

    def state_dict(self) -> dict[str, Any]:
        kept = {name: getattr(self, name) for name in self.KEPT}
        return {**super().state_dict(), **kept, "vocabulary": self.vocabulary.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take all from a checkpoint, or, if begun, refuse one that reads text in another way."""
        names = ("vocabulary", *self.KEPT)
        super().load_state_dict({key: x for key, x in state.items() if key not in names})
        if self.vocabulary is None:
            if "vocabulary" not in state:
                raise UsageError("the checkpoint is not one of fine-tuning: it has no vocabulary")
            self.vocabulary = Vocabulary.from_state(state["vocabulary"])
            for name in self.KEPT:
                setattr(self, name, state[name])
            return
        own = self.state_dict()
        if "counts" not in (state.get("vocabulary") or {}):  # an older one
            del own["vocabulary"]["counts"]
        for name in names:
            if state.get(name) != own[name]:
                raise UsageError(
                    f"the checkpoint was trained with other {NAMES.get(name, name)} than now; go "
                    "on with the same, or begin in another --save-dir"
                )
