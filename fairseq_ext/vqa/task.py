"""The task "vqa": questions about pictures, whose boxes detectors have found."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from fairseq.data import Dictionary
from fairseq.models import MODEL_REGISTRY
from fairseq.tasks import register_task
from omegaconf import MISSING

from fairseq_ext.attention.options import option, whole
from fairseq_ext.data.vocabulary import build_dictionary
from fairseq_ext.errors import UsageError
from fairseq_ext.models import word_vectors
from fairseq_ext.models.config import help_from_docstring
from fairseq_ext.tasks.kept_state import KeptConfig, KeptTask
from fairseq_ext.vqa.models import VqaModel
from fairseq_ext.vqa.picture_features import PictureFeatures
from fairseq_ext.vqa.question_batches import QuestionDataset
from fairseq_ext.vqa.questions import AGAIN, Questions, read_names

logger = logging.getLogger(__name__)


@dataclass
@help_from_docstring
class VqaConfig(KeptConfig):
    """Options of "vqa".

    Attributes:
        data: folder that scripts/prepare_vqa.sh made
        views: names of detectors, the primary one first, separated by commas (default: all those of
            views.txt; an architecture with one view reads the first)
        max_boxes: boxes that are read of a picture in each view, the first ones
        max_words: words that are read of a question (Pythia's number)
    """

    data: str = MISSING
    views: Optional[str] = None
    max_boxes: int = option(100, whole("[1, 1000000]", "a number of boxes of a picture"))
    max_words: int = option(14, whole("[1, 1000000]", "a number of words of a question"))


@register_task("vqa", dataclass=VqaConfig)
class VqaTask(KeptTask):
    """Visual question answering, as classification of answers.

    Attributes:
        dictionary: of the words of questions.
        answers: the answers that a model may give, in order.
        views: names of the detectors that the model reads, the primary one first.
        width: of the features of a box.
        model_options: options of the model that its parameters do not show.
    """

    KEPT = ("answers", "views", "width", "max_boxes", "max_words", "model_options")
    WORDS = "symbols"
    NAMES = {
        "symbols": "words (dict.txt)",
        "answers": "answers (answers.txt)",
        "views": "detectors (views.txt, or --views)",
        "width": "widths of features",
        "max_words": "--max-words",
        "max_boxes": "--max-boxes",
        "model_options": "options of multi-view attention",
    }
    dictionary: Dictionary

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self.answers: list[str] = []
        self.views: list[str] = []
        self.width = 0
        self.max_boxes, self.max_words = cfg.max_boxes, cfg.max_words
        self.model_options: Mapping[str, Any] = {}

    @property
    def folder(self) -> Path:
        """The folder of data."""
        return Path(self.cfg.data)

    def begin(self) -> None:
        """Read what a training starts from. Raise UsageError if it cannot start from that."""
        self.dictionary = self._read_dictionary()
        self.answers = read_names(self.folder / "answers.txt")
        self.views = self._choose_views()

    def _read_dictionary(self) -> Dictionary:
        return Dictionary.load(str(self.folder / "dict.txt"))

    def _choose_views(self) -> list[str]:
        """Return the names of the detectors to read; raise UsageError if one is not there."""
        names = read_names(self.folder / "views.txt")
        if self.cfg.views is None:
            return names
        chosen = [name.strip() for name in self.cfg.views.split(",")]
        unknown = [name for name in chosen if name not in names]
        if unknown or len({*chosen}) < len(chosen):
            raise UsageError(
                f"--views is {self.cfg.views}; give names of detectors, each once, of "
                f"{self.folder}/views.txt, which has {', '.join(names)}"
            )
        return chosen

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build a model, which decides how many views are read."""
        kind = MODEL_REGISTRY.get(cfg._name)
        if kind is None or not issubclass(kind, VqaModel):
            raise UsageError(
                f"--arch {cfg._name} does not answer questions about pictures; give --arch "
                "vqa_pythia, vqa_concat or vqa_multi_view_{una,dna,hna}"
            )
        if not from_checkpoint:
            self._fit_views(cfg._name, kind.one_view)
            self.width = self._read_width()
        model = super().build_model(cfg, from_checkpoint)
        if not from_checkpoint:
            self.model_options = model.describe()
            word_vectors.begin_embeddings(model, self.cfg, self.dictionary)
        return model

    def _fit_views(self, arch: str, one_view: bool) -> None:
        """Leave the views that an architecture reads; raise UsageError if it needs others."""
        if not one_view and len(self.views) < 2:
            raise UsageError(
                f"--arch {arch} needs two detectors or more, and there is {self.views[0]} alone; "
                "give --arch vqa_pythia, or data with more detectors"
            )
        if one_view and self.cfg.views and len(self.views) > 1:
            raise UsageError(
                f"--arch {arch} reads one detector, and --views is {self.cfg.views}; give one name"
            )
        self.views = self.views[:1] if one_view else self.views

    def _read_width(self) -> int:
        """Return the width of features; raise UsageError if that of a view is another one."""
        widths = {view: self._open_view("train", view).width for view in self.views}
        if len({*widths.values()}) > 1:
            listed = ", ".join(f"{view} has {width}" for view, width in widths.items())
            raise UsageError(
                f"the features of {self.folder} have different widths ({listed}), and views are "
                "combined box by box; give --views of one width"
            )
        return widths[self.views[0]]

    def _open_view(self, split: str, view: str) -> PictureFeatures:
        return PictureFeatures(self.folder / f"{split}.{view}")

    def build_criterion(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the criterion; raise UsageError for the criterion of another task."""
        if cfg._name != "vqa":
            raise UsageError(f"--criterion {cfg._name} is not for --task vqa; give --criterion vqa")
        return super().build_criterion(cfg, from_checkpoint)

    def load_dataset(self, split: str, combine: bool = False, **unused: Any) -> None:
        """Load a split for training or validation; raise UsageError if it lacks answers."""
        self.datasets[split] = self.read_split(split, annotated=True)
        logger.info("Loaded %s with #samples: %d", split, len(self.datasets[split]))

    def read_split(self, split: str, annotated: bool) -> QuestionDataset:
        """Return the questions of a split with their boxes.

        Args:
            annotated: they need to have answers.

        Raises:
            UsageError: a file is missing or malformed, or is not what the model was trained on.
        """
        self._check_folder()
        answers = {answer: number for number, answer in enumerate(self.answers)}
        path, words = self.folder / f"{split}.jsonl", self.dictionary
        questions = Questions(path, words, answers, max_words=self.max_words, annotated=annotated)
        views = [self._open_view(split, view) for view in self.views]
        for view in views:
            if view.width != self.width:
                raise UsageError(
                    f"{view.prefix}.npy has boxes of {view.width} features, and the model reads "
                    f"{self.width}; give features of the same detector"
                )
        return QuestionDataset(
            questions,
            views,
            answers=len(answers),
            max_boxes=self.max_boxes,
            pad=words.pad(),
            seed=self.cfg.seed,
        )

    def _check_folder(self) -> None:
        """Raise UsageError if the folder has other words or answers than the model."""
        if not self.folder.is_dir():
            raise UsageError(f"there is no folder {self.folder}; give the data by --data")
        pairs = {
            "answers": (read_names(self.folder / "answers.txt"), self.answers),
            "symbols": (self._read_dictionary().symbols, self.dictionary.symbols),
        }
        for name, (current, own) in pairs.items():
            if current != own:
                raise UsageError(
                    f"{self.folder} has other {self.NAMES[name]} than the data that the model was "
                    f"trained on; {AGAIN}, which takes those of another folder"
                )

    def get_batch_iterator(
        self, dataset: Any, max_tokens: int | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Return batches; raise UsageError if a picture has more boxes than a batch may have."""
        most = int(dataset.sizes.max())
        if max_tokens and most > max_tokens:
            raise UsageError(
                f"--max-tokens is {max_tokens}, and a picture of {dataset.questions.path} has "
                f"{most} boxes in all views; give that number or more, or a smaller --max-boxes"
            )
        return super().get_batch_iterator(dataset, max_tokens, *args, **kwargs)

    def max_positions(self) -> None:
        """Return None: there is no limit."""
        return

    @property
    def source_dictionary(self) -> Dictionary:
        """The dictionary of questions."""
        return self.dictionary

    def write_words(self) -> list[str] | None:
        """Return the symbols of the dictionary, or None before they are known."""
        return self.dictionary.symbols if hasattr(self, "dictionary") else None

    def read_words(self, kept: list[str]) -> None:
        """Take the symbols that a checkpoint keeps."""
        self.dictionary = build_dictionary(kept)
