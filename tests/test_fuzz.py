"""Bad options and bad files for every command; and that the judge of them sees planted faults."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from fuzz import process
from fuzz.judge import find_failures, read_state
from fuzz.options import EITHER, REFUSED, WORKS

from fairseq_ext.errors import UsageError
from fairseq_ext.tools import doctor


def write_half(args):
    Path("made.json").write_text('{"half": ')
    raise UsageError("the disk is full; make room")


def write_whole(args):
    Path("made.json").write_text('{"whole": 1}')
    raise UsageError("the disk is full; make room")


def refuse(args):
    raise UsageError("the input is bad; give another")


def refuse_number(args):
    raise UsageError("--number is 2; give a whole number from 1 to 3 (a number)")


def fail(args):
    raise KeyError("word")


def fall_into_the_net(args):
    sys.exit("unexpected error: KeyError at x.py")


def end_without_a_word(args):
    sys.exit(3)


def crash(args):
    os.kill(os.getpid(), signal.SIGFPE)


def hang(args):
    time.sleep(60)


def work(args):
    print("the result")


PLANTED = [
    (refuse, REFUSED, []),
    (refuse, EITHER, []),
    (work, WORKS, []),
    (work, EITHER, []),
    (work, REFUSED, ["exit 0 from bad input"]),
    (refuse_number, REFUSED, []),
    (refuse_number, WORKS, ["refused within its range"]),
    (fall_into_the_net, REFUSED, ["net: KeyError at x.py"]),
    (end_without_a_word, EITHER, ["exit 3 without a word"]),
    (crash, EITHER, ["ended by signal 8"]),
    (hang, EITHER, ["hangs"]),
    (write_half, REFUSED, ["half-written made.json"]),
    (write_whole, REFUSED, []),
]


@pytest.mark.parametrize(("fault", "expected", "failures"), PLANTED)
def test_planted_faults_are_seen(tmp_path, monkeypatch, fault, expected, failures):
    """A verb that does this instead of what it should do."""
    monkeypatch.setattr(doctor, "run", fault)
    monkeypatch.setattr(process, "IDLE", 3.0)
    before = read_state(tmp_path)
    ended = process.run(process.Process("fairseq-ext", ["doctor"], tmp_path))
    after = read_state(tmp_path)
    found = find_failures(ended, expected, before, after, ["made.json"])
    assert len(found) == len(failures), ended
    assert all(map(str.startswith, found, failures)), found


def test_a_planted_traceback_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "run", fail)
    monkeypatch.setenv("FAIRSEQ_EXT_TRACEBACK", "1")
    ended = process.run(process.Process("fairseq-ext", ["doctor"], tmp_path))
    assert find_failures(ended, EITHER, {}, {}, []) == ["traceback: KeyError: 'word'"]


def test_a_disk_that_is_full(tmp_path, monkeypatch):
    def write(args):
        Path("made").write_bytes(b"x" * 100)

    monkeypatch.setattr(doctor, "run", write)
    ended = process.run(process.Process("fairseq-ext", ["doctor"], tmp_path, most_bytes=99))
    assert ended.code == 1 and "File too large" in ended.err
    assert process.run(process.Process("fairseq-ext", ["doctor"], tmp_path)).code == 0
