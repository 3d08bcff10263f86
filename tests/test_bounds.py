"""Small files that become large, have no end or ask for much are refused in time."""

import argparse
import gzip
import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch

from fairseq_ext import bounds, checkpoint_contents, safe_loading
from fairseq_ext.data import dictionaries
from fairseq_ext.data.examples import Example, check_lengths
from fairseq_ext.errors import UsageError
from fairseq_ext.files import check_line_ends, open_binary, read_lines
from fairseq_ext.interchange.import_hf import convert
from fairseq_ext.patches import checkpoints
from fairseq_ext.prepare.corpora_readers import parse_json
from fairseq_ext.prepare.extract import open_members
from fairseq_ext.training_logs import is_finished, parse_line
from fairseq_ext.vqa.prepare.hdf5_source import Hdf5Source

MB = 1_000_000
REPEATED = b"a b c\n" * 100_000  # which packs far better than text does


@pytest.fixture
def small(monkeypatch):
    """Bounds that a test reaches quickly."""
    monkeypatch.setattr(bounds, "FREE", 200_000)
    monkeypatch.setattr(bounds, "LONGEST_LINE", MB)


def checkpoint(**changes):
    """The least that is a checkpoint."""
    state = {
        "args": argparse.Namespace(task="translation", arch="transformer"),
        "model": {"w": torch.arange(3.0)},
        "optimizer_history": [{"num_updates": 7}],
    }
    return {**state, **changes}


def save(path, state):
    torch.save(state, path)
    return path


# Lines and packed files.


@pytest.mark.parametrize("name", ["a", "a.gz"])
def test_a_line_without_end_is_refused(tmp_path, small, name):
    text = b"one\n" + b"a" * (MB + 1)
    (tmp_path / name).write_bytes(gzip.compress(text, 0) if name == "a.gz" else text)
    with pytest.raises(UsageError, match="line 2: has more than 1 MB"):
        list(read_lines(tmp_path / name))


def test_a_line_of_the_length_that_is_accepted_is_read(tmp_path, small):
    (tmp_path / "a").write_bytes(b"a" * (MB - 1) + b"\n" + b"b" * MB)
    assert [len(line) for line in read_lines(tmp_path / "a")] == [MB - 1, MB]


def test_raw_text_and_dictionaries_have_bounded_lines(tmp_path, small):
    (tmp_path / "a").write_bytes(b"a" * (MB + 1))
    for check in (check_line_ends, dictionaries.check_file):
        with pytest.raises(UsageError, match="line 1: has more than 1 MB"):
            check(tmp_path / "a")


def test_packed_text_becomes_at_most_so_much_more(tmp_path, small):
    (tmp_path / "a.gz").write_bytes(gzip.compress(REPEATED))
    with pytest.raises(UsageError, match=r"a\.gz has 0\.0 MB that become . MB or more"):
        list(read_lines(tmp_path / "a.gz"))
    with pytest.raises(UsageError, match="that become"), open_binary(tmp_path / "a.gz") as file:
        file.read()


def test_text_that_packs_like_text_is_read(tmp_path, small):
    text = b"".join(b"%d %d\n" % (n * n, n * 7919 % 10007) for n in range(50_000))
    (tmp_path / "a.gz").write_bytes(gzip.compress(text))
    with open_binary(tmp_path / "a.gz") as file:
        assert file.read() == text


def _tar(path: Path, mode: str, content: bytes) -> Path:
    with tarfile.open(path, mode) as tar:
        info = tarfile.TarInfo("train.de")
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    return path


def _zip(path: Path, content: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("train.de", content)
    return path


def _long_name(path: Path) -> Path:
    """A tar whose file has a name of 9 MB, which is read whole before the file is known."""
    return _tar_named(path, "a" * 9 * MB)


def _tar_named(path: Path, name: str) -> Path:
    with tarfile.open(path, "w:gz", format=tarfile.GNU_FORMAT) as tar:
        tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    return path


def _sparse(path: Path) -> Path:
    """A tar of a file of 10 TB that has a hole and nothing else."""
    info = tarfile.TarInfo("train.de")
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[156:157] = tarfile.GNUTYPE_SPARSE
    header[483:495] = b"%011o\0" % (8**11 - 1)
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + sum(header[156:512]) + 8 * 32)
    path.write_bytes(bytes(header) + bytes(1024))
    return path


