"""Places to write to: names that nobody can foretell, and one writer at a time."""

import errno
import os
import signal
import stat
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace

import filelock
import pytest
from conftest import PLUGIN, fairseq
from fairseq import checkpoint_utils
from fairseq.binarizer import FileBinarizer, VocabularyDatasetBinarizer
from fairseq.data import Dictionary
from fairseq.file_io import PathManager

from fairseq_ext import cli
from fairseq_ext.commands import outputs
from fairseq_ext.errors import UsageError
from fairseq_ext.files import new_folder, rename_when_complete, write_lines
from fairseq_ext.places import hold, hold_until_exit, open_unlinked, private_folder
from fairseq_ext.prepare import fetch
from fairseq_ext.tools.jobs import Job, Step
from fairseq_ext.vqa.picture_features import FeatureWriter

FORK = get_context("fork")


@pytest.fixture
def precious(tmp_path_factory):
    """A file elsewhere, which has to stay as it is."""
    file = tmp_path_factory.mktemp("mine") / "file"
    file.write_text("precious")
    yield file
    assert file.read_text() == "precious" and [*file.parent.iterdir()] == [file]


def binarise(path):
    words = Dictionary()
    (text := path.with_name("text")).write_text("a b c\n")
    prefix = str(path.with_suffix(""))
    FileBinarizer.multiprocess_dataset(
        str(text), "mmap", VocabularyDatasetBinarizer(words), prefix, vocab_size=len(words)
    )


def copy(path):
    (source := path.with_name("source")).write_bytes(b"new")
    PathManager.copy(str(source), str(path), True)


def make_folder(path):
    with new_folder(path) as part:
        (part / "one").write_text("new")


WRITERS = {
    "x": lambda path: write_lines(path, ["new"]),
    "x.pt": lambda path: checkpoint_utils.torch_persistent_save({"a": 1}, str(path)),
    "copy.pt": copy,
    "folder": make_folder,
    "train.en.bin": binarise,
}


@pytest.mark.parametrize("name", WRITERS)
def test_links_with_names_of_temporary_files_are_not_followed(name, tmp_path, precious):
    """They may come with a folder of somebody else, from an archive or a repository."""
    stem = name.removesuffix(".bin")
    planted = [f".{name}.part", f"{name}.part", f"{name}.tmp", f".{name}.old", f".{stem}.part.bin"]
    for each in planted:
        (tmp_path / each).symlink_to(precious)
    WRITERS[name](tmp_path / name)
    assert (tmp_path / name).exists()
    assert all((tmp_path / each).is_symlink() for each in planted)


def test_what_is_written_is_out_of_the_way_of_others(tmp_path):
    """Its folder has a name at random and is of its user alone; its own rights are the usual."""
    paths = []
    for _ in range(2):
        with rename_when_complete(tmp_path / "x") as part:
            part.write_bytes(b"new")
            paths.append(part)
            assert stat.S_IMODE(part.parent.stat().st_mode) == 0o700
    assert paths[0].parent != paths[1].parent and paths[0].parent.parent == tmp_path
    (tmp_path / "usual").touch()
    assert (tmp_path / "x").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_a_name_may_be_as_long_as_the_disk_allows(tmp_path):
    path = tmp_path / ("x" * 255)
    write_lines(path, ["text"])
    assert path.read_text() == "text\n"


