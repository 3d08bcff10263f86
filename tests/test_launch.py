"""`fairseq-ext launch`: what it starts trains as it should, and nothing else is started."""

import multiprocessing
import os
import re
import shlex
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import PLUGIN
from fairseq import binarizer
from fairseq.data import dictionary
from fairseq.distributed import utils as distributed
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.multiprocessing import ProcessExitedException

from fairseq_ext import errors
from fairseq_ext.cli import main
from fairseq_ext.commands import launching, messages
from fairseq_ext.commands.launching import WorkerPool
from fairseq_ext.errors import LOST, Unfinished, UsageError
from fairseq_ext.tools.launch import explain_failures

FAIRSEQ_TRAIN = str(Path(sys.executable).with_name("fairseq-train"))
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--no-python"]
ALONE = ["--standalone", "--local-addr", "127.0.0.1"]
ADDED = ["--user-dir", str(PLUGIN), "--distributed-world-size"]
GLOO = ["--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"]


@pytest.fixture
def machine(monkeypatch):
    """Let this machine have so many GPUs and four cores."""

    def machine(gpus):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(4))
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    return machine


NODES = "--nodes 2 --node-rank 1 --master node0:29500"
MEET = "--nnodes 2 --node-rank 1 --master-addr node0 --master-port 29500".split()
LINES = [
    (0, "", "", "CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=4", [], ["--cpu", *ADDED, "1"]),
    (2, "", "", "OMP_NUM_THREADS=2", [*ALONE, 2], [*ADDED, "2"]),
    (2, "--gpus 1", "", "OMP_NUM_THREADS=4", [], [*ADDED, "1"]),
    (8, NODES, "", "OMP_NUM_THREADS=1", [*MEET, 8], [*ADDED, "16"]),
    (8, f"--gpus 1 {NODES}", "", "OMP_NUM_THREADS=4", [*MEET, 1], [*ADDED, "2"]),
    (2, "--nodes 1", "", "OMP_NUM_THREADS=2", [*ALONE, 2], [*ADDED, "2"]),
    (1, "--nodes 1 --node-rank 0 --master a:1", "", "OMP_NUM_THREADS=4", [], [*ADDED, "1"]),
    (2, "", "--cpu", "CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=4", [], [*ADDED, "1"]),
    (
        2,
        "--cpu-processes 2",
        "",
        "CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=2",
        [*ALONE, 2],
        ["--cpu", *ADDED, "2", *GLOO],
    ),
    (
        0,
        "--cpu-processes 2",
        "--user-dir mine --distributed-world-size=2 --ddp-backend no_c10d",
        "CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=2",
        [*ALONE, 2],
        ["--cpu", *GLOO[:2]],
    ),
    (1, "--user-dir mine", "", "OMP_NUM_THREADS=4", [], ["--user-dir", "mine", ADDED[2], "1"]),
    (1, "", "--user-dir fairseq_ext", "OMP_NUM_THREADS=4", [], [*ADDED, "1"]),
]


@pytest.mark.parametrize(("gpus", "options", "flags", "settings", "torchrun", "added"), LINES)
def test_the_command_line(
    gpus, options, flags, settings, torchrun, added, machine, capsys, tmp_path, monkeypatch
):
    machine(gpus)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    command = ["fairseq-train", "a folder", *flags.split()]
    main(["launch", *options.split(), "--dry-run", "--", *command])
    torchrun = (
        [*TORCHRUN, *torchrun[:-1], "--nproc-per-node", str(torchrun[-1])] if torchrun else []
    )
    expected = [*settings.split(), *torchrun, FAIRSEQ_TRAIN, *command[1:], *added]
    assert shlex.split(capsys.readouterr().out) == expected


def test_threads_that_were_chosen_stay(machine, monkeypatch, capsys):
    machine(1)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    main(["launch", "--dry-run", "--", "fairseq-train", "data"])
    assert capsys.readouterr().out.startswith(FAIRSEQ_TRAIN)


def test_the_command_takes_the_place_of_this_process(machine, monkeypatch):
    machine(2)
    monkeypatch.setenv("KEPT", "1")
    started = []
    monkeypatch.setattr(os, "execv", lambda *each: started.append(each))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    main(["launch", "--cpu-processes", "1", "--", "fairseq-train", "data"])
    [(program, command)] = started
    assert program == command[0] == FAIRSEQ_TRAIN and "--cpu" in command
    assert (os.environ["CUDA_VISIBLE_DEVICES"], os.environ["KEPT"]) == ("", "1")


def end(rank, code, message="", timestamp=1):
    said = {"message": message, "extraInfo": {}} if message else f"Signal {-code}"
    return {rank: SimpleNamespace(exitcode=code, message=said, timestamp=timestamp)}


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        (
            end(0, 1, LOST) | end(1, -9, timestamp=2),
            "process 1 .* was ended by SIGKILL, .*continues",
        ),
        (end(0, 1, LOST) | end(1, 1, "no --lr", 2), r"^no --lr \(process 1 of the training\)$"),
        (end(0, 1, "no --lr") | end(1, 1, "no --lr"), r"^no --lr \(process 0 of the training\)$"),
        (end(0, -15, timestamp=2) | end(1, 3), "process 1 .*exit code 3; its reason stands above"),
        (end(0, 1, LOST) | end(1, 1, LOST), LOST),
    ],
)
def test_the_launcher_names_who_failed_by_itself(ends, said):
    assert re.search(said, str(explain_failures(ends)))


