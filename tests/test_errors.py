"""Exceptions that nobody caught end a command with one line, and a file with the traceback."""

import errno
import gc
import json
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import hydra
import pytest
import torch
from conftest import PLUGIN
from conftest import fairseq as run_fairseq
from fairseq import options
from fairseq import utils as fairseq_utils
from fairseq.data import data_utils
from fairseq.data.indexed_dataset import MMapIndexedDataset
from fairseq.tasks.fairseq_task import FairseqTask
from fairseq_cli import preprocess
from omegaconf import OmegaConf

from fairseq_ext import errors
from fairseq_ext.attention.options import check_rules, read_rules
from fairseq_ext.commands import option_pairs, set_up
from fairseq_ext.errors import UsageError
from fairseq_ext.files import rename_when_complete
from fairseq_ext.models.roberta_options import RobertaOptions
from fairseq_ext.prepare import step
from fairseq_ext.training import training_checks


class PanicException(BaseException):
    """Stand-in for the exception of libraries in Rust that panic."""


@pytest.fixture
def end(monkeypatch, capsys, tmp_path):
    """The lines that a command prints which an exception ends."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["/bin/fairseq-train", "DATA"])
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=None))

    interrupted = signal.getsignal(signal.SIGINT)

    def end(function, *args):
        try:
            function(*args)
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)
            signal.signal(signal.SIGINT, interrupted)
        return capsys.readouterr().err.splitlines()

    return end


def fail(error):
    raise error


def test_a_fault_is_one_line_with_a_file(end):
    code = compile("def fail(error):\n    raise error\n", OURS, "exec")
    exec(code, mine := {})
    (line,) = end(mine["fail"], ValueError("mine\nand more"))
    assert re.fullmatch(
        r"unexpected error: ValueError: mine and more at \S+sentences.py:2, in fail; this "
        r"is a fault of ours: please report it with the file (\S+), which has the command and the "
        r"traceback \(FAIRSEQ_EXT_TRACEBACK=1 shows it\)",
        line,
    )
    report = Path(re.search(r"the file (\S+),", line)[1]).read_text("utf-8")
    assert report.startswith("/bin/fairseq-train DATA\n\nTraceback (most recent call last):\n")
    assert report.endswith("ValueError: mine\nand more\n")


def test_a_fault_in_another_process_says_where(end):
    text = 'Traceback (most recent call last):\n  File "/x/y.py", line 3, in f\nKeyError: 1\n'
    (line,) = end(fail, RuntimeError(f"-- Process 0 terminated:\n\n{text}"))
    assert line.startswith("unexpected error: KeyError: 1 at /x/y.py:3, in f; it arose in your own")


def test_a_traceback_is_shown_where_no_file_can_be_written(end, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    first, *_, last = end(fail, KeyError("mine"))
    assert first.startswith("Traceback")
    assert last.endswith("see the traceback above")


def test_the_environment_shows_the_traceback(end, monkeypatch, tmp_path):
    monkeypatch.setenv("FAIRSEQ_EXT_TRACEBACK", "1")
    first, *_, last = end(fail, KeyError("mine"))
    assert first.startswith("Traceback") and last == "KeyError: 'mine'"
    assert not list(tmp_path.iterdir())


def test_what_is_no_fault_is_not_reported(end, tmp_path, monkeypatch):
    assert end(fail, BrokenPipeError(32, "Broken pipe"))[0].startswith("Traceback")
    assert end(fail, KeyboardInterrupt()) == ["interrupted"]
    monkeypatch.setenv(errors.TRACEBACK, "1")
    assert end(fail, KeyboardInterrupt())[0].startswith("Traceback")
    assert not list(tmp_path.iterdir())


OURS = str(PLUGIN / "tasks" / "sentences.py")
CLONE = "/src/fairseq/fairseq/__init__.py"
STOCK = "/env/lib/python3.11/site-packages/fairseq/trainer.py"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([STOCK, OURS], "this is a fault of ours: please report it with"),
        ([OURS, STOCK], "it arose in fairseq, and not in fairseq_ext; see"),
        ([OURS, "/src/fairseq/fairseq/trainer.py"], "it arose in fairseq, and not in"),
        ([OURS, "/env/lib/python3.11/site-packages/torch/nn/x.py"], "in the library torch, and"),
        ([OURS, "/usr/lib/python3/dist-packages/regex.py"], "in the library regex, and not"),
        ([STOCK, "/src/fairseq/mine/normaliser.py"], "in your own code, /src/fairseq/mine/"),
        ([STOCK, "/home/me/mine/normaliser.py"], "in your own code, /home/me/mine/normaliser.py;"),
        ([STOCK, OURS, json.__file__, "<frozen runpy>"], "this is a fault of ours"),
        ([], "this is a fault of ours"),
    ],
)
def test_the_culprit_is_named(files, said, monkeypatch):
    """It is the innermost frame's, of those that are not Python's own."""
    monkeypatch.setitem(sys.modules, "fairseq", SimpleNamespace(__file__=CLONE))
    assert said in errors.name_culprit(files)


@pytest.mark.parametrize(
    ("argv", "spec", "ours"),
    [
        ("/bin/fairseq-ext", None, True),
        ("/x/cli.py", "fairseq_ext.cli", True),
        ("/x/step.py", "fairseq_ext.prepare.step", True),
        ("/x/train.py", "fairseq_cli.train", True),
        ("/home/me/mine.py", None, False),
        ("/x/mine.py", "mine.program", False),
    ],
)
def test_programs_of_users_keep_their_tracebacks(end, monkeypatch, argv, spec, ours):
    monkeypatch.setattr(sys, "argv", [argv])
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec and SimpleNamespace(name=spec))
    assert end(fail, KeyError("mine"))[0].startswith("unexpected error: " if ours else "Traceback")


def test_a_usage_error_of_a_worker_is_its_sentence(end):
    text = "Caught UsageError in DataLoader worker process 0.\nOriginal Traceback ...\n"
    error = UsageError(f"{text}fairseq_ext.errors.UsageError: --x is 1; give 2\n")
    assert end(fail, error) == ["error: --x is 1; give 2"]
    assert end(fail, UsageError("--x is 1")) == ["error: --x is 1"]


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried ..."),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("could not create a primitive"),
        PanicException('no thread pool: IOError(Os { "Resource temporarily unavailable" })'),
    ],
)
def test_memory(end, error):
    (line,) = end(fail, error)
    assert line.startswith("error: there is not enough memory (") and "--max-tokens" in line


def test_text_in_another_encoding(end):
    (line,) = end(b"ein mann gr\xfc\xdft".decode)
    assert line.startswith(r"error: b'ein mann gr\xfc\xdft', of what is read, is not UTF-8 (")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: Path("/dev/null/x").mkdir(), "/dev/null/x: Not a directory; correct the path"),
        (lambda: Path("n" * 999).read_text(), f"{'n' * 200} ...: File name too long; correct"),
        (lambda: Path("nowhere").rename("x"), "nowhere -> x: No such file or directory; correct"),
        (lambda: Path("/dev/full").write_text("x"), "the disk cannot be written (No space left"),
    ],
)
def test_files_and_disks(end, call, said):
    (line,) = end(call)
    assert line.startswith(f"error: {said}")


def test_words_that_are_no_text(end):
    (line,) = end("x\udcff".encode)
    assert line == r"error: 'x\udcff' cannot be written as text; give valid UTF-8"


def test_a_gpu_that_is_not_there(end):
    (line,) = end(fail, AssertionError("Torch not compiled with CUDA enabled"))
    assert line.startswith("error: a GPU is needed") and "--cpu" in line


def test_a_link_to_itself(end, tmp_path):
    (tmp_path / "link").symlink_to("link")
    (line,) = end(lambda: rename_when_complete(tmp_path / "link").__enter__())
    assert line.startswith("error: ") and "link" in line


def test_a_path_that_is_no_text_is_reported(end, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["/bin/fairseq-train", "\udcff"])
    assert end(fail, KeyError("mine"))[0].startswith("unexpected error: KeyError: 'mine'")
    (report,) = tmp_path.iterdir()
    assert report.read_text("utf-8").startswith("/bin/fairseq-train \\udcff\n")


def test_other_errors_of_the_system_are_faults(end):
    assert end(fail, ConnectionError(111, "refused"))[0].startswith("unexpected error: ")


def test_configurations(end):
    node = OmegaConf.create({"lr": 1})
    OmegaConf.set_struct(node, True)
    (line,) = end(lambda: node.lrr)
    assert line.startswith("error: --lrr: Key 'lrr' is not in struct; correct that flag, or leave")
    error = hydra.errors.ConfigCompositionException("Error merging override dataset.x=1")
    error.__cause__ = ValueError("Value '1'\n    full_key: dataset.x")
    (line,) = end(fail, error)
    assert line.startswith("error: Error merging override dataset.x=1 Value '1'; correct that key")


def test_messages_of_fairseq_that_name_a_flag(end):
    """They are meant for users; others are faults."""
    (line,) = end(fairseq_utils.get_activation_fn, "nope")
    assert line == "error: --activation-fn nope not supported"
    (line,) = end(data_utils.collate_tokens, [], 1)
    assert line.startswith("unexpected error: ")


def test_a_dictionary_that_is_there_already(end, tmp_path, monkeypatch):
    """fairseq-preprocess says no more than its path."""
    monkeypatch.setattr(preprocess.logger, "handlers", [])  # it gets one for a file
    (tmp_path / "dict.de.txt").touch()
    flags = f"-s de -t en --trainpref {tmp_path}/train --destdir {tmp_path}".split()
    (line,) = end(preprocess.main, options.get_preprocessing_parser().parse_args(flags))
    there = "is there already; delete it, or give another folder"
    assert line == f"error: {tmp_path}/dict.de.txt {there}"


def test_a_command_ends_so(tmp_path):
    """The user directory makes fairseq fail later on."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text(
        "import fairseq_ext.registry\n"
        "from fairseq import tasks\n"
        "tasks.get_task = lambda name: len(5)\n"
    )
    done = run_fairseq("preprocess", "--user-dir", tmp_path / "mine", cwd=tmp_path, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("unexpected error: TypeError: object of type 'int' has no len() at ")
    Path(re.search(r"the file (\S+),", line)[1]).unlink()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: data_utils.post_process("a", "bad"),
            "Unknown post_process option: bad; correct the options or the data",
        ),
        (lambda: FairseqTask(None).build_dataset_for_inference(None, None), None),
    ],
)
def test_what_fairseq_refuses_in_words(end, call, said):
    (line,) = end(call)
    assert line.startswith(f"error: {said}" if said else "unexpected error: ")


