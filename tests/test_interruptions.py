"""Ctrl-C, closed output and kills of commands: one line, a right exit code, nothing left."""

import multiprocessing
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import fairseq_cli.preprocess
import pytest
from conftest import PLUGIN
from fuzz import process
from fuzz.judge import read_state
from torch.utils.data import DataLoader

from fairseq_ext import errors
from fairseq_ext.commands import outputs
from fairseq_ext.tools import doctor


def interrupt_group():
    """Do what Ctrl-C does in a terminal."""
    os.killpg(os.getpgrp(), signal.SIGINT)
    time.sleep(30)


def wait_with_a_pool(args):
    pool = multiprocessing.Pool(2)
    pool.apply_async(time.sleep, (30,))
    time.sleep(0.2)
    interrupt_group()


def wait_with_data_workers(args):
    for _ in DataLoader(range(8), num_workers=2):
        interrupt_group()


class Careless:
    """Object at whose end Python ignores exceptions."""

    def __del__(self):
        interrupt_group()


def ignore_it(args):
    sys.unraisablehook = partial(errors._interrupt_again, None)  # pytest has put one over ours
    Careless()
    time.sleep(30)


def turn_it_into_another_error(args):
    try:
        interrupt_group()
    finally:
        raise KeyError("word")


WAYS = [
    lambda args: interrupt_group(),
    wait_with_a_pool,
    wait_with_data_workers,
    ignore_it,
    turn_it_into_another_error,
]


@pytest.mark.parametrize("run", WAYS)
def test_an_interruption_is_one_line(run, tmp_path, monkeypatch):
    """Also in processes that the command has forked."""
    monkeypatch.setattr(doctor, "run", run)
    ended = process.run(process.Process("fairseq-ext", ["doctor"], tmp_path))
    assert (ended.out, ended.err, ended.left) == ("", "interrupted\n", False)
    assert ended.code in (130, -signal.SIGINT)  # which a shell reports as 130


def test_standard_output_that_is_closed_is_an_error(tmp_path, monkeypatch):
    closed = process.Process("fairseq-ext", ["doctor"], tmp_path, stdout=process.CLOSED)
    monkeypatch.setattr(doctor, "run", lambda args: print("an answer"))
    ended = process.run(closed)
    assert ended.code == 1
    assert ended.err.startswith("error: standard output cannot be written (it is closed)")
    monkeypatch.setattr(doctor, "run", lambda args: Path("made").write_text("a file"))
    assert process.run(closed)[:3] == (0, "", "")


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("fairseq_ext.prepare.check", ["a", "a"]),
        ("fairseq_ext.prepare.workspace", ["setting", "out", "NAME"]),
    ],
)
def test_steps_notice_standard_output_that_is_closed(program, words, tmp_path):
    (tmp_path / "a").write_text("a line\n")
    closed = process.Process(program, words, tmp_path, stdout=process.CLOSED)
    ended = process.run(closed)
    assert ended.code == 1
    assert "error: standard output cannot be written (it is closed)" in ended.err


def preprocess(folder, die=False):
    """Run fairseq-preprocess as its own process does, which may die before it has all."""
    make_all = fairseq_cli.preprocess._make_all

    def make_half(language, *args):
        make_all(language, *args)
        if die and language == "de":
            os.kill(os.getpid(), signal.SIGKILL)

    def run(args):
        outputs.write_data_whole()  # of this module, which the process of tests has imported late
        fairseq_cli.preprocess._make_all = make_half
        sys.argv = "fairseq-preprocess -s de -t en --trainpref train".split()
        sys.argv += ["--destdir", folder, "--user-dir", str(PLUGIN)]
        fairseq_cli.preprocess.cli_main()

    return run


def test_a_killed_preprocess_is_run_again(tmp_path, monkeypatch):
    for language in ("de", "en"):
        (tmp_path / f"train.{language}").write_text(f"a b {language}\n" * 9)
    for folder, die, code in (("out", True, -signal.SIGKILL), ("out", False, 0), ("new", False, 0)):
        monkeypatch.setattr(doctor, "run", preprocess(folder, die))
        ended = process.run(process.Process("fairseq-ext", ["doctor"], tmp_path))
        assert ended.code == code, ended.err
        assert (tmp_path / folder / "train.de-en.de.idx").exists()
    made, new = (read_state(tmp_path / folder) for folder in ("out", "new"))
    assert made.keys() == new.keys() and "dict.en.txt" in new and "train.de-en.en.bin" in new
    assert all(made[name] == new[name] for name in new if not name.endswith(".log"))