@pytest.mark.parametrize("content", [REPEATED, b"a b\n" * 100])
@pytest.mark.parametrize("ending", ["tgz", "tar.gz", "tar", "zip"])
def test_archives_become_at_most_so_much_more(tmp_path, small, ending, content):
    mode = {"tgz": "w:gz", "tar.gz": "w:xz", "tar": "w:bz2"}.get(ending)  # as the bytes tell
    path = tmp_path / f"a.{ending}"
    path = _tar(path, mode, content) if mode else _zip(path, content)
    if content is not REPEATED:
        assert [(name, file.read()) for name, file in open_members(path)] == [("train.de", content)]
        return
    with pytest.raises(UsageError, match="that become . MB or more"):
        list(open_members(path))


@pytest.mark.parametrize("make", [_long_name, _sparse])
def test_odd_archives_become_at_most_so_much_more(tmp_path, small, make):
    with pytest.raises(UsageError, match="that become"):
        list(open_members(make(tmp_path / "a.tar")))


def test_archives_of_models_become_at_most_so_much_more(tmp_path, small):
    from fairseq import file_utils

    checkpoints.unpack_safely()
    path = _tar(tmp_path / "a.tar.gz", "w:gz", REPEATED)
    with file_utils.tarfile.open(path, "r:gz") as tar, pytest.raises(UsageError, match="become"):
        tar.extractall(tmp_path / "out")
    assert not (tmp_path / "out").exists()


# Checkpoints.


def test_a_tensor_has_its_numbers_in_the_file(tmp_path):
    for odd in (
        torch.zeros(1).expand(4 * 10**9),
        torch.zeros(2, 1).expand(2, 10**9),
        torch.sparse_coo_tensor(torch.zeros(1, 1).long(), torch.ones(1), (10**10,)),
        torch.empty(10**10, device="meta"),
    ):
        for state in (checkpoint(model={"w": odd}), checkpoint(last_optimizer_state=[{"w": odd}])):
            path = save(tmp_path / "a.pt", state)
            with pytest.raises(UsageError, match="whose numbers are not all in the file"):
                safe_loading.read_checkpoint(path)


def test_one_storage_is_not_many_tensors(tmp_path, small):
    rows = torch.ones(10_000)
    path = save(tmp_path / "a.pt", checkpoint(model={f"w{i}": rows for i in range(200)}))
    with pytest.raises(UsageError, match="that become 8 MB"):
        safe_loading.read_checkpoint(path)


def test_views_and_shared_parameters_are_accepted(tmp_path):
    rows = torch.arange(12.0).reshape(3, 4)
    model = {f"layers.{i}.w": rows for i in range(24)} | {
        "t": rows.t(),
        "row": rows[1],
        "e": rows[:0],
    }
    state = safe_loading.read_checkpoint(save(tmp_path / "a.pt", checkpoint(model=model)))
    assert all(torch.equal(state["model"][name], value) for name, value in model.items())


def _laugh(value, times=10):
    for _ in range(times):
        value = [value] * 10
    return value


def _nest(value, depth=120):
    for _ in range(depth):
        value = {"a": value}
    return value


def _circle():
    value: list = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    "odd", [_laugh("lol"), _nest(1), _circle()], ids=["many", "deep", "circle"]
)
@pytest.mark.parametrize("packed", [True, False])
def test_settings_have_an_end(tmp_path, monkeypatch, odd, packed):
    monkeypatch.setattr(checkpoint_contents, "MOST_PARTS", 100_000)
    args = argparse.Namespace(task="translation", arch="transformer", odd=odd)
    torch.save(checkpoint(args=args), tmp_path / "a.pt", _use_new_zipfile_serialization=packed)
    with pytest.raises(UsageError, match="hold one another 100 times, or are more than"):
        safe_loading.read_checkpoint(tmp_path / "a.pt")