def test_text_that_could_not_be_mapped_is_forgotten(tmp_path, capfd):
    """For want of memory, for example."""
    with pytest.raises(FileNotFoundError):
        MMapIndexedDataset(str(tmp_path / "nowhere"))
    gc.collect()
    assert "_bin_buffer_mmap" not in capfd.readouterr().err


def test_options_that_lack_something(monkeypatch):
    monkeypatch.setattr(option_pairs, "find_spec", lambda name: None)
    flag = "--write-checkpoints-asynchronously"
    option_pairs.check_pairs({flag[2:].replace("-", "_"): (flag, False)})
    with pytest.raises(UsageError, match="needs the package iopath"):
        option_pairs.check_pairs({flag[2:].replace("-", "_"): (flag, True)})


@pytest.mark.parametrize(
    ("option", "refused", "accepted", "said"),
    [
        ({"d2v2_multi": True}, "masked_lm", "model", "--d2v2-multi makes batches for data2vec 2"),
        (
            {"enhanced_mask_decoder": True},
            *("replaced_token_detection_ag", "masked_lm_ag"),
            "--enhanced-mask-decoder is for masked tokens, which",
        ),
        (
            {"adaptive_softmax_cutoff": [1]},
            *("cross_entropy", "adaptive_loss"),
            "give --criterion adaptive_loss",
        ),
    ],
)
def test_options_that_need_another_criterion(option, refused, accepted, said):
    rules = {**training_checks.RULES, **read_rules(RobertaOptions)}
    check_rules({**option, "criterion": accepted}, rules)
    with pytest.raises(UsageError, match=said):
        check_rules({**option, "criterion": refused}, rules)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EMFILE, os.strerror(errno.EMFILE), "a.txt"),
        OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
        RuntimeError("received 0 items of ancdata"),
        UsageError("a.pt cannot be read as a PyTorch file ([Errno 24] Too many open files)"),
    ],
)
def test_too_many_open_files_are_no_full_disk(end, error):
    (line,) = end(fail, error)
    assert line == f"error: {errors.RAISE_LIMIT}" and "ulimit -n" in line


