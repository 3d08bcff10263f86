"""Preparation of VQA-v2: the official files and features of detectors to what training reads."""

import json
import os
import re
import shutil
import signal
import subprocess
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from files import read_files
from shell import assert_refused, bash, run
from vqa_files import (
    PICTURES,
    QUESTIONS,
    WIDTH,
    all_pictures,
    annotations_file,
    make_annotations,
    make_boxes,
    make_questions,
    questions_file,
    tsv_line,
    write_hdf5,
    write_json,
    write_numpy,
    write_release,
    write_tsv,
)

from fairseq_ext.errors import Unfinished, UsageError
from fairseq_ext.files import read_lines, write_lines
from fairseq_ext.vqa.picture_features import FeatureWriter, PictureFeatures
from fairseq_ext.vqa.prepare import features as vqa_features
from fairseq_ext.vqa.prepare import question_files as vqa_questions
from fairseq_ext.vqa.prepare.feature_views import open_source, parse_views
from fairseq_ext.vqa.prepare.features import Limits
from fairseq_ext.vqa.prepare.release import tokenise_question

LEAST = 4  # occurrences of an answer of the vocabulary
LIMITS = Limits(1, 100)
VALID = {46, 47, 49, 50, 51}  # pictures whose hash is in the share that validates


@pytest.fixture
def release(tmp_path) -> Path:
    return write_release(tmp_path / "official")


def read_questions(release: Path, out: Path, minival: str = "share", least: int = LEAST) -> None:
    vqa_questions.prepare(release, out, minival, least)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in read_lines(path)]


def make_data(tmp_path: Path, release: Path, strict: bool = False, **views: Path) -> Path:
    out = tmp_path / "out"
    read_questions(release, out)
    vqa_features.prepare(out, views, LIMITS, strict)
    return out


# Questions and answers.


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("What color is the dog's hat?", "what color is the dog ' s hat"),
        ("Red, or blue?", "red or blue"),
        ("Is it 3:15 (am)?", "is it 3 : 15 ( am )"),
        ("A t-shirt!?  no.", "a t - shirt ! no ."),
        ("Ä?", "ä"),
        ("?", ""),
    ],
)
def test_words_of_questions(text, words):
    assert tokenise_question(text) == words


def test_questions(tmp_path, release):
    """A line has the question's words and the official accuracy of each answer."""
    read_questions(release, tmp_path / "out")
    raw = tmp_path / "out" / "raw"
    splits = {path.stem: lines(path) for path in raw.glob("*.jsonl")}
    assert {split: {line["image_id"] for line in each} for split, each in splits.items()} == {
        "train": {*PICTURES["train2014"], *PICTURES["val2014"]} - VALID,
        "valid": VALID,
        "test": {*PICTURES["test2015"]},
    }
    assert splits["train"][0] == {
        "question_id": 10,
        "image_id": 1,
        "question": "what color is the dog ' s hat",
        "answers": {"red": 1.0, "blue": 0.9, "hat": 0.3},
        "answer_type": "other",
        "question_type": "what",
    }
    assert splits["train"][2]["answers"] == {"2": 1.0, "0": 0.6, "many dogs": 0.3}
    assert splits["test"][0].keys() == {"question_id", "image_id", "question"}
    words = Counter(word for line in splits["train"] for word in line["question"].split())
    pairs = [line.rsplit(" ", 1) for line in read_lines(tmp_path / "out" / "dict.txt")]
    assert {word: int(count) for word, count in pairs} == words
    assert len(list(read_lines(tmp_path / "out" / "inputs"))) == 5


def test_vocabulary(tmp_path, release):
    """It counts the usual answer of each question of train2014 and val2014, normalised."""
    annotations = make_annotations("train2014")
    for entry, answer in zip(annotations, ["A", "rare", "Zero", "a", "none", "0."], strict=False):
        entry["multiple_choice_answer"] = answer
    write_json(annotations_file(release, "train2014"), {"annotations": annotations})
    read_questions(release, tmp_path / "out", least=2)
    counts = {"yes": 16, "red": 16, "2": 16, "0": 3, "": 2}
    assert list(read_lines(tmp_path / "out" / "answers.txt")) == ["2", "red", "yes", "0", ""]
    read_questions(release, tmp_path / "all", least=1)
    assert {*read_lines(tmp_path / "all" / "answers.txt")} == {*counts, "rare"}


