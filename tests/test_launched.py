"""Trainings that `fairseq-ext launch` and the Slurm script start equal one process, and end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import slurm
import torch
from commands import find_free_port, read_parameters
from conftest import PLUGIN, ROOT, TRAIN, train
from hangs import communicate, wait_until

FLAGS = [flag for flag in TRAIN if flag not in ("--user-dir", str(PLUGIN), "--cpu")]
FLAGS += ["--arch", "transformer_hna_tiny", "--dropout", 0, "--disable-validation"]


def launch(options, data, folder, *args, python="python"):
    """`fairseq-ext launch`, started."""
    command = ["fairseq-train", data, *FLAGS, "--save-dir", folder, *args]
    return subprocess.Popen(
        [python, "-m", "fairseq_ext.cli", "launch", *options.split(), "--"]
        + list(map(str, command)),
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(*started):
    said = [communicate(each)[0] for each in started]
    assert not any(each.returncode for each in started), said
    return said


@pytest.fixture(scope="module")
def one(data_bin, tmp_path_factory):
    """The parameters of one process with two batches an update."""
    folder = tmp_path_factory.mktemp("one")
    args = ["--dropout", 0, "--disable-validation", "--update-freq", 2]
    return read_parameters(train(data_bin, "transformer_hna_tiny", folder, 3, *args))


def test_one_process_is_fairseq_itself(one, data_bin, tmp_path):
    finish(launch("", data_bin, tmp_path, "--cpu", "--max-update", 3, "--update-freq", 2))
    torch.testing.assert_close(
        read_parameters(tmp_path / "checkpoint_last.pt"), one, atol=0, rtol=0
    )


@pytest.mark.processes
def test_two_processes_equal_one(one, data_bin, tmp_path):
    finish(launch("--cpu-processes 2", data_bin, tmp_path, "--max-update", 3))
    trained = read_parameters(tmp_path / "checkpoint_last.pt")
    torch.testing.assert_close(trained, one, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("options", ["--cpu-processes 1", "--cpu-processes 2"])
def test_a_failure_is_passed_on(options, data_bin):
    done = launch(options, data_bin, "/proc/none")
    said, _ = communicate(done)
    assert done.returncode == 1 and "cannot write checkpoints to /proc/none" in said


def alive(folder):
    """Processes with this folder on their command line."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += [process.parent.name] if str(folder) in process.read_text() else []
        except OSError:
            continue
    return found


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_leaves_no_process(number, data_bin, tmp_path):
    options, more = "--cpu-processes 2", ["--max-update", 100000]
    started = launch(options, data_bin, tmp_path, *more, python=sys.executable)
    while '"num_updates": "2"' not in started.stdout.readline():
        assert started.poll() is None
    assert len(alive(tmp_path)) == 3
    started.send_signal(number)
    communicate(started)
    wait_until(lambda: not alive(tmp_path))
    assert started.returncode


UPDATES = ["--max-update", 30, "--save-interval-updates", 3]


@pytest.fixture(scope="module")
def two_nodes(data_bin, tmp_path_factory):
    """The folder of a training by two launchers, which find each other without Slurm."""
    folder = tmp_path_factory.mktemp("two_nodes")
    options = f"--cpu-processes 1 --nodes 2 --master 127.0.0.1:{find_free_port()} --node-rank"
    finish(*(launch(f"{options} {rank}", data_bin, folder, *UPDATES) for rank in (0, 1)))
    return folder


@pytest.mark.processes
@pytest.mark.slow
def test_two_nodes_equal_one(one, two_nodes):
    (third,) = two_nodes.glob("checkpoint_*_3.pt")
    torch.testing.assert_close(read_parameters(third), one, atol=2e-4, rtol=1e-3)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if reason := slurm.find_lack():
        pytest.skip(reason)
    with slurm.run_cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        cluster.environment |= {"PATH": path, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        yield cluster


def submit(cluster, data, folder, *args):
    """The number of a job on two nodes, and a function that returns its state."""
    nodes = ["-N2", "--gpus-per-node=0", "--cpus-per-task=1", f"--output={folder}.log"]
    script = ROOT / "examples" / "cluster" / "train.sbatch"
    return cluster.submit(*nodes, script, data, folder, *FLAGS, *args)


@pytest.mark.cluster
@pytest.mark.slow
def test_a_job_that_is_requeued_ends_as_if_it_had_not_been(two_nodes, cluster, data_bin, tmp_path):
    folder = tmp_path / "run"
    job, state = submit(cluster, data_bin, folder, *UPDATES)
    slurm.wait_until((folder / "checkpoint_last.pt").exists)
    cluster.call("scontrol", "requeue", job)
    slurm.wait_until(lambda: state() in ("COMPLETED", "FAILED"))
    log = (folder / "train.log").read_text()
    assert state() == "COMPLETED", log
    assert log.count("Loaded checkpoint") == log.count("done training") == 1, log
    resumed, whole = (read_parameters(at / "checkpoint_last.pt") for at in (folder, two_nodes))
    torch.testing.assert_close(resumed, whole, atol=0, rtol=0)


@pytest.mark.cluster
@pytest.mark.slow
def test_a_node_that_dies_ends_the_job(cluster, data_bin, tmp_path):
    folder = tmp_path / "run"
    _, state = submit(cluster, data_bin, folder, "--max-update", 100000, "--no-save")
    log = folder / "train.log"
    slurm.wait_until(lambda: log.exists() and '"num_updates": "2"' in log.read_text())
    assert len(alive(folder)) > 2
    cluster.kill(slurm.SECOND)
    slurm.wait_until(lambda: state() != "RUNNING" and not alive(folder))
