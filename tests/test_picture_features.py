"""Files of features that are mapped into memory: written, continued, read, and refused."""

import json
import mmap
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from fairseq_ext.errors import UsageError
from fairseq_ext.files import read_lines, write_lines
from fairseq_ext.vqa.picture_features import BATCH, FeatureWriter, PictureFeatures
from fairseq_ext.vqa.prepare import features as vqa_features
from fairseq_ext.vqa.prepare.feature_sources import NumpySource
from fairseq_ext.vqa.prepare.features import Limits

WIDTH = 3
HEADER = b"{'descr': '<f2', 'fortran_order': False, 'shape': (9, 3), }".ljust(60_000)
LARGE = b"\x93NUMPY\1\0" + len(HEADER).to_bytes(2, "little") + HEADER


def make(count: int, seed: int = 1) -> dict[int, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        7 * number: random.normal(size=(random.integers(1, 5), WIDTH)).astype("f2")
        for number in range(1, count + 1)
    }


def write(prefix: Path, boxes: dict[int, np.ndarray]) -> PictureFeatures:
    with FeatureWriter(prefix, WIDTH) as writer:
        for image, features in boxes.items():
            writer.add(image, features)
        writer.complete()
    return PictureFeatures(prefix)


def assert_same(features: PictureFeatures, boxes: dict[int, np.ndarray]) -> None:
    assert list(features) == list(boxes) and len(features) == len(boxes)
    for image, expected in boxes.items():
        assert features[image].dtype == np.float16 and features.count(image) == len(expected)
        np.testing.assert_array_equal(features[image], expected)


def test_what_is_written_is_read(tmp_path):
    boxes = make(20)
    features = write(tmp_path / "sub" / "train.rcnn", boxes)
    assert_same(features, boxes)
    assert features.width == WIDTH and 7 in features and 8 not in features
    with pytest.raises(KeyError):
        features[8]
    assert {path.name for path in (tmp_path / "sub").iterdir()} == {
        "train.rcnn.npy",
        "train.rcnn.pictures.npy",
    }
    plain = np.load(tmp_path / "sub" / "train.rcnn.npy")  # an ordinary file of numpy
    np.testing.assert_array_equal(plain, np.concatenate(list(boxes.values())))
    rows = np.load(tmp_path / "sub" / "train.rcnn.pictures.npy")
    assert rows.dtype == np.int64 and rows[1].tolist() == [14, len(boxes[7])]


def test_a_picture_is_a_view_of_the_file(tmp_path):
    """No copy: it cannot be written to, and lies in the mapped memory."""
    features = write(tmp_path / "x", make(5))
    assert not features[14].flags.owndata and not features[14].flags.writeable
    assert np.shares_memory(features[14], features._boxes)
    mapped = Path("/proc/self/maps")
    if mapped.exists():
        assert str(tmp_path / "x.npy") in mapped.read_text()


def test_no_more_than_the_picture_is_read(tmp_path):
    """The system is told which pages are needed, and that those around them are not."""
    width, counts = 700, [3, 9, 1, 20, 2]
    with FeatureWriter(tmp_path / "x", width) as writer:
        for image, count in enumerate(counts):
            writer.add(image, np.full((count, width), image))
        writer.complete()
    features = PictureFeatures(tmp_path / "x")
    smaps = Path("/proc/self/smaps")
    if smaps.exists():
        entry = smaps.read_text().partition(f"{tmp_path}/x.npy")[2]
        assert " rr " in f" {entry.partition('VmFlags:')[2].splitlines()[0]} "
    content, asked = bytes(features._map), []

    class Map:
        def madvise(self, advice, start, length):
            assert advice == mmap.MADV_WILLNEED and start % mmap.PAGESIZE == 0
            asked.append(content[start : start + length])

    features._map = Map()
    for image, count in enumerate(counts):
        boxes = features[image].tobytes()
        assert asked[-1].endswith(boxes) and len(boxes) == 2 * width * count
        assert len(asked[-1]) < len(boxes) + mmap.PAGESIZE


def test_another_process_maps_the_file_itself(tmp_path):
    boxes = make(300)
    features = write(tmp_path / "x", boxes)
    data = pickle.dumps(features)
    assert len(data) < 1000
    assert_same(pickle.loads(data), boxes)


