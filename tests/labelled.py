"""A tiny encoder's vocabulary; tasks of fine-tuning on examples, and models for them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq.models import MODEL_DATACLASS_REGISTRY
from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY
from omegaconf import OmegaConf
from saved_state import save_state
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import BertProcessing

from fairseq_ext.data.rows import Item
from fairseq_ext.data.tokenisers import OF_BERT
from fairseq_ext.data.vocabulary import digest
from fairseq_ext.models.pretrained import DIGEST
from fairseq_ext.tasks.labelled_task import LabelledTask

WORDS = "the a cat dog sat ran ##s ##n ##y ! ? .".split()
HIDDEN = "\u200b"  # a word of which BERT's normaliser leaves nothing
ORDERED = [
    {"text": text, "label": label}
    for label, texts in {
        "cat": ("the cat sat !", "a dog ran the cat", "the cat ran ."),
        "dog": ("the dog sat !", "a cat ran the dog", "the dog ran ."),
    }.items()
    for text in texts
]
CLASSIFY = [
    *("--task sentence_classification --criterion sentence_classification --cpu").split(),
    *"--num-workers 0 --seed 1 --optimizer adam --lr 0.01 --batch-size 3 --pooling max".split(),
    *"--log-format json --log-interval 1 --no-epoch-checkpoints".split(),
]


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
    of_fairseq = {"seed": 1, "pretrained": None, "train_subset": "train"}
    cfg.update({"_name": name, "data": str(folder), **of_fairseq, **options})
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


def write_encoder(path, positions=24, segments=0, words=WORDS, known=True):
    """Write a checkpoint of what a task reads of one; some do not know their words."""
    symbols = ["<s>", "<pad>", "</s>", "<unk>", *words, "<mask>"]
    rows = {"tokens": len(symbols), "positions": positions + 2, "segments": segments}
    weights = {f"encoder.embed_{name}.weight": torch.zeros(n, 1) for name, n in rows.items()}
    return save_state(path, {}, weights, extra_state={DIGEST: digest(symbols)} if known else {})


def build_model(task, arch, **options):
    torch.manual_seed(1)
    cfg = OmegaConf.structured(MODEL_DATACLASS_REGISTRY[arch]())
    cfg.update({"_name": arch, "encoder_embed_dim": 12, **options})
    return task.build_model(cfg)
