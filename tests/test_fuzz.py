"""Bad options and bad files for every command; and that the judge of them sees planted faults."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT
from fuzz import process
from fuzz.cases import list_expected
from fuzz.commands import COMMANDS
from fuzz.judge import find_failures, read_state
from fuzz.options import EITHER, REFUSED, WORKS, list_options
from many_lines import READERS

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


def test_a_script_does_not_hang_while_the_server_works_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "IDLE", 1.0)
    (tmp_path / "wait.sh").write_text("sleep 5")
    script = process.Process("wait.sh", [], tmp_path)
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as server:
        ended = process.run(script)
        server.kill()
    assert (ended.code, ended.hung) == (0, False)
    assert process.run(script).hung


WHOLE = {"made.txt": b"one\ntwo\n", "made.csv": b"a,b\n"}


@pytest.mark.parametrize(
    ("code", "after", "failures"),
    [
        (1, {"made.txt": b"one\n"}, ["half-written made.txt"]),
        (1, {"made.txt": b""}, ["half-written made.txt"]),
        (1, {"made.txt": b"one\ntwo\n"}, []),
        (1, {"other.txt": b"one\n"}, []),
        (1, {}, []),
        (0, {"made.txt": b"one\n"}, ["half-written made.txt", "exit 0 without made.csv"]),
        (0, WHOLE, []),
    ],
)
def test_text_that_is_cut_at_a_line_is_seen(code, after, failures):
    """By what the command writes where nothing is wrong; here the disk is full."""
    ended = process.Ended(code, "", "the disk is full", hung=False, seconds=0)
    writes = ["made.txt", "made.csv"]
    assert find_failures(ended, EITHER, {}, after, writes, lambda: WHOLE, True) == failures


@pytest.mark.parametrize(
    ("name", "flag", "works", "refused"),
    [
        ("ext columns", "--limit", ["2147483648", "\u0663"], ["0", "-1", "9" * 30, "1e3", "x"]),
        ("ext sweep", "--folds", ["0"], ["-1", "2147483648", "1.5"]),
        ("ext annotate", "--threshold", ["0", "-0.0", "1e-400"], ["-1", "2", "nan", "inf", "1,5"]),
        ("prepare_parallel.sh", "--every", ["2147483648"], ["0", "-1", str(2**63)]),
    ],
)
def test_what_is_expected_of_our_own_numbers(name, flag, works, refused):
    command = next(command for command in COMMANDS if command.name == name)
    option = next(option for option in list_options(command) if option.flag == flag)
    expected = {change.add[-1]: change.expected for change in list_expected(command, option)}
    assert {expected[value] for value in works} == {WORKS}
    assert {expected[value] for value in refused} == {REFUSED}


def test_lines_that_are_lost_or_out_of_order_are_seen():
    lines = ["a", "b b"]
    is_right = {name: reader.is_right for name, reader in READERS.items()}
    assert is_right["fairseq-interactive"](lines, "S-0\ta\nH-0\t-1\tx\nS-1\tb b\n")
    assert not is_right["fairseq-interactive"](lines, "S-1\tb b\nS-0\ta\n")
    assert is_right["predict"](lines, "O\t.5\nO O\t.5\n")
    assert not is_right["predict"](lines, "O O\t.5\nO\t.5\n")
    for count, bleu, right in ((2, 100.0, True), (1, 100.0, False), (2, 99.9, False)):
        output = {"sentences": count, "scores": {"BLEU": bleu}}
        assert is_right["score"](lines, json.dumps({"outputs": [output]})) == right


@pytest.mark.slow
def test_bad_options_and_bad_files(tmp_path):
    """No command fails on any of them; see docs/reliability.md."""
    seed = os.environ.get("FAIRSEQ_EXT_FUZZ_SEED", "1")
    cases = os.environ.get("FAIRSEQ_EXT_FUZZ_CASES", "2000")
    every = os.environ.get("FAIRSEQ_EXT_FUZZ_EVERY", "8")
    given = f"--seed {seed} --cases {cases} --every {every} --jobs 1".split()
    given += ["--folder", tmp_path]
    run = [sys.executable, "-m", "tests.fuzz.run", *given]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]


def test_a_disk_that_is_full(tmp_path, monkeypatch):
    def write(args):
        Path("made").write_bytes(b"x" * 100)

    monkeypatch.setattr(doctor, "run", write)
    ended = process.run(process.Process("fairseq-ext", ["doctor"], tmp_path, most_bytes=99))
    assert ended.code == 1 and "File too large" in ended.err
    assert process.run(process.Process("fairseq-ext", ["doctor"], tmp_path)).code == 0
