"""A tiny release of VQA-v2 and features of its pictures, in the forms that are published."""

import base64
import json
from pathlib import Path

import numpy as np

PICTURES = {"train2014": range(1, 9), "val2014": range(42, 52), "test2015": range(31, 34)}
WIDTH = 4
QUESTIONS = [  # and the answers of ten annotators, the usual one first
    ("What color is the dog's hat?", ["Red."] * 6 + ["blue"] * 3 + ["a hat"]),
    ("Is it red, or blue?", ["yes"] * 10),
    ("How many dogs?", ["two"] * 4 + ["2"] * 3 + ["none"] * 2 + ["many dogs"]),
]


def write_json(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), "utf-8")
    return path


def make_questions(part: str) -> list[dict]:
    return [
        {"question_id": 10 * image + number, "image_id": image, "question": text}
        for image in PICTURES[part]
        for number, (text, _) in enumerate(QUESTIONS)
    ]


def make_annotations(part: str) -> list[dict]:
    return [
        {
            "question_id": 10 * image + number,
            "image_id": image,
            "question_type": text.split()[0].lower(),
            "answer_type": "other",
            "multiple_choice_answer": answers[0],
            "answers": [
                {"answer": answer, "answer_id": place, "answer_confidence": "yes"}
                for place, answer in enumerate(answers, 1)
            ],
        }
        for image in PICTURES[part]
        for number, (text, answers) in enumerate(QUESTIONS)
    ]


def questions_file(folder: Path, part: str) -> Path:
    return folder / f"v2_OpenEnded_mscoco_{part}_questions.json"


def annotations_file(folder: Path, part: str) -> Path:
    return folder / f"v2_mscoco_{part}_annotations.json"


def write_release(folder: Path) -> Path:
    """Write questions of all parts, and annotations of those that have them."""
    for part in PICTURES:
        write_json(questions_file(folder, part), {"questions": make_questions(part)})
        if part != "test2015":
            write_json(annotations_file(folder, part), {"annotations": make_annotations(part)})
    return folder


def all_pictures() -> list[int]:
    return [image for images in PICTURES.values() for image in images]


def make_boxes(seed: int, width: int = WIDTH) -> dict[int, np.ndarray]:
    """Return the boxes of all pictures [N, C] float32, N from 2 to 5, in numbers of 16 bits."""
    random = np.random.default_rng(seed)
    return {
        image: random.normal(size=(random.integers(2, 6), width)).astype("f2").astype("f4")
        for image in all_pictures()
    }


def write_numpy(folder: Path, boxes: dict[int, np.ndarray]) -> Path:
    """Write a file for each picture, named as COCO names them, in a folder for each part."""
    for image, features in boxes.items():
        part = next(part for part, images in PICTURES.items() if image in images)
        path = folder / part / f"COCO_{part}_{image:012}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, features)
    return folder


def tsv_line(image: int, features: np.ndarray) -> bytes:
    corners = np.zeros((len(features), 4), "<f4")
    numbers = [image, 640, 480, len(features)]
    fields = [base64.b64encode(x.astype("<f4").tobytes()) for x in (corners, features)]
    return b"\t".join([*(str(n).encode() for n in numbers), *fields]) + b"\n"


def write_tsv(path: Path, boxes: dict[int, np.ndarray]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(tsv_line(*entry) for entry in boxes.items()))
    return path


def write_hdf5(path: Path, boxes: dict[int, np.ndarray], form: str = "pictures") -> Path:
    """Write HDF5 with a data set for each picture, or `groups`, a `table`, or a `list` of boxes."""
    import h5py

    path.parent.mkdir(parents=True, exist_ok=True)
    counts = [len(features) for features in boxes.values()]
    with h5py.File(path, "w") as file:
        if form in ("pictures", "groups"):
            for image, features in boxes.items():
                file[str(image) + "/features" * (form == "groups")] = features
            return path
        file["image_ids"] = list(boxes)
        if form == "table":
            rows = [np.pad(each, ((0, max(counts) - len(each)), (0, 0))) for each in boxes.values()]
            file["features"], file["num_boxes"] = np.stack(rows), counts
        else:
            ends = np.cumsum(counts)
            file["image_features"] = np.concatenate(list(boxes.values()))
            file["pos_boxes"] = np.stack([ends - counts, ends], 1)
    return path
