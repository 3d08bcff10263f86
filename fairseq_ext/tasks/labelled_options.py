"""The options that all tasks on labelled text have."""

from dataclasses import dataclass
from typing import Optional

from fairseq.dataclass import FairseqDataclass
from omegaconf import II, MISSING

from fairseq_ext.models.config import described


@dataclass
class LabelledConfig(FairseqDataclass):
    """Options of tasks on labelled text; the last four repeat options of fairseq-train."""

    data: str = described(MISSING, "folder with train.jsonl, valid.jsonl, ...")
    vocabulary: Optional[str] = described(
        None, "folder with dict.txt and the tokeniser of the encoder (default: the data's)"
    )
    tokens_per_sample: Optional[int] = described(
        None,
        "tokens of a row, at most; longer ones lose their end (default: the encoder's positions)",
    )
    strict: bool = described(False, "refuse what is too long")
    folds: int = described(
        0, "cross-validation in so many parts of train.jsonl; there needs to be no valid.jsonl"
    )
    fold: int = described(1, "the part that is held out, from 1")
    freeze_encoder: bool = described(False, "train the head alone (Jia's 'pretrain')")
    word_vectors: Optional[str] = described(
        None, "file in GloVe's text form, plain or .gz, whose vectors embeddings begin with"
    )
    seed: int = II("common.seed")
    save_dir: str = II("checkpoint.save_dir")
    restore_file: str = II("checkpoint.restore_file")
    pretrained: Optional[str] = II("checkpoint.finetune_from_model")
