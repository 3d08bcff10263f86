"""A tiny encoder's vocabulary, and tasks of fine-tuning on examples."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY
from omegaconf import OmegaConf
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import BertProcessing

from fairseq_ext.data.rows import Item
from fairseq_ext.data.tokenisers import OF_BERT
from fairseq_ext.tasks.labelled_task import LabelledTask

WORDS = "the a cat dog sat ran ##s ##n ##y ! ? .".split()
HIDDEN = "\u200b"  # a word of which BERT's normaliser leaves nothing


def write_vocabulary(folder: Path, words: Sequence[str] = WORDS) -> Path:
    """dict.txt and a WordPiece tokenizer.json, whose numbers are not those of dict.txt."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = {token: number for number, token in enumerate([*reversed(words), *OF_BERT])}
    tokenizer = Tokenizer(WordPiece(numbers, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = BertNormalizer(), BertPreTokenizer()
    ends = [(token, numbers[token]) for token in ("[SEP]", "[CLS]")]
    tokenizer.post_processor = BertProcessing(*ends)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "dict.txt").write_text("".join(f"{word} 0\n" for word in [*words, "<mask>"]))
    return folder


def write_examples(path: Path, examples: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(example) + "\n" for example in examples), "utf-8")
    return path


def build(name: str, folder: Path, begun: bool = True, **options: Any) -> LabelledTask:
    """A task on the examples and the vocabulary in a folder; if not begun, for a checkpoint."""
    cfg = OmegaConf.structured(TASK_DATACLASS_REGISTRY[name]())
    cfg.update({"_name": name, "data": str(folder), "seed": 1, "pretrained": None, **options})
    return TASK_REGISTRY[name].setup_task(cfg, from_checkpoint=not begun)


def task_on(name: str, folder: Path, train: Sequence[Any], **options: Any) -> LabelledTask:
    """A task on these examples, as train.jsonl of a folder."""
    write_vocabulary(folder)
    write_examples(folder / "train.jsonl", train)
    return build(name, folder, **options)


def items_of(task: LabelledTask, split: str = "train") -> Sequence[Item]:
    task.load_dataset(split)
    return task.dataset(split).items


def batch_of(task: LabelledTask, split: str = "train") -> dict[str, Any]:
    """All of a split, in its order."""
    task.load_dataset(split)
    data = task.dataset(split)
    return data.collater([data[index] for index in range(len(data))])


def shown(task: LabelledTask, tokens: Sequence[int]) -> str:
    return " ".join(task.source_dictionary[int(token)] for token in tokens)


def rows_of(task: LabelledTask, item: Item) -> list[str]:
    return [shown(task, row.tokens) for row in item.rows]
