"""Outputs: readers that go away, full disks, and what is left under a final name."""

import errno
import io
import logging
import os
import resource
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
from conftest import PLUGIN, fairseq
from fairseq import checkpoint_utils
from fairseq.binarizer import FileBinarizer, VocabularyDatasetBinarizer
from fairseq.data import Dictionary
from fairseq.file_io import PathManager
from shell import bash

from fairseq_ext import files, standard_output
from fairseq_ext.errors import Unfinished, UsageError
from fairseq_ext.files import atomic_writer, new_folder, rename_when_complete
from fairseq_ext.prepare import tokenise

SCORE = "fairseq-ext score {folder}/text --reference {folder}/text"
FULL = Path("/dev/full")


@pytest.fixture
def text(tmp_path):
    """A text whose score is printed at once, and a longer one."""
    (tmp_path / "text").write_text("A sentence of some words .\n" * 9)
    return tmp_path


@pytest.mark.parametrize("command", [SCORE, f"{SCORE} --json", "fairseq-ext score --help"])
def test_a_reader_that_goes_away_ends_a_verb_quietly(command, text):
    done = bash("-c", f"{command.format(folder=text)} | true; exit ${{PIPESTATUS[0]}}")
    assert (done.returncode, done.stdout, done.stderr) == (141, "", "")