def test_annotations_that_do_not_name_the_usual_answer(tmp_path, release):
    for part in ("train2014", "val2014"):
        annotations = make_annotations(part)
        for entry in annotations:
            del entry["multiple_choice_answer"]
        write_json(annotations_file(release, part), {"annotations": annotations})
    read_questions(release, tmp_path / "out")
    assert list(read_lines(tmp_path / "out" / "answers.txt")) == ["2", "red", "yes"]


def test_accuracy_that_the_vocabulary_reaches():
    items = [
        {"answers": {"red": 1.0, "blue": 0.3}},
        {"answers": {"green": 0.9, "blue": 0.3}},
        {"answers": {"x": 1.0}},
        {"answers": {"blue": 0.6, "red": 0.3}},
    ]
    assert vqa_questions.best_accuracy(items, ["red", "blue"]) == pytest.approx(1.9 / 4)


@pytest.mark.parametrize("form", ["json", "txt", "all"])
def test_questions_that_validate(tmp_path, release, form):
    """Validation has the questions that Pythia's file or a list names, or all of val2014."""
    chosen = [entry for entry in make_questions("val2014") if entry["image_id"] in (43, 44)]
    which = "all"
    if form == "json":
        which = str(write_json(tmp_path / "minival.json", {"questions": chosen}))
    if form == "txt":
        write_lines(tmp_path / "minival.txt", [str(entry["question_id"]) for entry in chosen])
        which = str(tmp_path / "minival.txt")
    read_questions(release, tmp_path / "out", which)
    valid = {line["image_id"] for line in lines(tmp_path / "out" / "raw" / "valid.jsonl")}
    assert valid == ({*PICTURES["val2014"]} if form == "all" else {43, 44})
    train = {line["image_id"] for line in lines(tmp_path / "out" / "raw" / "train.jsonl")}
    assert train == {*PICTURES["train2014"], *PICTURES["val2014"]} - valid


def test_the_share_is_that_of_pythia():
    """22 %, so few pictures that the other ones train."""
    share = sum(map(vqa_questions._is_in_share, range(20_000))) / 20_000
    assert share == pytest.approx(0.22, abs=0.01)


def test_archives_and_compressed_files(tmp_path, release):
    """The official archives are read where the JSON files are not there."""
    read_questions(release, tmp_path / "plain")
    packed = tmp_path / "packed"
    packed.mkdir()
    for number, path in enumerate(sorted(release.iterdir())):
        with zipfile.ZipFile(packed / f"v2_{number}_mscoco.zip", "w") as archive:
            archive.write(path, path.name)
    read_questions(packed, tmp_path / "from_archives")
    for name in ("raw/train.jsonl", "raw/valid.jsonl", "raw/test.jsonl", "answers.txt"):
        one, other = (tmp_path / out / name for out in ("plain", "from_archives"))
        assert one.read_bytes() == other.read_bytes()


def test_a_part_for_testing_with_annotations_or_of_test_dev(tmp_path, release):
    questions_file(release, "test2015").rename(questions_file(release, "test-dev2015"))
    annotations = make_annotations("test2015")
    write_json(annotations_file(release, "test-dev2015"), {"annotations": annotations})
    read_questions(release, tmp_path / "out")
    assert lines(tmp_path / "out" / "raw" / "test.jsonl")[1]["answers"] == {"yes": 1.0}


def test_no_part_for_testing(tmp_path, release):
    questions_file(release, "test2015").unlink()
    read_questions(release, tmp_path / "out")
    assert not (tmp_path / "out" / "raw" / "test.jsonl").exists()


def edit(path: Path, key: str, change) -> None:
    content = json.loads(path.read_text())
    change(content[key])
    write_json(path, content)


def edit_questions(change):
    return lambda folder: edit(questions_file(folder, "train2014"), "questions", change)