def test_too_many_open_files_while_something_is_written(tmp_path, end):
    def write():
        with rename_when_complete(tmp_path / "a"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    assert end(write) == [f"error: {errors.RAISE_LIMIT}"]


def test_a_step_does_not_refuse_the_text_for_too_many_open_files(monkeypatch):
    error = UsageError("a: cannot be unpacked (Too many open files)")
    monkeypatch.setattr(
        step, "import_module", lambda _: SimpleNamespace(main=lambda _: fail(error))
    )
    with pytest.raises(UsageError, match="Too many open files"):
        step.main(["module"])


def test_streams_are_utf8_where_the_locale_is_not():
    code = "from fairseq_ext.standard_output import *; guard_standard_output(); import sys; "
    code += "print(input(), len(sys.argv[1]), sys.argv[1])"
    streams = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    settings = os.environ | streams | {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", code, "straße"]
    done = subprocess.run(command, input="größe\n".encode(), capture_output=True, env=settings)
    assert done.stdout.decode() == "größe 7 straße\n"  # whose ß are two bytes of the name of a file


def test_what_a_locale_cannot_read_is_no_fault_of_the_text(end):
    (line,) = end("ä".encode().decode, "ascii")
    assert line.startswith("error: this locale has no UTF-8") and "PYTHONUTF8=1" in line
    (line,) = end(b"\xe4".decode, "utf-8")
    assert "give text in UTF-8" in line


@pytest.mark.parametrize("encoding", [None, "utf-8"])  # Python gives the second in UTF-8 mode
def test_logs_are_utf8(encoding, tmp_path):
    set_up()
    handler = logging.FileHandler(tmp_path / "a.log", encoding=encoding)
    handler.emit(logging.makeLogRecord({"msg": "größe \udcc3"}))
    handler.close()
    assert (tmp_path / "a.log").read_text("utf-8") == "größe \\udcc3\n"
