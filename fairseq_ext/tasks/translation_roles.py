"""The task "translation_roles": translation of parsed sentences."""

from pathlib import Path
from typing import Any

from fairseq import utils
from fairseq.data import data_utils
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from fairseq_ext.data.annotations import Annotated, Annotations
from fairseq_ext.errors import UsageError


@register_task("translation_roles", dataclass=TranslationConfig)
class TranslationRolesTask(TranslationTask):
    """fairseq's translation, with annotations of the source, made by `fairseq-ext annotate`."""

    annotated = True

    def load_dataset(self, split: str, epoch: int = 1, **options: Any) -> None:
        """Load a split and its annotations; raise UsageError if they do not fit each other."""
        super().load_dataset(split, epoch, **options)
        source, target = self.cfg.source_lang, self.cfg.target_lang
        folders = utils.split_paths(self.cfg.data)
        folder = folders[(epoch - 1) % len(folders) if split == self.cfg.train_subset else 0]
        pairs = f"{source}-{target}", f"{target}-{source}"
        texts = [f"{folder}/{split}.{pair}.{source}" for pair in pairs]
        text = next((text for text in texts if Path(f"{text}.idx").exists()), None)
        if text is None:
            raise UsageError(
                f"{texts[0]}.idx is not there, and --task translation_roles reads binarised text; "
                "give a folder of fairseq-preprocess"
            )
        sentences = data_utils.load_indexed_dataset(text, self.src_dict)
        path = Path(f"{text}.annotations")
        records = Annotations.open(path, self.src_dict.symbols, sentences.sizes - 1)
        if len(self.datasets[split]) != len(records):
            raise UsageError(
                f"{path} is of {len(records)} sentences, and {split} has "
                f"{len(self.datasets[split])} (fairseq joins {split}, {split}1, ...); annotate one "
                "split with all of them"
            )
        self.datasets[split] = Annotated(self.datasets[split], records, self.src_dict.pad())

    def build_dataset_for_inference(self, *args: Any, **kwargs: Any) -> Any:
        """Raise UsageError: typed sentences are not parsed."""
        raise UsageError(
            "sentences that are typed in are not parsed, which --task translation_roles needs; "
            "give a split with annotations, or to fairseq-interactive --task translation and "
            "--model-overrides \"{'encoder_roles': '...'}\" with none for dependency and major"
        )