def edit_annotations(change):
    return lambda folder: edit(annotations_file(folder, "train2014"), "annotations", change)


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (
            edit_annotations(lambda entries: entries.pop(3)),
            "has no annotation for 1 of the 24 questions of v2_OpenEnded_mscoco_train2014_questions"
            ".json (first 20); give the files of one release",
        ),
        (
            lambda folder: annotations_file(folder, "val2014").unlink(),
            "has no v2_mscoco_val2014_an",
        ),
        (
            lambda folder: questions_file(folder, "train2014").unlink(),
            "no v2_OpenEnded_mscoco_trai",
        ),
        (lambda folder: cut_in_half(questions_file(folder, "train2014")), "it may be cut short"),
        (lambda folder: cut_in_half(annotations_file(folder, "val2014")), "it may be cut short"),
        (
            lambda folder: write_json(questions_file(folder, "train2014"), [1]),
            "is no list of 'questions' with question_id and image_id",
        ),
        (edit_questions(lambda entries: entries.append(entries[0])), "has question 10 twice"),
        (
            edit_questions(lambda entries: entries[0].update(question_id=420)),
            "has no annotation for 1 of",
        ),
        (
            edit_questions(lambda entries: entries[0].update(question_id="10")),
            "question_id and image_id are whole numbers",
        ),
        (edit_questions(lambda entries: entries[0].update(question="?")), "has '?' as question 10"),
        (edit_questions(lambda entries: entries[0].pop("question")), "has None as question 10"),
        (
            edit_annotations(lambda entries: entries[0].update(image_id=2)),
            "question 10 is about picture 1 in",
        ),
        (
            edit_annotations(lambda entries: entries[0].update(answers=[])),
            "as an answer to question",
        ),
        (
            edit_annotations(lambda entries: entries[0]["answers"][0].update(answer=3)),
            "as an answer to question 10",
        ),
    ],
)
def test_official_files_that_are_refused(tmp_path, release, damage, said):
    damage(release)
    with pytest.raises(UsageError, match=re.escape(said)) as refused:
        read_questions(release, tmp_path / "out")
    assert "\n" not in str(refused.value)


def test_a_question_in_two_parts(tmp_path, release):
    twice = make_questions("train2014")[:2]
    write_json(questions_file(release, "test2015"), {"questions": twice})
    with pytest.raises(UsageError, match="question 10 is in two parts"):
        read_questions(release, tmp_path / "out")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("430\n10\n", "has 1 questions that val2014 lacks (first 10)"),
        ("", "has no question; give at least one"),
        ("x\n", "is no list of questions"),
    ],
)
def test_lists_of_questions_that_are_refused(tmp_path, release, content, said):
    path = tmp_path / "minival.txt"
    path.write_text(content)
    with pytest.raises(UsageError, match=re.escape(said)):
        read_questions(release, tmp_path / "out", str(path))


def test_vocabularies_that_are_refused(tmp_path, release):
    with pytest.raises(
        UsageError, match=r"no answer occurs 99 times \(the most usual one 18 times"
    ):
        read_questions(release, tmp_path / "out", least=99)
    annotations = make_annotations("val2014")
    for entry in annotations:
        entry["multiple_choice_answer"] = "x"
        entry["answers"] = [{"answer": f"x{n}", "answer_id": n} for n in range(10)]
    write_json(annotations_file(release, "val2014"), {"annotations": annotations})
    with pytest.raises(UsageError, match="no answer to the 15 questions of valid is among the 4 "):
        read_questions(release, tmp_path / "out")


def test_a_share_without_pictures(tmp_path, release):
    for path, key, entries in (
        (questions_file(release, "val2014"), "questions", make_questions("val2014")),
        (annotations_file(release, "val2014"), "annotations", make_annotations("val2014")),
    ):
        write_json(path, {key: [entry for entry in entries if entry["image_id"] not in VALID]})
    with pytest.raises(UsageError, match="none of the 15 questions of val2014 is about a picture"):
        read_questions(release, tmp_path / "out")


# Features.

FORMS = {
    "numpy": lambda folder, boxes: write_numpy(folder / "npy", boxes),
    "tsv": lambda folder, boxes: write_tsv(folder / "tsv" / "x.tsv.0", boxes).parent,
    "hdf5": lambda folder, boxes: write_hdf5(folder / "h" / "x.h5", boxes),
    "hdf5 groups": lambda folder, boxes: write_hdf5(folder / "x.hdf5", boxes, "groups"),
    "hdf5 table": lambda folder, boxes: write_hdf5(folder / "x.hdf5", boxes, "table"),
    "hdf5 list": lambda folder, boxes: write_hdf5(folder / "x.hdf5", boxes, "list"),
}


def write_form(form: str, folder: Path, boxes: dict[int, np.ndarray]) -> Path:
    if form.startswith("hdf5"):
        pytest.importorskip("h5py")
    return FORMS[form](folder, boxes)