def test_a_folder_to_save_in_is_tried_by_another_name(tmp_path, precious):
    (tmp_path / "dummy").symlink_to(precious)
    checkpoint_utils.verify_checkpoint_directory(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["dummy"]


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_what_is_continued_is_no_link(link, tmp_path, precious):
    """It has a name that can be foretold, by which the next command finds it."""
    refused = pytest.raises(UsageError, match="is a link, and has to be a file of its own; delete")
    for mode in ("ab", "wb", "w"):
        link(tmp_path / mode, precious)
        with refused:
            open_unlinked(tmp_path / mode, mode)
    link(tmp_path / ".x.npy.part", precious)
    with refused:
        FeatureWriter(tmp_path / "x", 3)
    link(tmp_path / "x.zip.part", precious)
    answer = SimpleNamespace(headers={})
    with refused:
        fetch._save(answer, tmp_path / "x.zip.part", 0)
    for name in ("train.log", ".lock"):
        folder = tmp_path / f"run{name}"
        folder.mkdir()
        link(folder / name, precious)
        job = Job("run", folder, [Step(folder, "train", "fairseq-train", [])])
        write_lines(folder / "train.begun", [job.steps[0].stamp()])
        with refused:
            next(job.execute({}))


def test_a_run_that_is_begun_replaces_a_link(tmp_path, precious):
    (tmp_path / "train.begun").symlink_to(precious)
    work = Step(tmp_path, "train", "fairseq-ext average", []).execute(1, dict(os.environ))
    next(work)
    work.close()
    assert (tmp_path / "train.begun").read_text() == "fairseq-ext average \n"


def test_folders_of_killed_processes_are_removed(tmp_path):
    """A folder that a process has locked is kept, and so is what else has such a name."""
    names = {name: tmp_path / f".{name}.part" for name in ("killed__", "new_____", "locked__")}
    for folder in names.values():
        (folder / "new").mkdir(parents=True)
    (tmp_path / "else").mkdir()
    (tmp_path / ".linked__.part").symlink_to("else")
    (tmp_path / ".a_file__.part").touch()
    with private_folder(tmp_path) as live:
        for path in (names["killed__"], names["locked__"], live, tmp_path / "else"):
            os.utime(path, (0, 0))
        with open_folder(names["locked__"]):
            write_lines(tmp_path / "x", [])
        assert live.is_dir()
    kept = {".new_____.part", ".locked__.part", ".linked__.part", ".a_file__.part", "else", "x"}
    assert {path.name for path in tmp_path.iterdir()} == kept


@contextmanager
def open_folder(folder):
    import fcntl

    number = os.open(folder, os.O_RDONLY)
    fcntl.flock(number, fcntl.LOCK_EX)
    yield
    os.close(number)


@contextmanager
def elsewhere(work, *args):
    """A process that does some work and then waits; yields it when it waits."""
    ready = FORK.Event()

    def run():
        with work(*args):
            ready.set()
            signal.pause()

    process = FORK.Process(target=run)
    process.start()
    assert ready.wait(60)
    try:
        yield process
    finally:
        process.kill()
        process.join()


@pytest.mark.parametrize("inside", [True, False])
def test_a_second_writer_is_told_of_the_first(inside, tmp_path):
    place = tmp_path / "x"
    with elsewhere(hold, place, "--out", inside) as other:
        said = (
            rf"^another process writes to {place} \(--out\): process {other.pid} on .+, .+; wait "
            "until it has ended, stop it, or give another place$"
        )
        with pytest.raises(UsageError, match=said), hold(place, "--out", inside):
            pass
        with hold(tmp_path / "y", "--out", inside):  # beside it there is room
            pass
    with hold(place, "--out", inside), hold(place, "--out", inside):  # of one process
        pass
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_killed_process_holds_nothing_though_its_children_live(tmp_path):
    """Workers that it forked to read data live for some seconds."""

    @contextmanager
    def hold_with_child():
        with hold(tmp_path, inside=True):
            reader, writer = os.pipe()
            if not os.fork():
                with hold(tmp_path, inside=True):  # for it is of the same command
                    os.write(writer, b"%d" % os.getpid())
                    signal.pause()
            children.put(int(os.read(reader, 99)))
            yield

    children = FORK.Queue()
    with elsewhere(hold_with_child) as process:
        child = children.get(timeout=60)
        process.kill()
        process.join()
        with hold(tmp_path, inside=True):
            os.kill(child, signal.SIGKILL)  # which would fail if it had ended


def test_a_second_command_may_wait(tmp_path):
    """A recipe waits so for a corpus that another one downloads."""
    with elsewhere(hold, tmp_path, "", True) as first:
        second = FORK.Process(target=lambda: hold(tmp_path, inside=True, wait=True).__enter__())
        second.start()
        second.join(0.2)
        assert second.is_alive()
        first.kill()
        second.join()
        assert second.exitcode == 0


def test_where_locks_do_not_work_a_warning_says_so(tmp_path, monkeypatch, caplog):
    def unsupported(*_):
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(filelock.FileLock, "_acquire", unsupported)
    with hold(tmp_path / "x"), elsewhere(hold, tmp_path / "x"):
        pass
    (said,) = caplog.messages
    assert said == f"{tmp_path}/x cannot be locked (Operation not supported); " + (
        "let one command write to it"
    )


@pytest.mark.parametrize("place", ["/dev/null", "nowhere/x"])
def test_what_is_no_place_is_not_held(place, tmp_path, caplog):
    """A device takes what many write; a folder that is not there is refused by who needs it."""
    with hold(tmp_path / place), elsewhere(hold, tmp_path / place):
        pass
    assert not caplog.messages and not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("rank", "no_save", "held"), [(0, False, True), (1, False, False), (0, True, False)]
)
def test_the_process_that_saves_holds_the_folder(rank, no_save, held, tmp_path, monkeypatch):
    monkeypatch.setattr(outputs, "is_command", lambda: True)
    cfg = SimpleNamespace(
        distributed_training=SimpleNamespace(distributed_rank=rank),
        checkpoint=SimpleNamespace(save_dir=str(tmp_path / "run"), no_save=no_save),
    )
    with elsewhere(hold, tmp_path / "run", "", True):
        if held:
            with pytest.raises(UsageError, match=r"writes to \S+/run \(--save-dir\): process"):
                outputs.hold_checkpoints(cfg)
        else:
            outputs.hold_checkpoints(cfg)


