"""The base class of tasks whose checkpoints keep what a model needs of its data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Optional, Self

from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import TASK_DATACLASS_REGISTRY, FairseqTask
from omegaconf import II

from fairseq_ext.attention.options import Rule, check_ranges, check_rules, option, read_rules
from fairseq_ext.errors import UsageError
from fairseq_ext.models.config import as_mapping, help_from_docstring

LONGEST = 60
"""Characters of a value that an error shows."""


@dataclass
@help_from_docstring
class KeptConfig(FairseqDataclass):
    """Options that such tasks share; the last five repeat options of fairseq-train.

    Attributes:
        word_vectors: file in GloVe's text form, plain or .gz, whose vectors embeddings begin with
    """

    word_vectors: Optional[str] = option(
        None,
        excludes=Rule(
            "pretrained",
            "{one} is for an encoder trained from scratch, and --finetune-from-model gives a "
            "trained one; leave one of them out",
        ),
    )
    seed: int = II("common.seed")
    save_dir: str = II("checkpoint.save_dir")
    restore_file: str = II("checkpoint.restore_file")
    train_subset: str = II("dataset.train_subset")
    pretrained: Optional[str] = II("checkpoint.finetune_from_model")


class KeptTask(FairseqTask):
    """A task that needs no data where a checkpoint has its state.

    Attributes:
        KEPT: attributes that checkpoints keep.
        SETTINGS: options that decide what equal parameters compute.
        NAMES: descriptions of these attributes and of WORDS, for errors.
        WORDS: the key under which checkpoints keep `write_words`.
    """

    KEPT: ClassVar[tuple[str, ...]]
    SETTINGS: ClassVar[tuple[str, ...]] = ()
    NAMES: ClassVar[Mapping[str, str]] = {}
    WORDS: ClassVar[str]

    @classmethod
    def setup_task(cls, cfg: Any, from_checkpoint: bool = False, **unused: Any) -> Self:
        """Build the task. It reads its data unless a checkpoint holds what it needs of them."""
        task = cls(cfg)
        if not from_checkpoint:
            config = TASK_DATACLASS_REGISTRY[cfg._name]
            check_ranges(config, cfg)
            check_rules(as_mapping(cfg), read_rules(config))
            task.begin()
        return task

    def begin(self) -> None:
        """Read what a training starts from. Raise UsageError if it cannot start from that."""
        raise NotImplementedError

    def write_words(self) -> Any:
        """Return the words as a checkpoint keeps them, or None before they are known."""
        raise NotImplementedError

    def read_words(self, kept: Any) -> None:
        """Take the words that a checkpoint keeps."""
        raise NotImplementedError

    @property
    def source_dictionary(self) -> Dictionary:
        """The dictionary of the words."""
        raise NotImplementedError

    @property
    def target_dictionary(self) -> Dictionary:
        """The same dictionary."""
        return self.source_dictionary

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of the task."""
        kept = {name: getattr(self, name) for name in self.KEPT}
        return {**super().state_dict(), **kept, self.WORDS: self.write_words()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take all from a checkpoint, or, if begun, refuse one of other data or options."""
        names = (self.WORDS, *self.KEPT)
        super().load_state_dict({key: x for key, x in state.items() if key not in names})
        if self.write_words() is not None:
            self.check_state(state)
            return
        if self.WORDS not in state:
            raise UsageError(
                f"the checkpoint is not of --task {self.cfg._name}: it has no {self.WORDS}"
            )
        self.read_words(state[self.WORDS])
        for name in self.KEPT:
            setattr(self, name, state[name])

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise UsageError for the state of a training on other data, or with other options."""
        own = self.state_dict()
        for name in (self.WORDS, *self.KEPT):
            if state.get(name) != own[name]:
                raise UsageError(
                    f"the checkpoint was trained with other {self.NAMES.get(name, name)} than now "
                    f"({_show_difference(state.get(name), own[name])}); go on with the same, or "
                    "begin in another --save-dir"
                )

    def check_settings(self, saved: Mapping[str, Any]) -> None:
        """Raise UsageError for a training with other SETTINGS; older ones may lack some."""
        for name in self.SETTINGS:
            own = str(getattr(self.cfg, name))
            if (value := str(saved.get(name, own))) != own:
                raise UsageError(
                    f"the checkpoint was trained with --{name.replace('_', '-')} {value}, which is "
                    f"now {own}; go on with the same, or begin in another --save-dir"
                )


def _show_difference(saved: Any, current: Any) -> str:
    """Return the first entries that differ between two values."""
    if isinstance(saved, Mapping) and isinstance(current, Mapping):
        names = {**saved, **current}
        name = next(name for name in names if saved.get(name) != current.get(name))
        saved, current = saved.get(name), current.get(name)
    if isinstance(saved, list | tuple) and isinstance(current, Sequence):
        pairs = zip([*saved, "nothing"], [*current, "nothing"], strict=False)
        saved, current = next((pair for pair in pairs if pair[0] != pair[1]), (saved, current))
    return f"{str(saved)[:LONGEST]}, now {str(current)[:LONGEST]}"