@pytest.mark.parametrize("form", FORMS)
def test_features_of_all_forms(tmp_path, release, form):
    """All pictures of all splits, as they were, in 16 bits."""
    boxes = make_boxes(1)
    source = write_form(form, tmp_path / "features", boxes)
    known = open_source(source)
    assert {image: known.shape(image) for image in known.pictures} == {
        image: each.shape for image, each in boxes.items()
    }
    out = make_data(tmp_path, release, rcnn=source)
    found = {}
    for split in ("train", "valid", "test"):
        features = PictureFeatures(out / f"{split}.rcnn")
        assert {*features} == {line["image_id"] for line in lines(out / f"{split}.jsonl")}
        found |= {image: features[image] for image in features}
    assert found.keys() == boxes.keys()
    for image, expected in boxes.items():
        np.testing.assert_array_equal(found[image].astype("f4"), expected)
    assert list(read_lines(out / "views.txt")) == ["rcnn"]
    assert not (out / "missing.txt").exists()


def test_files_of_several_kinds_in_folders(tmp_path):
    """Further files beside features are left alone; two kinds are refused."""
    boxes = make_boxes(1)
    folder = write_numpy(tmp_path / "npy", boxes)
    np.save(folder / "train2014" / "COCO_train2014_000000000001_info.npy", np.zeros(3))
    (folder / "README.md").write_text("text")
    assert open_source(folder).pictures.keys() == boxes.keys()
    write_tsv(folder / "x.tsv", boxes)
    with pytest.raises(UsageError, match=r"has .npy and .tsv; give a file, or a folder with files"):
        open_source(folder)


def test_more_boxes_than_allowed_are_cut(tmp_path, release, capsys):
    boxes = make_boxes(1)
    source = write_numpy(tmp_path / "npy", boxes)
    out = tmp_path / "out"
    read_questions(release, out)
    vqa_features.prepare(out, {"rcnn": source}, Limits(1, 3), False)
    above = sum(len(each) > 3 for each in boxes.values())
    assert f"{above} pictures have more than 3 and lose the rest" in capsys.readouterr().out
    features = PictureFeatures(out / "train.rcnn")
    for image in features:
        np.testing.assert_array_equal(features[image], boxes[image][:3].astype("f2"))


def test_missing_pictures_are_counted_and_named(tmp_path, release, capsys):
    boxes, others = make_boxes(1), make_boxes(2)
    del boxes[2], others[2], others[3]
    out = make_data(
        tmp_path,
        release,
        a=write_numpy(tmp_path / "a", boxes),
        b=write_numpy(tmp_path / "b", others),
    )
    printed = capsys.readouterr().out
    assert "train: a lacks 1 pictures (2)" in printed
    assert "train: b lacks 2 pictures (2, 3)" in printed
    left_out = 2 * len(QUESTIONS)
    assert f"train: {left_out} questions about them are left out" in printed
    assert list(read_lines(out / "missing.txt")) == ["train a 2", "train b 2", "train b 3"]
    kept = {line["image_id"] for line in lines(out / "train.jsonl")}
    assert kept == {*PICTURES["train2014"], *PICTURES["val2014"]} - VALID - {2, 3}
    assert {*PictureFeatures(out / "train.a")} == {*PictureFeatures(out / "train.b")} == kept


def remove(*images: int):
    def change(folder: Path) -> None:
        for image in images:
            next(folder.rglob(f"*{image:012}.npy")).unlink()

    return change


def save(image: int, array: np.ndarray, name: str = ""):
    def change(folder: Path) -> None:
        path = next(folder.rglob(f"*{image:012}.npy"))
        np.save(path.with_name(name) if name else path, array, allow_pickle=True)

    return change


def edit_tsv(change):
    """Change the lines of a TSV file in the place of the folder."""

    def damage(folder: Path) -> None:
        for path in [*folder.rglob("*.npy")]:
            path.unlink()
        entries = [tsv_line(*entry) for entry in make_boxes(1).items()]
        change(entries)
        (folder / "x.tsv").write_bytes(b"".join(entries))

    return damage


def edit_fields(change):
    def apply(entries: list[bytes]) -> None:
        fields = entries[2].rstrip(b"\n").split(b"\t")
        change(fields)
        entries[2] = b"\t".join(fields) + b"\n"

    return edit_tsv(apply)