def test_a_reader_that_goes_away_ends_a_command_of_fairseq_quietly(data_bin, hybrid_run):
    """It logs on standard output too, and logging swallows errors."""
    flags = f"--user-dir {PLUGIN} --path {hybrid_run}/checkpoint_last.pt -s de -t en --cpu --beam 1"
    generate = f"fairseq-generate {data_bin} {flags} --max-len-b 3 --gen-subset valid"
    done = bash("-c", f"{generate} | head -1; exit ${{PIPESTATUS[0]}}")
    assert done.returncode == 141 and "Error" not in done.stderr and "Traceback" not in done.stderr
    assert done.stdout.count("\n") == 1


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("command", [SCORE, f"{SCORE} --json"])
def test_a_full_disk_behind_standard_output_is_one_sentence(command, text):
    done = bash("-c", f"{command.format(folder=text)} >/dev/full")
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: standard output cannot be written (No space left")


def test_output_that_can_be_written_is_as_it_was(text):
    """In the order in which it was written, and with all of its end."""
    code = "from fairseq_ext.standard_output import guard_standard_output as guard; import os, sys"
    code += "; print(1); "
    code += "guard(); guard(); print('ä'); sys.stdout.flush(); os.write(1, b'3\\n'); print(4)"
    done = bash("-c", f'python -c "{code}"')
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\nä\n3\n4\n", "")


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


KINDS = {
    "text": (atomic_writer, lambda file: file.write("half")),
    "file": (rename_when_complete, lambda part: part.write_bytes(b"half")),
    "folder": (new_folder, lambda part: (part / "one").write_bytes(b"half")),
}


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_what_could_not_be_completed_has_no_name(kind, before, tmp_path):
    writer, write = KINDS[kind]
    path = tmp_path / "x"
    if before:
        path.mkdir() if kind == "folder" else path.write_bytes(b"before")
    kept = "what was there before is kept" if before else "nothing of it is left"
    with (
        pytest.raises(Unfinished, match=f"^{path} cannot be written .No space left.*{kept}; make"),
        writer(path) as part,
    ):
        write(part)
        full()
    assert [*tmp_path.iterdir()] == ([path] if before else [])
    assert kind == "folder" or not before or path.read_bytes() == b"before"
    with pytest.raises(UsageError, match=r"^no$"), writer(path) as part:
        write(part)
        raise UsageError("no")
    assert [*tmp_path.iterdir()] == ([path] if before else [])
    with writer(path) as part:
        write(part)
    assert [*tmp_path.iterdir()] == [path]
    assert (path / "one" if kind == "folder" else path).read_bytes() == b"half"


def test_a_folder_that_cannot_be_put_in_place_leaves_the_one_before(tmp_path, monkeypatch):
    folder, replace = tmp_path / "x", Path.replace
    folder.mkdir()
    (folder / "one").write_bytes(b"before")

    def replace_or_fail(source, target):
        return full() if source.name == "new" else replace(source, target)

    monkeypatch.setattr(Path, "replace", replace_or_fail)
    refused = pytest.raises(Unfinished, match="what was there before is kept")
    with refused, new_folder(folder, replace=True) as part:
        (part / "one").write_bytes(b"new")
    assert [*tmp_path.iterdir()] == [folder] and (folder / "one").read_bytes() == b"before"


def test_results_cannot_go_below_a_file(data_bin, hybrid_run, tmp_path):
    (tmp_path / "file").write_text("")
    line = [data_bin, "--user-dir", PLUGIN, "--path", hybrid_run / "checkpoint_last.pt", "--cpu"]
    done = fairseq("generate", *line, "--results-path", tmp_path / "file", check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert f"error: {tmp_path}/file: File exists" in done.stderr


@pytest.mark.parametrize(("keep_link", "target"), [(True, b"new"), (False, b"old")])
def test_a_link_is_kept_or_replaced(keep_link, target, tmp_path):
    (tmp_path / "target").write_bytes(b"old")
    (tmp_path / "link").symlink_to("target")
    with rename_when_complete(tmp_path / "link", keep_link) as part:
        part.write_bytes(b"new")
    assert (tmp_path / "link").is_symlink() == keep_link
    assert (tmp_path / "link").read_bytes() == b"new"
    assert (tmp_path / "target").read_bytes() == target


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
def test_a_device_is_written_and_stays_one():
    with (
        pytest.raises(Unfinished, match=r"^/dev/full cannot be written \(No space left[^,]*\); "),
        rename_when_complete(FULL) as part,
    ):
        part.write_bytes(b"x")
    assert FULL.is_char_device()


def test_standard_output_is_written_as_it_is():
    """It is a link to a pipe here, which has no path of its own."""
    code = (
        "from pathlib import Path\nfrom fairseq_ext.files import atomic_writer\n"
        "with atomic_writer(Path('/dev/stdout')) as file: file.write('x')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "x"


def test_an_error_that_is_not_of_the_disk_stays_as_it_is(tmp_path):
    with pytest.raises(RuntimeError, match="other"), rename_when_complete(tmp_path / "x"):
        raise RuntimeError("other")
    with pytest.raises(BrokenPipeError), rename_when_complete(tmp_path / "x"):
        raise BrokenPipeError


def test_a_full_disk_under_a_library_in_rust(tmp_path):
    """Its exceptions have no type, and the number of the error at their end."""
    with (
        pytest.raises(Unfinished, match=r"made.bpe cannot be written \(File too large\), nothing"),
        files.explain_disk_errors(tmp_path / "made.bpe"),
    ):
        raise Exception("File too large (os error 27)")
    with pytest.raises(KeyError), files.explain_disk_errors(tmp_path / "made.bpe"):
        raise KeyError("x")


def test_a_checkpoint_at_an_address_is_saved_by_fairseq(monkeypatch, tmp_path):
    """It has no hidden name on this machine."""
    saved = {}
    monkeypatch.chdir(tmp_path)

    @contextmanager
    def open_address(name, mode):
        yield saved.setdefault(name, io.BytesIO())

    monkeypatch.setattr(PathManager, "path_requires_pathmanager", lambda name: "://" in name)
    monkeypatch.setattr(PathManager, "open", open_address)
    checkpoint_utils.torch_persistent_save({"a": 1}, "store://x/last.pt")
    assert [*saved] == ["store://x/last.pt"] and not [*tmp_path.iterdir()]
    assert torch.load(io.BytesIO(saved.popitem()[1].getvalue())) == {"a": 1}


def test_a_line_that_cannot_be_logged_is_a_fault_of_who_wrote_it(tmp_path, capsys):
    """It is no fault of the disk, and logging shows it."""
    handler = logging.FileHandler(tmp_path / "log")
    handler.emit(logging.LogRecord("x", logging.INFO, "x.py", 1, "%d words", ("no",), None))
    handler.emit(logging.LogRecord("x", logging.INFO, "x.py", 1, "%d words", (3,), None))
    handler.close()
    assert (tmp_path / "log").read_text() == "3 words\n"
    said = capsys.readouterr().err
    assert said.startswith("--- Logging error ---") and "is cut short" not in said


def test_a_checkpoint_that_does_not_fit_leaves_the_one_before(tmp_path, small_files, caplog):
    """It ends fairseq's saving, the copies too, in one sentence."""
    last, other = (str(tmp_path / name) for name in ("last.pt", "other.pt"))
    checkpoint_utils.torch_persistent_save({"a": 1}, last)
    with pytest.raises(Unfinished, match=r"^\S+last.pt cannot be written \(File too large\), what"):
        checkpoint_utils.torch_persistent_save({"a": torch.ones(9999)}, last)
    assert torch.load(last) == {"a": 1} and [*tmp_path.iterdir()] == [tmp_path / "last.pt"]
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    with pytest.raises(Unfinished, match=r"other.pt cannot be written \(File too large\), nothing"):
        PathManager.copy(last, other, overwrite=True)
    assert [*tmp_path.iterdir()] == [tmp_path / "last.pt"] and not caplog.messages


def test_tokens_that_do_not_fit_leave_nothing(tmp_path, small_files):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "train.en").write_text("It's a line, with tokens.\n" * 60)
    with pytest.raises(Unfinished, match=r"out/train.en cannot be written .File too large., no"):
        tokenise.main([str(tmp_path / "raw"), str(tmp_path / "out")])
    assert not [*(tmp_path / "out").iterdir()]


def binarise(folder, workers=1):
    words = Dictionary()
    words.add_symbol("word")
    binarizer, prefix = VocabularyDatasetBinarizer(words), str(folder / "train.en")
    how = [str(folder / "text"), "mmap", binarizer, prefix]
    FileBinarizer.multiprocess_dataset(*how, vocab_size=len(words), num_workers=workers)
    words.save(str(folder / "dict.txt"))


def test_binarised_text_has_its_names_when_it_is_complete(tmp_path):
    """As fairseq-preprocess writes it, in one process and in two."""
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        folder.mkdir()
        (folder / "text").write_text("word word .\n" * 40)
        binarise(folder, workers)
        assert {f.name for f in folder.iterdir()} == {
            *("text", "train.en.bin", "train.en.idx", "dict.txt")
        }
    for name in ("train.en.bin", "train.en.idx", "dict.txt"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


def test_binarised_text_that_does_not_fit_leaves_nothing(tmp_path, small_files):
    (tmp_path / "text").write_text("word word .\n" * 100)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    with pytest.raises(Unfinished, match=r"train\.en\.bin cannot be written \(File too large\)"):
        binarise(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["text"]


@pytest.mark.parametrize("name", ["torch_persistent_save", "copy"])
def test_saving_and_copying_replace_a_link_and_not_its_target(name, tmp_path):
    """A link to another model may stand where the last checkpoint goes."""
    (tmp_path / "other.pt").write_bytes(b"other")
    (tmp_path / "link.pt").symlink_to("other.pt")
    if name == "copy":
        torch.save({"a": 1}, tmp_path / "source.pt")
        assert PathManager.copy(str(tmp_path / "source.pt"), str(tmp_path / "link.pt"), True)
    else:
        checkpoint_utils.torch_persistent_save({"a": 1}, str(tmp_path / "link.pt"))
    assert torch.load(tmp_path / "link.pt") == {"a": 1}
    assert (tmp_path / "other.pt").read_bytes() == b"other"


def test_no_output_is_guarded_that_is_not_of_the_process(capsys):
    standard_output.guard_standard_output()
    print("as before")
    assert capsys.readouterr().out == "as before\n"


def test_translations_get_their_name_when_all_are_written(data_bin, hybrid_run, tmp_path):
    """What ends the command keeps those that were there."""
    flags = f"--user-dir {PLUGIN} --path {hybrid_run}/checkpoint_last.pt -s de -t en --cpu --beam 1"
    results = f"--max-len-b 3 --gen-subset valid --results-path {tmp_path}"
    command = [data_bin, *flags.split(), *results.split(), "--num-workers", 0]
    fairseq("generate", *command)
    (file,) = tmp_path.iterdir()
    whole = file.read_text("utf-8")
    assert file.name == "generate-valid.txt" and whole.count("\nH-") == 100
    done = fairseq("generate", *command, "--max-tokens", 1, check=False)
    assert done.returncode == 1 and done.stderr.startswith("error: ")
    assert file.read_text("utf-8") == whole and list(tmp_path.iterdir()) == [file]


def test_a_log_on_a_full_disk_is_said_once(capsys):
    handler = logging.FileHandler(FULL)
    for _ in range(2):
        handler.handle(logging.makeLogRecord({"msg": "line"}))
    said = "warning: /dev/full is cut short (No space left on device)\n"
    assert capsys.readouterr().err == said
    with suppress(OSError):
        handler.close()