def test_a_process_leaves_its_error_to_the_launcher(monkeypatch, tmp_path, capsys):
    """Under torchrun alone it also prints it."""
    file = tmp_path / "error.json"
    monkeypatch.setenv(errors.ERROR_FILE, str(file))
    refusal = UsageError("no --lr")
    sys.excepthook(UsageError, refusal, None)
    assert capsys.readouterr().err == "error: no --lr\n"
    monkeypatch.setenv(errors.LAUNCHED, "1")
    sys.excepthook(UsageError, refusal, None)
    failure = ProcessFailure(0, 1, 1, str(file))
    assert capsys.readouterr().err == "" and failure.message["message"] == "no --lr"
    assert str(explain_failures({0: failure})) == "no --lr (process 0 of the training)"


@pytest.mark.parametrize(
    "text",
    [
        "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] closed by peer [::1]",
        "NCCL error in: ncclRemoteError: due to a network error or a remote process exiting early",
    ],
)
def test_a_process_that_lost_another_one_says_so(text):
    assert messages.explain(RuntimeError(text)) == LOST


def test_a_killed_process_of_the_data_is_named():
    ends = "DataLoader worker (pid 7) is killed by signal: Killed. ", "exited unexpectedly"
    for text in (ends[0], f"DataLoader worker (pid(s) 7, 8) {ends[1]}"):
        said = messages.explain(RuntimeError(text))
        assert said.startswith("a process that reads data has ended (") and "--num-workers" in said


def test_a_killed_process_that_fairseq_started_is_named(monkeypatch):
    def call(cfg, main):
        raise ProcessExitedException("", 1, 7, -9, "SIGKILL")

    monkeypatch.setattr(distributed, "call_main", call)
    monkeypatch.setattr(launching, "check_processes", lambda cfg: None)
    monkeypatch.setattr(launching, "unset_tpu", lambda cfg: None)
    launching.run_processes()
    with pytest.raises(Unfinished, match=r"^process 1 of the training was ended by SIGKILL"):
        distributed.call_main(None, None)


def test_a_pool_notices_that_a_worker_was_killed():
    pool = WorkerPool(2)
    results = [pool.apply_async(max, (1, number), {"key": abs}) for number in (2, -3)]
    pool.close()
    pool.join()
    assert [result.get() for result in results] == [2, -3]
    pool = WorkerPool(2)
    pool.apply_async(signal.raise_signal, (signal.SIGKILL,))
    with pytest.raises(Unfinished, match="a process of --workers was killed"):
        pool.join()
    assert not multiprocessing.active_children()
    assert binarizer.Pool is dictionary.Pool is WorkerPool


def test_an_environment_without_fairseq(machine, monkeypatch, tmp_path):
    machine(1)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(UsageError, match="there is no .*/fairseq-train; install fairseq-fixed"):
        main(["launch", "--dry-run", "--", "fairseq-train", "data"])


BAD = {
    "write fairseq-ext launch [options] -- fairseq-train": "fairseq-train data",
    "launch starts fairseq-train, not nothing": "",
    "not -- fairseq-generate data": "-- fairseq-generate data",
    "not -- fairseq-hydra-train": "-- fairseq-hydra-train",
    "2 GPUs for torch, not --gpus 3": "--gpus 3 -- fairseq-train data",
    "--cpu contradicts --gpus 2": "--gpus 2 -- fairseq-train data --cpu",
    "not --nodes 2 alone": "--nodes 2 -- fairseq-train data",
    "not --node-rank 0 --master a:1 alone": "--node-rank 0 --master a:1 -- fairseq-train data",
    "0 to N - 1": "--nodes 2 -- fairseq-train data",
    "--node-rank is 2 and must be 0 to 1 of --nodes 2": (
        "--nodes 2 --node-rank 2 --master a:1 -- fairseq-train data"
    ),
    "--distributed-world-size 3 does not fit 2 processes on GPUs": (
        "-- fairseq-train data --distributed-world-size 3"
    ),
    "--ddp-backend slowmo does not fit 2 processes on CPUs": (
        "--cpu-processes 2 -- fairseq-train data --ddp-backend=slowmo"
    ),
    "decides what --distributed-rank says": "-- fairseq-train data --distributed-rank 0",
}


@pytest.mark.parametrize("said", BAD)
def test_what_contradicts_itself_is_refused(said, machine, monkeypatch):
    machine(2)
    for starts in ("execv", "posix_spawn", "fork"):
        monkeypatch.setattr(os, starts, lambda *_: pytest.fail("something was started"))
    with pytest.raises(UsageError) as error:
        main(["launch", *BAD[said].split()])
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--gpus 0", "0 is not a number from 1"),
        ("--gpus 1 --cpu-processes 1", "not allowed with"),
        ("--nodes 2 --node-rank -1", "-1 is not a number from 0"),
        ("--nodes 2 --node-rank 0 --master here", "here is not HOST:PORT"),
        ("--nodes 2 --node-rank 0 --master a:70000", "a:70000 is not HOST:PORT"),
    ],
)
def test_a_bad_option_is_refused(options, said, capsys):
    with pytest.raises(SystemExit) as end:
        main(["launch", *options.split(), "--", "fairseq-train", "data"])
    assert end.value.code and said in capsys.readouterr().err