REFUSED = {
    "another picture set": (
        remove(*all_pictures()[:-3]),
        "has none of the 13 pictures of train (1, 2, 3, 4, 5, …), its own are 31, 32, 33; give",
    ),
    "no line": (edit_tsv(list.clear), "x.tsv has no picture; give features of some"),
    "no pictures": (remove(*all_pictures()), "has no .npy, .h5, .hdf5 or .tsv; give"),
    "a picture of validation": (remove(46), "lacks 1 of the 5 pictures of valid (46); add them"),
    "a picture of the test part": (remove(32, 33), "lacks 2 of the 3 pictures of test (32, 33)"),
    "another width": (
        save(4, np.zeros((3, WIDTH + 1))),
        "has boxes of 5 numbers and other pictures of rcnn have 4; give features of one detector",
    ),
    "one dimension": (save(4, np.zeros(3)), "has the shape [3]; give [boxes, C]"),
    "no boxes": (save(4, np.zeros((0, WIDTH))), "has 0 boxes and --boxes asks for 1 at least"),
    "a pickle": (save(4, np.array({"a": 1}, object)), "pickled Python object, which is not read"),
    "a file cut short": (
        lambda folder: cut_in_half(next(folder.rglob("*000004.npy"))),
        "COCO_train2014_000000000004.npy is cut short or damaged",
    ),
    "a picture twice": (
        save(4, np.zeros((2, WIDTH)), "4.npy"),
        "picture 4 comes twice (",
    ),
    "a name without a number": (
        save(4, np.zeros((2, WIDTH)), "dog.npy"),
        "dog.npy has no number of a picture at the end of its name",
    ),
    "a line twice": (
        edit_tsv(lambda entries: entries.append(entries[1])),
        "picture 2 comes twice (",
    ),
    "a line cut short": (
        edit_tsv(lambda entries: entries.append(entries[1][:30])),
        "x.tsv, line 22: has 5 fields and image_id, image_w, image_h, num_boxes, boxes, features",
    ),
    "a last field cut short": (
        edit_tsv(lambda entries: entries.append(b"99" + entries.pop()[2:-9])),
        "x.tsv, line 21: ",
    ),
    "a field of no number": (
        edit_fields(lambda fields: fields.__setitem__(3, b"many")),
        "x.tsv, line 3: image_id or num_boxes is no number",
    ),
    "a field that is no Base64": (
        edit_fields(lambda fields: fields.__setitem__(5, b"?" + fields[5][1:])),
        "x.tsv, line 3: features is damaged",
    ),
    "fields that do not fit": (
        edit_fields(lambda fields: fields.__setitem__(3, b"7")),
        "x.tsv, line 3: num_boxes is 7, boxes have",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_features_that_are_refused(tmp_path, release, case):
    """A sentence says so before any file is written."""
    damage, said = REFUSED[case]
    folder = write_numpy(tmp_path / "npy", make_boxes(1))
    damage(folder)
    read_questions(release, tmp_path / "out")
    before = read_files(tmp_path / "out")
    with pytest.raises(UsageError, match=re.escape(said)) as refused:
        vqa_features.prepare(tmp_path / "out", {"rcnn": folder}, LIMITS, False)
    assert "\n" not in str(refused.value)
    assert read_files(tmp_path / "out") == before


def test_pictures_of_training_with_strict(tmp_path, release):
    boxes = make_boxes(1)
    del boxes[2]
    source = write_numpy(tmp_path / "a", boxes)
    with pytest.raises(UsageError, match=r"lacks 1 of the 13 pictures of train \(2\); leave --str"):
        make_data(tmp_path, release, strict=True, rcnn=source)


def test_detectors_of_different_widths(tmp_path, release):
    a, b = (write_numpy(tmp_path / str(w), make_boxes(1, w)) for w in (4, 6))
    with pytest.raises(UsageError, match=r"boxes of the detectors differ in width \(a 4, b 6\)"):
        make_data(tmp_path, release, a=a, b=b)


def test_detectors_that_share_no_picture(tmp_path, release):
    boxes = make_boxes(1)
    train = sorted({*PICTURES["train2014"], *PICTURES["val2014"]} - VALID)
    halves = [
        {i: x for i, x in boxes.items() if i not in lacking} for lacking in (train[:5], train[5:])
    ]
    a, b = (write_numpy(tmp_path / str(n), each) for n, each in enumerate(halves))
    with pytest.raises(UsageError, match="no picture of train is known to all detectors"):
        make_data(tmp_path, release, a=a, b=b)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ([], "--features names 0 detectors; give 1 to 3, the primary one first"),
        (["a=x", "b=x", "c=x", "d=x"], "names 4 detectors"),
        (["a=x", "a=y"], "--features has a twice"),
        (["x"], "--features is 'x' and must be NAME=PATH"),
        (["a="], "--features is 'a='"),
        (["../a=x"], "--features is '../a=x'"),
    ],
)
def test_names_of_detectors_that_are_refused(texts, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        parse_views(texts)


# HDF5.


def test_hdf5_that_is_cut_short(tmp_path):
    pytest.importorskip("h5py")
    path = write_hdf5(tmp_path / "x.h5", make_boxes(1), "table")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UsageError, match=r"x.h5 is cut short or damaged") as refused:
        open_source(path)
    assert "\n" not in str(refused.value)