def test_a_place_is_held_until_a_started_process_ends(tmp_path):
    process = get_context("spawn").Process(target=hold_until_exit, args=(tmp_path, "--save-dir"))
    process.start()
    process.join()
    assert process.exitcode == 0 and not [*tmp_path.iterdir()]


def test_commands_of_fairseq_are_refused_beside_another(data_bin, real_lines, tmp_path):
    """In time: nothing is written, and what the first one writes is left alone."""
    save, folder = tmp_path / "run", tmp_path / "data"
    training = ["--user-dir", PLUGIN, "--arch", "transformer_una_tiny", "--optimizer", "adam"]
    training += ["--max-tokens", 500, "--max-update", 1, "--cpu", "--save-dir", save]
    text = ["-s", "de", "-t", "en", "--trainpref", real_lines / "test", "--destdir", folder]
    commands = [(["train", data_bin, *training], save), (["preprocess", *text], folder)]
    with hold(save, inside=True), hold(folder, inside=True):
        for command, place in commands:
            done = fairseq(*command, check=False)
            assert done.returncode == 1 and "Traceback" not in done.stderr
            assert f"error: another process writes to {place} (--" in done.stderr
            assert [path.name for path in place.iterdir()] == [".writer.lock"]


def test_two_results_of_one_name_are_refused(tmp_path):
    """Results of another part, or shard, are not held."""
    path = tmp_path / "generate-test.txt"
    with elsewhere(outputs.open_whole, str(path), "w"):
        with pytest.raises(UsageError, match=r"generate-test.txt \(--results-path\): process"):
            outputs.open_whole(str(path), "w").__enter__()
        with outputs.open_whole(str(tmp_path / "generate-valid.txt"), "w") as file:
            file.write("read")
    assert (tmp_path / "generate-valid.txt").read_text() == "read"


def test_verbs_are_refused_beside_another(tmp_path):
    """Before they look at what they are to read."""
    out = tmp_path / "x.pt"
    with elsewhere(hold, out), pytest.raises(UsageError, match=r"writes to \S+x.pt \(--output\)"):
        cli.main(["average", "nowhere.pt", "--output", str(out)])
    with elsewhere(hold, tmp_path / "y"), pytest.raises(UsageError, match="writes to"):
        make_folder(tmp_path / "y")