@pytest.mark.parametrize("done", [0, 1, BATCH - 1, BATCH, BATCH + 7])
def test_a_writer_continues(tmp_path, done):
    """After an end of any kind; what was not yet in the files is asked for again."""
    boxes = make(BATCH + 10)
    writer = FeatureWriter(tmp_path / "x", WIDTH)
    for image in list(boxes)[:done]:
        writer.add(image, boxes[image])
    for file in writer._files:  # killed: what Python holds back is lost
        file.raw.close()
    assert not (tmp_path / "x.npy").exists()
    again = FeatureWriter(tmp_path / "x", WIDTH)
    assert len(again) == done // BATCH * BATCH
    with again:
        for image, features in boxes.items():
            if image not in again:
                again.add(image, features)
        again.complete()
    assert_same(PictureFeatures(tmp_path / "x"), boxes)


def test_a_writer_that_was_closed_has_all(tmp_path):
    boxes = make(9)
    with FeatureWriter(tmp_path / "x", WIDTH) as writer:
        for image, features in list(boxes.items())[:4]:
            writer.add(image, features)
    with FeatureWriter(tmp_path / "x", WIDTH) as writer:
        assert len(writer) == 4
        for image, features in list(boxes.items())[4:]:
            writer.add(image, features)
        writer.complete()
    assert_same(PictureFeatures(tmp_path / "x"), boxes)


def test_boxes_that_are_cut_off_are_written_again(tmp_path):
    """After a loss of power rows may be there without their boxes."""
    boxes = make(6)
    with FeatureWriter(tmp_path / "x", WIDTH) as writer:
        for image, features in boxes.items():
            writer.add(image, features)
    part = tmp_path / ".x.npy.part"
    part.write_bytes(part.read_bytes()[:-3])
    rows = tmp_path / ".x.pictures.part"
    rows.write_bytes(rows.read_bytes() + b"abc")
    with FeatureWriter(tmp_path / "x", WIDTH) as writer:
        assert len(writer) == 5
        writer.add(42, boxes[42])
        writer.complete()
    assert_same(PictureFeatures(tmp_path / "x"), boxes)


def test_an_end_between_the_two_names(tmp_path, monkeypatch):
    boxes = make(6)
    writer = FeatureWriter(tmp_path / "x", WIDTH)
    for image, features in boxes.items():
        writer.add(image, features)
    with monkeypatch.context() as patch:
        replace = Path.replace

        def fail(self, target):
            if self.name == ".x.npy.part":
                raise KeyboardInterrupt
            return replace(self, target)

        patch.setattr(Path, "replace", fail)
        with pytest.raises(KeyboardInterrupt):
            writer.complete()
    with FeatureWriter(tmp_path / "x", WIDTH) as again:
        assert len(again) == 6
        again.complete()
    assert_same(PictureFeatures(tmp_path / "x"), boxes)


@pytest.mark.parametrize(
    ("boxes", "said"),
    [
        (np.zeros((2, WIDTH + 1)), r"picture 9 has boxes of the shape \[2, 4\]; give \[N, 3\]"),
        (np.zeros((0, WIDTH)), r"shape \[0, 3\]; give \[N, 3\] with N from 1"),
        (np.zeros(WIDTH), r"shape \[3\]"),
        (np.full((1, WIDTH), 1e5), "picture 9 has features that are no numbers of 16 bits"),
        (np.full((1, WIDTH), np.nan), "no numbers of 16 bits"),
        (np.full((1, WIDTH), "x"), "picture 9 has <U1 in its boxes; give numbers"),
    ],
)
def test_pictures_that_are_refused(tmp_path, boxes, said):
    with FeatureWriter(tmp_path / "x", WIDTH) as writer, pytest.raises(UsageError, match=said):
        writer.add(9, boxes)


def test_a_picture_twice(tmp_path):
    with FeatureWriter(tmp_path / "x", WIDTH) as writer:
        writer.add(9, np.zeros((1, WIDTH)))
        with pytest.raises(UsageError, match="picture 9 comes twice"):
            writer.add(9, np.zeros((1, WIDTH)))


def test_no_picture(tmp_path):
    with FeatureWriter(tmp_path / "x", WIDTH) as writer, pytest.raises(UsageError, match="no pict"):
        writer.complete()