def _pack_again(path: Path, further: int = 0) -> Path:
    """The checkpoint as a zip whose entries are packed, with an entry of so many zeros more."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(path.with_name("b.pt"), "w", 8) as new:
        for entry in old.infolist():
            new.writestr(entry.filename, old.read(entry))
        if further:
            new.writestr("a/data/99", bytes(further))
    return path.with_name("b.pt")


def test_a_checkpoint_that_was_packed_again_is_read(tmp_path):
    path = save(tmp_path / "a.pt", checkpoint(model={"w": torch.arange(1000.0)}))
    state = safe_loading.read_checkpoint(_pack_again(path))
    assert torch.equal(state["model"]["w"], torch.arange(1000.0))


def test_a_checkpoint_becomes_at_most_so_much_more(tmp_path, small):
    path = _pack_again(save(tmp_path / "a.pt", checkpoint()), 9 * MB)
    for file in (str(path), path.open("rb")):
        with pytest.raises(UsageError, match="that become 9 MB"):
            safe_loading.load_checkpoint(file)


@pytest.mark.parametrize(
    "text",
    [
        "'a'*3000000000",
        "3000000000*'a'",
        "[0]*10**9",
        "[0]*3000000000",
        "((0,)*99999)*99999",
        "[[0]*9999]*9999",
        "[{'a': 'b'*9999}]*9999",
        "'a'*True*3000000000",
        "[1]*60000 + [1]*60000",
        f"'{'a' * 200_000}'",
        "[" * 90 + "]" * 90 + "*3000000000",
        "-".join("1" * 40_000),
    ],
)
def test_settings_that_repeat_are_refused(text):
    with pytest.raises(UsageError, match="is no plain value"):
        safe_loading.parse_literal(text)


def test_settings_that_layers_have_are_read():
    text = "[(512, 10, 5)] * 4 + [(512, 2, 2)] + 2 * [(1, 2, 3)]"
    assert safe_loading.parse_literal(text) == [(512, 10, 5)] * 4 + [(512, 2, 2)] + 2 * [(1, 2, 3)]
    assert safe_loading.parse_literal("'a' * 3 + 'b'") == "aaab"
    assert safe_loading.parse_literal("1000000 * 1000000") == 10**12


# Pipes and devices.


@pytest.fixture(params=["pipe", "device"])
def endless(request, tmp_path):
    """Make a pipe that nobody writes to, or a link to a device without end."""

    def make(name):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        os.mkfifo(path) if request.param == "pipe" else path.symlink_to("/dev/zero")
        return path

    return make


def test_pipes_and_devices_are_no_files(endless):
    from fairseq import checkpoint_utils

    for read in (
        safe_loading.read_checkpoint,
        lambda path: safe_loading.load(str(path)),
        lambda path: checkpoint_utils.load_checkpoint_to_cpu(str(path)),
        dictionaries.check_file,
        lambda path: is_finished(path.parent),
    ):
        with pytest.raises(UsageError, match="is a device or a pipe; give a file"):
            read(endless("run/train.log"))


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "model.safetensors", "vocab.txt", "spm.model"]
)
def test_pipes_and_devices_in_a_folder_of_hugging_face(tmp_path, endless, name):
    path = endless(f"hf/{name}")
    with pytest.raises(UsageError, match=f"{name} is a device or a pipe"):
        convert(path.parent, tmp_path, tmp_path)


def test_a_stranger_cannot_give_json_of_any_size(tmp_path, monkeypatch):
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(bounds.MOST_BYTES + 1)
    with pytest.raises(UsageError, match="config.json has more than 100 MB"):
        convert(tmp_path, tmp_path, tmp_path)


def test_text_of_a_pipe_is_read(tmp_path):
    read, write = os.pipe()
    os.write(write, b"one\ntwo\n")
    os.close(write)
    assert list(read_lines(Path(f"/dev/fd/{read}"))) == ["one", "two"]
    os.close(read)


# JSON, examples and pictures.


def test_nested_json_is_refused():
    deep = "[" * 100_000
    with pytest.raises(UsageError, match="nested too deeply"):
        parse_json(deep, Path("a.json"))
    assert parse_line(f"2026-01-01 00:00:00 | INFO | train | {{{deep}") is None


def test_an_example_is_not_longer_than_tokenisers_can_take():
    check_lengths([Example({"text": "a" * 1_900_000}, "a.txt:1")])
    with pytest.raises(UsageError, match="a.txt:2 has more than 2000000 characters"):
        check_lengths([Example({"text": "a b " * 500_001}, "a.txt:2")])


@pytest.mark.parametrize("shape", [(10, 10**9, 64), (10**10, 4)])
def test_features_are_not_more_than_their_file_holds(tmp_path, shape):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file.create_dataset("features", shape, "f4", chunks=(1,) * len(shape))
        file["image_ids"] = range(10)
    with pytest.raises(UsageError, match="a.hdf5 has .* that become"):
        list(Hdf5Source.list_pictures(None, tmp_path / "a.hdf5"))
