"""A made-up folder of questions about pictures, as scripts/prepare_vqa.sh writes it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fairseq.models import MODEL_DATACLASS_REGISTRY
from omegaconf import DictConfig, OmegaConf

WIDTH = 6
VIEWS = ("first", "second", "third")
ANSWERS = ["no", "yes", "red", "blue", "2"]
QUESTIONS = [
    ("is it red", "yes/no", {"yes": 1.0, "no": 0.3}),
    ("how many circles are there", "number", {"2": 0.9, "3": 0.6}),
    ("what colour is the small circle", "other", {"red": 1.0}),
    ("is there a circle", "yes/no", {"no": 1.0}),
    ("what is it", "other", {"a thing": 1.0}),
    ("what colour", "other", {"blue": 0.6, "red": 0.6, "green": 0.3}),
]
PICTURES = 4
SIZES = {"train": 12, "valid": 6, "test": 5}
FLAGS = [
    *"--task vqa --criterion vqa --cpu --num-workers 0 --seed 1 --batch-size 4".split(),
    *"--optimizer adamax --lr 0.01 --clip-norm 0.25 --log-format json --log-interval 1".split(),
    "--no-epoch-checkpoints",
]
SMALL: dict[str, Any] = {
    "encoder_embed_dim": 5,
    "question_hidden_size": 6,
    "question_attention_hidden_size": 4,
    "attention_hidden_size": 8,
    "fusion_hidden_size": 7,
    "answer_text_hidden_size": 3,
    "answer_image_hidden_size": 5,
}
"""Sizes of a tiny model."""

for _name, _size in SMALL.items():
    FLAGS += [f"--{_name.replace('_', '-')}", str(_size)]


def model_options(arch: str, **options: Any) -> DictConfig:
    """The options of a tiny model."""
    cfg = OmegaConf.structured(MODEL_DATACLASS_REGISTRY[arch]())
    cfg.update({"_name": arch, **SMALL, **options})
    return cfg


def make_questions(count: int, annotated: bool = True, first: int = 100) -> list[dict[str, Any]]:
    """Questions number `first` and so on, of pictures 1 to PICTURES."""
    lines = []
    for number in range(count):
        text, kind, answers = QUESTIONS[number % len(QUESTIONS)]
        line = {"question_id": first + number, "image_id": 1 + number % PICTURES, "question": text}
        if annotated:
            line |= {"answers": answers, "answer_type": kind, "question_type": text[:4]}
        lines.append(line)
    return lines


def write_lines(path: Path, lines: Sequence[Any]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")


def write_features(prefix: Path, boxes: Mapping[int, np.ndarray]) -> None:
    """The features of a split in one view."""
    from fairseq_ext.vqa.picture_features import FeatureWriter  # others import this file without it

    width = next(iter(boxes.values())).shape[1]
    with FeatureWriter(prefix, width) as writer:
        for picture, each in boxes.items():
            writer.add(picture, each)
        writer.complete()


def make_boxes(seed: int, width: int = WIDTH, pictures: int = PICTURES) -> dict[int, np.ndarray]:
    """Two to five boxes of each picture."""
    random = np.random.default_rng(seed)
    return {
        picture: random.standard_normal((2 + (picture + seed) % 4, width)).astype(np.float16)
        for picture in range(1, pictures + 1)
    }


def write_data(folder: Path, views: Sequence[str] = VIEWS) -> Path:
    """A whole folder of data; test.jsonl has no answers."""
    folder.mkdir(parents=True, exist_ok=True)
    words = dict.fromkeys(word for text, *_ in QUESTIONS for word in text.split())
    (folder / "dict.txt").write_text("".join(f"{word} 1\n" for word in words))
    (folder / "answers.txt").write_text("".join(f"{answer}\n" for answer in ANSWERS))
    (folder / "views.txt").write_text("".join(f"{view}\n" for view in views))
    for number, (split, count) in enumerate(SIZES.items()):
        write_lines(folder / f"{split}.jsonl", make_questions(count, split != "test"))
        for place, view in enumerate(views):
            write_features(folder / f"{split}.{view}", make_boxes(10 * number + place))
    return folder
