"""Annotations on disk."""

import errno
import json
from pathlib import Path

import numpy as np
import pytest
from files import read_files

from fairseq_ext.data.annotations import Annotations, write
from fairseq_ext.errors import Unfinished, UsageError

SYMBOLS = ["<s>", "a", "b"]
RECORDS = [np.array([[0, -1, 3], [1, 0, 0]]), np.zeros((0, 3)), np.array([[-1, -1, 0]])]
LENGTHS = [2, 0, 1]


@pytest.fixture
def written(tmp_path):
    folder = tmp_path / "train.annotations"
    write(folder, iter(RECORDS), SYMBOLS, "by hand")
    return folder


def test_round_trip(written):
    found = Annotations.open(written, [*SYMBOLS, "<mask>"], np.array(LENGTHS, np.int32))
    assert len(found) == 3 and found[0].dtype == np.int16
    assert [record.tolist() for record in found] == [record.tolist() for record in RECORDS]
    assert isinstance(found.values, np.memmap) and found.values.flags.writeable is False
    about = json.loads((written / "about.json").read_text())
    assert [about[key] for key in ("sentences", "tokens", "unannotated")] == [3, 3, 1]
    assert about["parser"] == "by hand" and about["version"] == 1
    assert sorted(read_files(written.parent)) == [
        f"{written.name}/{name}" for name in ("about.json", "offsets.npy", "values.npy")
    ]


def test_writing_again(written):
    write(written, RECORDS[:1], SYMBOLS, "again")
    assert len(Annotations.open(written, SYMBOLS, LENGTHS[:1])) == 1
    assert [path.name for path in written.parent.iterdir()] == [written.name]


def test_a_full_disk_is_named(written, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    before = read_files(written.parent)
    with pytest.raises(Unfinished, match="annotations cannot be written .No space left"):
        write(written, RECORDS[:1], SYMBOLS, "again")
    assert read_files(written.parent) == before


def test_writing_that_fails_leaves_what_was_there(written):
    before = read_files(written.parent)

    def records():
        yield RECORDS[0]
        raise UsageError("no more")

    with pytest.raises(UsageError, match="no more"):
        write(written, records(), SYMBOLS, "half")
    assert read_files(written.parent) == before


@pytest.mark.parametrize("count", [1, 9, 10, 99_999])
def test_files_are_numpys(tmp_path, count):
    """The head, which is written twice, has the same length however many rows there are."""
    records = (np.full((1, 3), place % 7) for place in range(count))
    write(tmp_path / "a", records, SYMBOLS, "")
    assert np.load(tmp_path / "a/values.npy").tolist() == [[n % 7] * 3 for n in range(count)]
    assert np.load(tmp_path / "a/offsets.npy").tolist() == list(range(count + 1))


@pytest.mark.parametrize("name", ["values.npy", "offsets.npy"])
def test_cut_short(written, name):
    (written / name).write_bytes((written / name).read_bytes()[:-1])
    with pytest.raises(UsageError, match="cannot be read"):
        Annotations.open(written, SYMBOLS, LENGTHS)


@pytest.mark.parametrize("name", ["values.npy", "offsets.npy"])
def test_a_byte_that_was_changed(written, name):
    content = bytearray((written / name).read_bytes())
    content[-1] ^= 1
    (written / name).write_bytes(content)
    with pytest.raises(UsageError, match="cannot be read .*damaged or foreign.*annotate"):
        Annotations.open(written, SYMBOLS, LENGTHS)


def test_a_header_that_is_no_text_of_python(written):
    """A bit of it was changed, so that a bracket is never closed."""
    path = written / "offsets.npy"
    path.write_bytes(path.read_bytes().replace(b"(4,)", b"(4,("))
    with pytest.raises(UsageError, match="cannot be read"):
        Annotations.open(written, SYMBOLS, LENGTHS)


def test_files_of_another_folder_of_the_same_shape(written):
    write(written.with_name("other"), [RECORDS[0], RECORDS[1], RECORDS[2] + 1], SYMBOLS, "")
    (written.with_name("other") / "values.npy").replace(written / "values.npy")
    with pytest.raises(UsageError, match="damaged or foreign"):
        Annotations.open(written, SYMBOLS, LENGTHS)


def test_a_folder_of_an_older_version_is_noted_once(written, caplog):
    about = json.loads((written / "about.json").read_text())
    del about["crc32"]
    (written / "about.json").write_text(json.dumps(about))
    caplog.set_level("INFO")
    for _ in range(2):
        assert len(Annotations.open(written, SYMBOLS, LENGTHS)) == 3
    (note,) = caplog.messages
    assert "has no checksum" in note and str(written) in note


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("about.json", None),
        ("about.json", "[" * 99_999),
        ("values.npy", None),
        ("about.json", "{"),
        ("about.json", "[]"),
        ("about.json", '{"version": 1}'),
        ("about.json", '{"version": 2, "sentences": 3, "tokens": 3}'),
        ("about.json", '{"version": 1, "sentences": 3, "tokens": 4}'),
        ("about.json", '{"version": 1, "sentences": 3, "tokens": 3}'),
        ("values.npy", "text"),
    ],
)
def test_half_a_folder(written, name, content):
    (written / name).unlink()
    if content:
        (written / name).write_text(content)
    with pytest.raises(UsageError, match="cannot be read .*fairseq-ext annotate"):
        Annotations.open(written, SYMBOLS, LENGTHS)


@pytest.mark.parametrize(
    ("symbols", "lengths", "says"),
    [
        (["<s>", "b", "a"], LENGTHS, "another dictionary"),
        (SYMBOLS, [2, 1, 0], "other sentences .3 with 3 tokens; here are 3 with 3"),
        (SYMBOLS, LENGTHS[:2], "here are 2 with 2"),
    ],
)
def test_other_text(written, symbols, lengths, says):
    with pytest.raises(UsageError, match=says):
        Annotations.open(written, symbols, lengths)
    with pytest.raises(UsageError, match="there is no .*b; make it with"):
        Annotations.open(written.with_name("b"), symbols, lengths)