def test_hdf5_whose_boxes_cannot_be_read(tmp_path):
    """Its head is whole, and the checksum of a picture is wrong."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        boxes = file.create_dataset(
            "7", data=np.ones((3, WIDTH), "f4"), chunks=True, fletcher32=True
        )
        place = boxes.id.get_chunk_info(0).byte_offset
    content = bytearray((tmp_path / "x.h5").read_bytes())
    content[place] ^= 1
    (tmp_path / "x.h5").write_bytes(content)
    source = open_source(tmp_path / "x.h5")
    assert source.shape(7) == (3, WIDTH)
    with pytest.raises(
        UsageError, match=r"x\.h5:7 cannot be read \(.*\); get it again$"
    ) as refused:
        source.read(7)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("form", ["table", "groups"])
def test_hdf5_whose_boxes_come_last(tmp_path, form):
    """The coordinates beside features decide; where they say the usual, or nothing, it counts."""
    h5py = pytest.importorskip("h5py")
    boxes = {image: each[:2] for image, each in make_boxes(1, 6).items()}
    path = write_hdf5(tmp_path / "x.h5", boxes, form)
    with h5py.File(path, "a") as file:
        for place in [file] if form == "table" else file.values():
            features = place["features"][:].swapaxes(-1, -2)
            del place["features"]
            place["features"] = features
            place["boxes"] = np.zeros((*features.shape[:-2], 4, 2))
    source = open_source(path)
    for image, expected in boxes.items():
        assert source.shape(image) == (2, 6)
        np.testing.assert_array_equal(source.read(image), expected)
    path = shutil.copy(path, tmp_path / "y.h5")
    with h5py.File(path, "a") as file:
        for place in [file] if form == "table" else file.values():
            del place["boxes"]
            place["image_bb"] = np.zeros((*place["features"].shape[:-1], 4))
    assert open_source(path).shape(1)[1] == 2


def test_a_list_of_boxes_that_come_last_is_refused(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = write_hdf5(tmp_path / "x.h5", make_boxes(1), "list")
    with h5py.File(path, "a") as file:
        features = file["image_features"][:].T
        set_data("image_features", features)(file)
        file["image_bb"] = np.zeros((4, features.shape[1]))
    with pytest.raises(UsageError, match=r"has image_features of the shape \["):
        open_source(path)


def test_features_that_look_transposed(tmp_path, release):
    """All pictures have more boxes than --boxes takes, as many, of fewer numbers than that."""
    boxes = {image: np.zeros((200, 36)) for image in make_boxes(1)}
    with pytest.raises(UsageError, match=r"200 boxes of 36 numbers .* give \[boxes, C\], or --"):
        make_data(tmp_path, release, rcnn=write_numpy(tmp_path / "npy", boxes))


def set_data(name: str, value):
    def change(file) -> None:
        del file[name]
        if value is not None:
            file[name] = value

    return change


@pytest.mark.parametrize(
    ("form", "damage", "said"),
    [
        ("table", set_data("image_ids", None), "has features and not the numbers of its pictures"),
        ("table", set_data("image_ids", [b"1"] * 21), "has image_ids that are no list of whole nu"),
        ("table", set_data("num_boxes", [9] * 21), "has num_boxes that do not fit features"),
        ("list", set_data("pos_boxes", [[0, 999]] * 21), "has pos_boxes that do not fit image_fea"),
        ("list", set_data("pos_boxes", None), "has image_features of the shape ["),
        ("table", set_data("image_ids", [1] * 21), "picture 1 comes twice"),
        (
            "groups",
            set_data("1/features", None),
            "x.h5:1 is a group without a data set 'features'",
        ),
        ("pictures", set_data("1", np.zeros(3)), "x.h5:1 has the shape [3]; give [boxes, C]"),
    ],
)
def test_hdf5_that_is_refused(tmp_path, release, form, damage, said):
    h5py = pytest.importorskip("h5py")
    path = write_hdf5(tmp_path / "x.h5", make_boxes(1), form)
    with h5py.File(path, "a") as file:
        damage(file)
    with pytest.raises(UsageError, match=re.escape(said)):
        make_data(tmp_path, release, rcnn=path)


def test_hdf5_without_its_package(tmp_path, monkeypatch):
    (tmp_path / "x.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(
        UsageError,
        match=r"is HDF5 and needs h5py, which is not installed; pip install 'fairseq_ext\[hdf5\]'",
    ):
        open_source(tmp_path / "x.h5")


# Interruptions.


def test_conversion_continues(tmp_path, release, monkeypatch):
    """Work continues where it was; a picture that cannot be read is named, and the rest stays."""
    source = write_numpy(tmp_path / "npy", make_boxes(1))
    whole = make_data(tmp_path / "whole", release, rcnn=source)
    out, added = tmp_path / "out", []
    read_questions(release, out)
    add = FeatureWriter.add

    def fail(self, image, boxes):
        if len(added) == 7:
            raise UsageError("it is damaged")
        added.append(image)
        add(self, image, boxes)

    with monkeypatch.context() as patch:
        patch.setattr(FeatureWriter, "add", fail)
        with pytest.raises(Unfinished, match=r"npy: it is damaged; mend it, and the same command"):
            vqa_features.prepare(out, {"rcnn": source}, LIMITS, False)
    monkeypatch.setattr(FeatureWriter, "add", lambda *x: (added.append(x[1]), add(*x)))
    vqa_features.prepare(out, {"rcnn": source}, LIMITS, False)
    assert sorted(added) == sorted(all_pictures())  # none twice
    one, other = read_files(whole), read_files(out)
    assert {name for name in one if name.endswith(".npy")} and one.keys() == other.keys()
    assert {n: x for n, x in one.items() if n != "inputs"} == {
        n: x for n, x in other.items() if n != "inputs"
    }


def test_a_full_disk_is_no_fault_of_a_picture(tmp_path, release, monkeypatch):
    def fail(self, image, boxes):
        raise Unfinished("the disk is full")

    source = write_numpy(tmp_path / "npy", make_boxes(1))
    read_questions(release, tmp_path / "out")
    monkeypatch.setattr(FeatureWriter, "add", fail)
    with pytest.raises(Unfinished, match=r"^the disk is full$"):
        vqa_features.prepare(tmp_path / "out", {"rcnn": source}, LIMITS, False)


def test_what_was_written_is_kept(tmp_path, release):
    """Also where features are refused later, as on a disk that is not mounted any more."""
    source = write_numpy(tmp_path / "npy", make_boxes(1))
    out = make_data(tmp_path, release, rcnn=source)
    arguments = ["convert", str(out), "--features", f"rcnn={source}", "--boxes", "1", "100"]
    source.rename(tmp_path / "elsewhere")
    with pytest.raises(
        Unfinished, match=r"npy is not there; .*; features that were written are kept"
    ):
        vqa_features.main(arguments)
    for path in out.glob("*.npy"):
        path.unlink()
    with pytest.raises(UsageError, match=r"npy is not there") as refused:
        vqa_features.main(arguments)
    assert not isinstance(refused.value, Unfinished)


# The recipe.


@pytest.mark.recipe
def test_recipe(tmp_path, release):
    """The command reads three detectors; a second one does nothing, a third is refused."""
    boxes = [make_boxes(seed) for seed in (1, 2, 3)]
    del boxes[2][5]
    views = {
        "rcnn": write_numpy(tmp_path / "npy", boxes[0]),
        "grid": write_tsv(tmp_path / "tsv" / "x.tsv.0", boxes[1]).parent,
        "other": write_tsv(tmp_path / "x.tsv", boxes[2]),
    }
    features = [f"--features={view}={path}" for view, path in views.items()]
    features = [word for each in features for word in each.split("=", 1)]
    command = ["prepare_vqa.sh", tmp_path / "out", *features, "--offline", release]
    command += ["--answer-min-count", LEAST, "--boxes", "1,100"]
    done = run(*command)
    assert "train: other lacks 1 pictures (5)" in done.stdout
    assert "train: 3 questions about them are left out" in done.stdout
    out = tmp_path / "out"
    names = {path.name for path in out.iterdir()}
    files = {
        f"{split}.{view}{end}.npy"
        for split in ("train", "valid", "test")
        for view in views
        for end in ("", ".pictures")
    }
    texts = {"train.jsonl", "valid.jsonl", "test.jsonl", "answers.txt", "dict.txt", "views.txt"}
    assert names == files | texts | {"missing.txt", "manifest.json"}
    assert list(read_lines(out / "views.txt")) == list(views)
    for (view, _), expected in zip(views.items(), boxes, strict=True):
        found = PictureFeatures(out / f"valid.{view}")
        np.testing.assert_array_equal(found[46], expected[46].astype("f2"))
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["text"]["train"]["lines"] == 12 * len(QUESTIONS)
    assert manifest["outputs"].keys() >= files and len(manifest["inputs"]) == 5
    assert "is there already" in run(*command).stdout
    script, *rest = command
    other = bash(ROOT / "scripts" / script, *rest, "--minival", "all")
    assert_refused(other, "was made with '--minival share'", "'--minival all'")
    late = (out / "manifest.json").stat().st_mtime + 9
    os.utime(views["other"], (late, late))
    assert_refused(
        bash(ROOT / "scripts" / script, *rest), f"{views['other']} is newer than '{out}'"
    )


@pytest.mark.recipe
def test_recipe_refuses_at_the_start(tmp_path, release):
    """One sentence, and no work is left, so that mended files are read next."""
    source = write_numpy(tmp_path / "npy", make_boxes(1))
    next(source.rglob("*000000004.npy")).write_bytes(b"")
    command = [ROOT / "scripts/prepare_vqa.sh", tmp_path / "out", "--features", f"rcnn={source}"]
    command += ["--offline", release, "--answer-min-count", LEAST, "--boxes", "1,100"]
    assert_refused(bash(*command), "error: ", "000000000004.npy is cut short or damaged")
    assert not (tmp_path / "out.partial").exists()
    np.save(next(source.rglob("*000000004.npy")), np.ones((2, WIDTH)))
    assert bash(*command).returncode == 0


@pytest.mark.recipe
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], ["--features is needed"]),
        (["--features"], ["--features needs a value"]),
        (["--features", "a=/nowhere"], ["/nowhere is not there; give a folder of .npy"]),
        (["--features", "a=/tmp", "--boxes", "9"], ["--boxes is '9' and must be two numbers"]),
        (["--features", "a=/tmp", "--boxes", "9,3"], ["--boxes is 9,3; give the smaller number"]),
        (
            ["--features", "a=/tmp", "--minival", "/nowhere"],
            ["--minival is '/nowhere'", "share, all"],
        ),
        (["--features", "a=/tmp", "--offline", "/nowhere"], ["--offline is '/nowhere'"]),
        (["--features", "a=/tmp", "--answer-min-count", "0"], ["--answer-min-count is '0'"]),
        (["a", "b", "--features", "a=/tmp"], ["2 words are given"]),
        (["--fast"], ["'--fast'", "--help"]),
    ],
)
def test_recipe_refuses_options(tmp_path, arguments, said):
    environment = {"FAIRSEQ_EXT_PLACE": str(tmp_path)}
    assert_refused(bash(ROOT / "scripts/prepare_vqa.sh", *arguments, **environment), *said)


@pytest.mark.slow
@pytest.mark.recipe
def test_recipe_that_was_killed_continues(tmp_path, release):
    """While it writes features: what is written stays, and the result is the same."""
    from hangs import wait_until

    source = write_numpy(tmp_path / "npy", make_boxes(1))
    arguments = ["--features", f"rcnn={source}", "--offline", release, "--boxes", "1,100"]
    command = ["bash", ROOT / "scripts/prepare_vqa.sh"]
    rest = [*arguments, "--answer-min-count", LEAST]
    environment = {"FAIRSEQ_EXT_SKIP_INSTALL": "1", "PYTHONPATH": str(ROOT)}
    environment = {**__import__("os").environ, **environment}
    run("prepare_vqa.sh", tmp_path / "whole", *rest)
    process = subprocess.Popen(
        [*map(str, [*command, tmp_path / "out", *rest])], env=environment, stdout=subprocess.PIPE
    )
    partial = tmp_path / "out.partial"
    wait_until(lambda: (partial / ".raw").exists())
    process.send_signal(signal.SIGKILL)
    process.communicate()
    run("prepare_vqa.sh", tmp_path / "out", *rest)
    one, other = read_files(tmp_path / "whole"), read_files(tmp_path / "out")
    assert one.keys() == other.keys()
    assert all(one[name] == other[name] for name in one if name != "manifest.json")
