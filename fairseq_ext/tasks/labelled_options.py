"""The options of tasks on labelled text."""

from collections.abc import Iterable
from dataclasses import field, make_dataclass
from typing import Any, Optional

from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import register_task
from omegaconf import II, MISSING

from fairseq_ext.models.config import Option, option

COMMON: list[Option] = [
    option("data", str, MISSING, "folder with train.jsonl, valid.jsonl, ..."),
    option(
        "vocabulary",
        Optional[str],
        None,
        "folder with dict.txt and the tokeniser of the encoder (default: the data's)",
    ),
    option(
        "tokens_per_sample",
        Optional[int],
        None,
        "tokens of a row, at most; longer ones lose their end (default: the encoder's positions)",
    ),
    option("strict", bool, False, "refuse what is too long"),
    option(
        "folds",
        int,
        0,
        "cross-validation in so many parts of train.jsonl; there needs to be no valid.jsonl",
    ),
    option("fold", int, 1, "the part that is held out, from 1"),
    option("freeze_encoder", bool, False, "train the head alone (Jia's 'pretrain')"),
    option(
        "word_vectors",
        Optional[str],
        None,
        "file in GloVe's text form, plain or .gz, whose vectors embeddings begin with",
    ),
    ("seed", int, field(default=II("common.seed"))),
    ("save_dir", str, field(default=II("checkpoint.save_dir"))),
    ("restore_file", str, field(default=II("checkpoint.restore_file"))),
    ("pretrained", Optional[str], field(default=II("checkpoint.finetune_from_model"))),
]


def register(name: str, options: Iterable[Option] = ()) -> Any:
    """Register a task with the common options and its own."""
    class_name = "".join(part.capitalize() for part in name.split("_")) + "Config"
    config = make_dataclass(class_name, [*COMMON, *options], bases=(FairseqDataclass,))
    return register_task(name, dataclass=config)