def test_what_was_begun_with_another_width(tmp_path):
    with FeatureWriter(tmp_path / "x", WIDTH) as writer:
        writer.add(9, np.zeros((1, WIDTH)))
    with pytest.raises(UsageError, match="of another width than 4; delete it"):
        FeatureWriter(tmp_path / "x", 4)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def change(path: Path, array: np.ndarray) -> None:
    np.save(path, array)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda one, two: one.unlink(), "x.npy is missing; prepare the data again with scripts/"),
        (lambda one, two: two.unlink(), "x.pictures.npy is missing"),
        (lambda one, two: cut(one), "x.npy is cut short or damaged"),
        (lambda one, two: cut(two), "x.pictures.npy is cut short or damaged"),
        (lambda one, two: one.write_bytes(b""), "x.npy is cut short or damaged"),
        (lambda one, two: one.write_bytes(b"text"), "x.npy is cut short or damaged"),
        (lambda one, two: one.write_bytes(b"PK\x03\x04" + bytes(99)), "x.npy is cut short or dam"),
        (
            lambda one, two: one.write_bytes(LARGE),
            "is large and may not be safe to load securely.)",
        ),
        (lambda one, two: change(one, np.zeros((9, 3))), "holds float64 [9, 3], and float16"),
        (lambda one, two: change(one, np.zeros(9, "f2")), "holds float16 [9], and float16 [boxes"),
        (lambda one, two: change(two, np.zeros((2, 2))), "holds float64 [2, 2], and int64"),
        (lambda one, two: change(one, np.zeros((2, 3), "f2")), "does not say where the pictures"),
        (lambda one, two: change(two, np.array([[7, 1]])), "does not say where the pictures"),
        (lambda one, two: change(two, np.zeros((0, 2), "i8")), "does not say where the pictures"),
        (lambda one, two: change(two, np.array([[7, 0], [7, 1]])), "has a picture twice"),
    ],
)
def test_files_that_are_refused(tmp_path, damage, said):
    write(tmp_path / "x", make(5))
    damage(tmp_path / "x.npy", tmp_path / "x.pictures.npy")
    with pytest.raises(UsageError, match=re.escape(said)) as refused:
        PictureFeatures(tmp_path / "x")
    assert "\n" not in str(refused.value)


# Features as they are published.


def save(folder: Path, boxes: dict[int, np.ndarray]) -> Path:
    folder.mkdir(exist_ok=True)
    for image, features in boxes.items():
        np.save(folder / f"{image}.npy", features)
    return folder


@pytest.mark.parametrize(
    ("content", "said"), [(LARGE, "is large and may not be safe"), (b"text", "magic string")]
)
def test_a_published_file_that_is_damaged(tmp_path, content, said):
    """The sentence holds no advice to execute what a file holds."""
    (tmp_path / "7.npy").write_bytes(content)
    with pytest.raises(
        UsageError, match=f"7.npy is cut short or damaged .*{said}.*; get it again$"
    ):
        NumpySource([tmp_path / "7.npy"]).shape(7)


def test_a_view_that_was_mended(tmp_path):
    """All views have a picture that one of them lacked when the files were written."""
    boxes, out = make(4), tmp_path / "out"
    views = {name: save(tmp_path / name, boxes) for name in ("a", "b")}
    questions = [json.dumps({"image_id": image, "question": "is it"}) for image in boxes]
    write_lines(out / "raw" / "train.jsonl", questions)
    (views["b"] / "14.npy").unlink()
    vqa_features.prepare(out, views, Limits(1, 9), False)
    assert list(read_lines(out / "missing.txt")) == ["train b 14"]
    save(views["b"], boxes)
    vqa_features.prepare(out, views, Limits(1, 9), False)
    for view in views:
        assert {*PictureFeatures(out / f"train.{view}")} == {*boxes}
    assert not (out / "missing.txt").exists()


def test_what_was_begun_with_other_pictures(tmp_path):
    boxes = make(4)
    with FeatureWriter(tmp_path / "x", WIDTH) as writer:
        writer.add(7, boxes[7])
        writer.add(14, boxes[14])
    source = NumpySource(sorted(save(tmp_path / "npy", boxes).iterdir()))
    vqa_features.convert(tmp_path / "x", source, [14, 21], WIDTH, 9)
    assert_same(PictureFeatures(tmp_path / "x"), {image: boxes[image] for image in (14, 21)})
